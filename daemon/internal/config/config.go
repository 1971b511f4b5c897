// Package config is the daemon's configuration: one struct, its defaults in
// one literal, strict reading and validation.
//
// It refuses to know what the settings do. daemon/cmd/berthd loads it once and
// hands its parts on; man/berthd.toml.5 describes every key.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// Duration is a time.Duration that is written as text, for example "90s".
type Duration time.Duration

// UnmarshalText parses the form of time.ParseDuration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return err
	}
	*d = Duration(v)
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// D is the value as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// Config is everything that can be set. Its keys are the TOML tags.
type Config struct {
	StateDir     string `toml:"state_dir"`
	RunDir       string `toml:"run_dir"`
	CgroupParent string `toml:"cgroup_parent"`
	// Leaves is what sessions get as their leaves, one of the constants.
	Leaves string `toml:"leaves"`
	// LibexecDir holds berth-wrap and the providers' programs.
	LibexecDir string     `toml:"libexec_dir"`
	Socket     Socket     `toml:"socket"`
	Sessions   Sessions   `toml:"sessions"`
	Stop       Stop       `toml:"stop"`
	Wrapper    Wrapper    `toml:"wrapper"`
	Workspaces Workspaces `toml:"workspaces"`
	Capacity   Capacity   `toml:"capacity"`
	Keep       Keep       `toml:"keep"`
	Log        Log        `toml:"log"`
	Metrics    Metrics    `toml:"metrics"`
	Providers  []Provider `toml:"provider"`
}

// What Config.Leaves may be.
const (
	LeavesAuto    = "auto"    // scopes of systemd's where they are to be had, else the subtree
	LeavesScope   = "scope"   // scopes or nothing
	LeavesSubtree = "subtree" // the subtree
)

// Socket is the operators' socket and who may do what on it. Users and groups
// are names or numbers.
type Socket struct {
	Mode           uint32   `toml:"mode"`
	Group          string   `toml:"group"`
	OperatorUsers  []string `toml:"operator_users"`
	OperatorGroups []string `toml:"operator_groups"`
	ReaderUsers    []string `toml:"reader_users"`
	ReaderGroups   []string `toml:"reader_groups"`
}

// Sessions are the defaults of sessions.
type Sessions struct {
	// DefaultOwner owns sessions that root starts without naming an owner.
	DefaultOwner string `toml:"default_owner"`
	// Allocation is one of Allocations; a retired one falls through to the default.
	Allocation string `toml:"allocation"`
	// AllowRoot lets agents run as root.
	AllowRoot      bool     `toml:"allow_root"`
	StartupTimeout Duration `toml:"startup_timeout"`
	Grace          Duration `toml:"grace"`
	// Retention is how long a session is kept after its last activity; 0 = for ever.
	Retention     Duration `toml:"retention"`
	ReserveBytes  uint64   `toml:"reserve_bytes"`
	ReserveInodes uint64   `toml:"reserve_inodes"`
	Launches      int      `toml:"launches"`
}

// Allocations are what sessions.allocation may be, AllocationRetired what older
// configurations have.
var Allocations = []string{"", "dedicated", AllocationRetired}

// AllocationRetired was one sandbox for several sessions.
const AllocationRetired = "shared"

// Stop is the stop ladder and quarantine.
type Stop struct {
	Attempts        int        `toml:"attempts"`
	AttemptDeadline Duration   `toml:"attempt_deadline"`
	Delays          []Duration `toml:"delays"`
	RecheckEvery    Duration   `toml:"recheck_every"`
	RecheckWindow   Duration   `toml:"recheck_window"`
}

// Wrapper is the wrappers' connection and output.
type Wrapper struct {
	HeartbeatEvery  Duration `toml:"heartbeat_every"`
	LostAfter       Duration `toml:"lost_after"`
	ReconnectWindow Duration `toml:"reconnect_window"`
	RelistEvery     Duration `toml:"relist_every"`
	SpoolFileBytes  int64    `toml:"spool_file_bytes"`
	SpoolFiles      int      `toml:"spool_files"`
	DrainTimeout    Duration `toml:"drain_timeout"`
}

// Workspaces is how they are filled.
type Workspaces struct {
	// StepLimit bounds a step, StepQuiet the time that it may print nothing.
	StepLimit Duration `toml:"step_limit"`
	StepQuiet Duration `toml:"step_quiet"`
	// CloneCache keeps the objects of clones for later ones.
	CloneCache bool `toml:"clone_cache"`
}

// Capacity is the marks of the disk.
type Capacity struct {
	LowBytes        uint64  `toml:"low_bytes"`
	LowPercent      float64 `toml:"low_percent"`
	LowInodePercent float64 `toml:"low_inode_percent"`
	StateLowBytes   uint64  `toml:"state_low_bytes"`
	// HighBytes, HighPercent and HighInodePercent end the low state; 0 = half as
	// much again as the low mark.
	HighBytes        uint64  `toml:"high_bytes"`
	HighPercent      float64 `toml:"high_percent"`
	HighInodePercent float64 `toml:"high_inode_percent"`
	// Reclaim gives up workspaces that can be made again, once they have not been
	// used for ReclaimAfter; with ReclaimIgnored also those that hold files which
	// git ignores.
	Reclaim        bool     `toml:"reclaim"`
	ReclaimAfter   Duration `toml:"reclaim_after"`
	ReclaimIgnored bool     `toml:"reclaim_ignored"`
	// CheckEvery is how often the disk is looked at; 0 = only when a start finds no
	// room.
	CheckEvery Duration `toml:"check_every"`
}

// Keep is how long things are remembered.
type Keep struct {
	Tombstones Duration `toml:"tombstones"`
	Operations Duration `toml:"operations"`
	Salvages   Duration `toml:"salvages"`
	// OperationsPerUser and TombstonesPerUser are how many of them one user may
	// have: what is kept for a month must not be anybody's to fill the disk with.
	OperationsPerUser int `toml:"operations_per_user"`
	TombstonesPerUser int `toml:"tombstones_per_user"`
	Generations       int `toml:"generations"`
	Events            int `toml:"events"`
}

// Log is the daemon's own log, and the copy of the agents' output in journald.
type Log struct {
	Level  string `toml:"level"`
	Format string `toml:"format"` // one of LogFormats
	Agent  string `toml:"agent"`  // one of AgentLogs
	// AgentNamespace is the journal namespace of the agents' output, empty = the
	// default one, or that of the daemon's unit.
	AgentNamespace string `toml:"agent_namespace"`
	// AgentRate is how many lines a second of one session go to journald, 0 =
	// as many as it takes.
	AgentRate int `toml:"agent_rate"`
}

// LogFormats and AgentLogs are what log.format and log.agent may be. "auto" is
// journald where the daemon's standard error is a stream to it, else text; and
// for agents journald where the daemon logs there, else off.
var (
	LogFormats = []string{"auto", "journald", "text", "json"}
	AgentLogs  = []string{"auto", "journald", "off"}
)

// Metrics is where they are to be read beside the operators' socket.
type Metrics struct {
	// Listen is a TCP address, "127.0.0.1:9469"; empty = none.
	Listen string `toml:"listen"`
}

// Provider is one sandbox provider.
type Provider struct {
	Kind   string   `toml:"kind"`
	Path   string   `toml:"path"`
	Args   []string `toml:"args"`
	SHA256 string   `toml:"sha256"`
	Env    []string `toml:"env"`
}

// Default returns the configuration of a host that sets nothing.
func Default() Config {
	return Config{
		StateDir: "/var/lib/berth", RunDir: "/run/berth", Leaves: LeavesAuto, LibexecDir: "/usr/libexec/berth",
		Socket: Socket{Mode: 0o660, Group: "berth"},
		Sessions: Sessions{
			StartupTimeout: Duration(13 * time.Minute), Grace: Duration(10 * time.Second),
			Retention:    Duration(90 * 24 * time.Hour),
			ReserveBytes: 1 << 30, ReserveInodes: 20_000, Launches: 4,
		},
		Stop: Stop{
			Attempts: 5, AttemptDeadline: Duration(45 * time.Second),
			Delays:       []Duration{Duration(5 * time.Second), Duration(10 * time.Second), Duration(10 * time.Second), Duration(10 * time.Second)},
			RecheckEvery: Duration(10 * time.Minute), RecheckWindow: Duration(time.Hour),
		},
		Wrapper: Wrapper{
			HeartbeatEvery: Duration(5 * time.Second), LostAfter: Duration(15 * time.Second),
			ReconnectWindow: Duration(90 * time.Second), RelistEvery: Duration(10 * time.Second),
			SpoolFileBytes: 4 << 20, SpoolFiles: 4, DrainTimeout: Duration(2 * time.Second),
		},
		Workspaces: Workspaces{StepLimit: Duration(8 * time.Minute), StepQuiet: Duration(5 * time.Minute), CloneCache: true},
		Capacity: Capacity{LowBytes: 2 << 30, LowPercent: 5, LowInodePercent: 5, StateLowBytes: 64 << 20,
			Reclaim: true, ReclaimAfter: Duration(20 * time.Minute), CheckEvery: Duration(time.Minute)},
		Keep: Keep{
			Tombstones: Duration(30 * 24 * time.Hour), Operations: Duration(30 * 24 * time.Hour),
			Salvages: Duration(90 * 24 * time.Hour),

			OperationsPerUser: 100_000, TombstonesPerUser: 100_000,
			Generations: 3, Events: 16_384,
		},
		Log: Log{Level: "info", Format: "auto", Agent: "auto", AgentRate: 1000},
	}
}

// Load reads the file at path and, in the order of their names, the drop-ins
// *.toml of the directory path + ".d", each over what came before, beginning
// with base; then it applies override. A missing file is fine where optional is
// set, a missing directory always is, and an empty path reads nothing. Unknown
// keys are errors that name file and line.
func Load(base Config, path string, optional bool, override func(*Config)) (Config, error) {
	c := base
	if path != "" {
		if err := c.mergeAll(path, optional); err != nil {
			return Config{}, err
		}
	}
	override(&c)
	c.complete()
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("checking configuration %q: %w", path, err)
	}
	return c, nil
}

// mergeAll reads a file and its drop-ins over c.
func (c *Config) mergeAll(path string, optional bool) error {
	if err := c.merge(path); err != nil && !(optional && errors.Is(err, os.ErrNotExist)) {
		return err
	}
	dropIns, err := filepath.Glob(filepath.Join(path+".d", "*.toml"))
	if err != nil {
		return fmt.Errorf("listing drop-ins of %q: %w", path, err)
	}
	slices.Sort(dropIns)
	for _, p := range dropIns {
		if err := c.merge(p); err != nil {
			return err
		}
	}
	return nil
}

// merge reads one file over c.
func (c *Config) merge(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading configuration: %w", err)
	}
	d := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	err = d.Decode(c)
	var unknown *toml.StrictMissingError
	var bad *toml.DecodeError
	switch {
	case errors.As(err, &unknown):
		var keys []string
		for _, e := range unknown.Errors {
			row, _ := e.Position()
			keys = append(keys, fmt.Sprintf("line %d: unknown key %q", row, strings.Join(e.Key(), ".")))
		}
		return fmt.Errorf("reading configuration %q: %s", path, strings.Join(keys, "; "))
	case errors.As(err, &bad):
		row, column := bad.Position()
		return fmt.Errorf("reading configuration %q: line %d, column %d: %s", path, row, column, bad.Error())
	case err != nil:
		return fmt.Errorf("reading configuration %q: %w", path, err)
	}
	return nil
}

// complete fills in what follows from other settings.
func (c *Config) complete() {
	if len(c.Providers) == 0 {
		c.Providers = []Provider{{Kind: "process"}}
	}
	for i := range c.Providers {
		if p := &c.Providers[i]; p.Path == "" && p.Kind != "" {
			p.Path = filepath.Join(c.LibexecDir, "berth-sandbox-"+p.Kind)
		}
	}
}

// WorkspacePath is the program that looks into workspaces.
func (c *Config) WorkspacePath() string { return filepath.Join(c.LibexecDir, "berth-workspace") }

// WrapPath is the wrapper's program.
func (c *Config) WrapPath() string { return filepath.Join(c.LibexecDir, "berth-wrap") }

// maxSocketPath is sizeof(sun_path) - 1, see unix(7).
const maxSocketPath = 107

// Validate reports every setting that cannot work.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for key, path := range map[string]string{"state_dir": c.StateDir, "run_dir": c.RunDir, "libexec_dir": c.LibexecDir} {
		if !filepath.IsAbs(path) {
			bad("%s = %q: not an absolute path", key, path)
		}
	}
	if path := c.RunDir + "/berth.sock"; len(path) > maxSocketPath { // case T77
		bad("run_dir: the socket %q would have a path of %d bytes, at most %d work", path, len(path), maxSocketPath)
	}
	if c.CgroupParent != "" && !filepath.IsAbs(c.CgroupParent) {
		bad("cgroup_parent = %q: not an absolute path", c.CgroupParent)
	}
	if !slices.Contains([]string{LeavesAuto, LeavesScope, LeavesSubtree}, c.Leaves) {
		bad("leaves = %q: must be auto, scope or subtree", c.Leaves)
	}
	for key, d := range map[string]Duration{
		"workspaces.step_limit": c.Workspaces.StepLimit, "workspaces.step_quiet": c.Workspaces.StepQuiet,
		"sessions.startup_timeout": c.Sessions.StartupTimeout, "stop.attempt_deadline": c.Stop.AttemptDeadline,
		"wrapper.heartbeat_every": c.Wrapper.HeartbeatEvery, "wrapper.lost_after": c.Wrapper.LostAfter,
		"wrapper.reconnect_window": c.Wrapper.ReconnectWindow, "wrapper.relist_every": c.Wrapper.RelistEvery,
	} {
		if d <= 0 {
			bad("%s = %q: must be above 0", key, d.D())
		}
	}
	if c.Sessions.Grace.D() < 0 || c.Sessions.Grace.D() > time.Hour {
		bad("sessions.grace = %q: must be from 0 to 1h", c.Sessions.Grace.D())
	}
	if !slices.Contains(Allocations, c.Sessions.Allocation) {
		bad("sessions.allocation = %q: must be dedicated or empty", c.Sessions.Allocation)
	}
	if c.Wrapper.LostAfter <= c.Wrapper.HeartbeatEvery {
		bad("wrapper.lost_after = %q: must be above wrapper.heartbeat_every (%s)", c.Wrapper.LostAfter.D(), c.Wrapper.HeartbeatEvery.D())
	}
	if c.Stop.Attempts < 1 {
		bad("stop.attempts = %d: must be at least 1", c.Stop.Attempts)
	}
	if c.Sessions.Retention < 0 {
		bad("sessions.retention = %q: must not be negative", c.Sessions.Retention.D())
	}
	if c.Keep.OperationsPerUser < 1 || c.Keep.TombstonesPerUser < 1 || c.Keep.Generations < 1 || c.Keep.Events < 1 || c.Sessions.Launches < 1 {
		bad("keep.generations, keep.events and sessions.launches must be at least 1")
	}
	if c.Socket.Mode&^0o777 != 0 || c.Socket.Mode&0o600 != 0o600 {
		bad("socket.mode = %#o: must be permission bits that include 0600", c.Socket.Mode)
	}
	if !slices.Contains([]string{"trace", "debug", "info", "warn", "error"}, c.Log.Level) {
		bad("log.level = %q: must be trace, debug, info, warn or error", c.Log.Level)
	}
	c.Log.validate(bad)
	c.Capacity.validate(bad)
	if l := c.Metrics.Listen; l != "" {
		host, port, err := net.SplitHostPort(l)
		n, errPort := strconv.ParseUint(port, 10, 16)
		if _, errHost := netip.ParseAddr(host); err != nil || errHost != nil || errPort != nil || n == 0 {
			bad("metrics.listen = %q: must be an address and a port, as 127.0.0.1:9469", l)
		}
	}
	return errors.Join(errs...)
}

func (c *Capacity) validate(bad func(format string, args ...any)) {
	if c.ReclaimAfter < 0 || c.CheckEvery < 0 {
		bad("capacity.reclaim_after and capacity.check_every: must be 0 or above")
	}
	for key, pair := range map[string][2]float64{
		"high_bytes": {float64(c.HighBytes), float64(c.LowBytes)}, "high_percent": {c.HighPercent, c.LowPercent},
		"high_inode_percent": {c.HighInodePercent, c.LowInodePercent},
	} {
		if high, low := pair[0], pair[1]; high != 0 && high < low {
			bad("capacity.%s = %v: must be 0, or not below the low mark (%v)", key, high, low)
		}
	}
}

func (l *Log) validate(bad func(format string, args ...any)) {
	if !slices.Contains(LogFormats, l.Format) {
		bad("log.format = %q: must be auto, journald, text or json", l.Format)
	}
	if !slices.Contains(AgentLogs, l.Agent) {
		bad("log.agent = %q: must be auto, journald or off", l.Agent)
	}
	if l.AgentRate < 0 {
		bad("log.agent_rate = %d: must be 0 or above", l.AgentRate)
	}
	// It becomes part of a path: systemd's own rule, log_namespace_name_valid.
	if strings.ContainsAny(l.AgentNamespace, "/ \t\n") || strings.HasPrefix(l.AgentNamespace, ".") || len(l.AgentNamespace) > 64 {
		bad("log.agent_namespace = %q: not the name of a journal namespace", l.AgentNamespace)
	}
}
