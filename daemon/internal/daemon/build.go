package daemon

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"github.com/berthd/berth/daemon/internal/admit"
	"github.com/berthd/berth/daemon/internal/api"
	"github.com/berthd/berth/daemon/internal/config"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/daemon/internal/reclaim"
	"github.com/berthd/berth/plugins/host"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs"
	"golang.org/x/sys/unix"
)

const (
	// spaceWait bounds the wait for a new reading of the disk, spaceMaxAge the
	// age of an old one that is taken in its place.
	spaceWait   = time.Second
	spaceMaxAge = 30 * time.Second
)

// engineOptions is the engine's part of the configuration.
func (d *Daemon) engineOptions() engine.Options {
	c := &d.cfg
	return engine.Options{
		HostID: d.dir.HostID(), Epoch: d.epoch, UID: uint32(os.Geteuid()),
		Journal: d.journal, Effects: d.host, Rules: rules(c),
		Settings:      settings(c),
		Leaf:          d.leaf,
		LeafAt:        d.leafAt,
		GenerationDir: d.dir.GenerationDir,
		WorkspaceDir:  d.dir.WorkspaceDir,
		OwnerOf:       ownerOf,
		Answer:        api.Answer,
		Logger:        d.log.Named("engine"),
	}
}

// ownerOf is whom a directory belongs to.
func ownerOf(dir string) (uid, gid uint32, ok bool) {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, 0, false
	}
	return st.Uid, st.Gid, true
}

func settings(c *config.Config) engine.Settings {
	return engine.Settings{
		Retention:      c.Sessions.Retention.D(),
		StartupTimeout: c.Sessions.StartupTimeout.D(), Grace: c.Sessions.Grace.D(),
		ReconnectWindow: c.Wrapper.ReconnectWindow.D(), AdoptPatience: 2 * time.Second,
		RelistEvery: c.Wrapper.RelistEvery.D(), TombstoneFor: c.Keep.Tombstones.D(),
		OperationFor: c.Keep.Operations.D(), EventsKept: c.Keep.Events,
		OperationsMax: c.Keep.OperationsPerUser, TombstonesMax: c.Keep.TombstonesPerUser, Marks: marks(c), StateMarks: stateMarks(c),
	}
}

func rules(c *config.Config) lease.Rules {
	r := lease.DefaultRules()
	r.StartupDeadline = c.Sessions.StartupTimeout.D()
	r.StopAttempts, r.AttemptDeadline = c.Stop.Attempts, c.Stop.AttemptDeadline.D()
	r.RecheckEvery, r.RecheckWindow = c.Stop.RecheckEvery.D(), c.Stop.RecheckWindow.D()
	r.AttemptDelays = nil
	for _, delay := range c.Stop.Delays {
		r.AttemptDelays = append(r.AttemptDelays, delay.D())
	}
	return r
}

// marks are the marks of the file systems that hold workspaces. Unless it is set,
// the low state is left half as high above, so that one session does not make it
// flap.
func marks(c *config.Config) admit.Marks {
	m, k := admit.DefaultMarks(), &c.Capacity
	m.LowBytes, m.ExitLowBytes = k.LowBytes, cmp.Or(k.HighBytes, k.LowBytes+k.LowBytes/2)
	m.LowPercent, m.ExitLowPercent = k.LowPercent, cmp.Or(k.HighPercent, min(k.LowPercent*1.5, 100))
	m.LowInodePercent, m.ExitLowInodePercent = k.LowInodePercent, cmp.Or(k.HighInodePercent, min(k.LowInodePercent*1.5, 100))
	return m
}

// cleaning is how room is made.
func cleaning(c *config.Config) reclaim.Settings {
	return reclaim.Settings{Enabled: c.Capacity.Reclaim, Policy: policy(c), Marks: marks(c), Every: c.Capacity.CheckEvery.D()}
}

func policy(c *config.Config) admit.Policy {
	p := admit.DefaultPolicy()
	p.MinAge, p.DiscardIgnored = c.Capacity.ReclaimAfter.D(), c.Capacity.ReclaimIgnored
	return p
}

func stateMarks(c *config.Config) admit.Marks {
	m := admit.RootMarks()
	m.LowBytes, m.ExitLowBytes = c.Capacity.StateLowBytes, c.Capacity.StateLowBytes+c.Capacity.StateLowBytes/2
	return m
}

func (d *Daemon) newPlugins() (*host.Host, error) {
	var providers []host.Config
	for _, p := range d.cfg.Providers {
		providers = append(providers, host.Config{Kind: p.Kind, Path: p.Path, Args: p.Args, SHA256: p.SHA256, Env: p.Env})
	}
	return host.New(host.Options{
		Providers: providers, SocketDir: filepath.Join(d.cfg.RunDir, "plugins"),
		HostID: d.dir.HostID(), Controllers: d.trees.Subtree().Controllers(), Logger: d.log.Named("plugins"),
	})
}

func (d *Daemon) newAPI(started time.Time) error {
	var kinds []string
	for _, p := range d.cfg.Providers {
		kinds = append(kinds, p.Kind)
	}
	defaults, err := apiDefaults(&d.cfg)
	if err != nil {
		return err
	}
	status := api.StaticStatus{
		Version: d.version, Epoch: d.epoch, StartedAt: started, Leaves: d.leavesStatus, Recovery: d.recoveryNotes(),
		Log: d.log.Format,
	}
	space := statefs.NewProber(spaceWait, spaceMaxAge)
	d.closers = append(d.closers, func() error {
		space.Close()
		return nil
	})
	d.cleaner = reclaim.New(reclaim.Options{
		Engine: d.engine, Dir: d.dir, Space: space, Prober: d.prober, Appraiser: d.works, Settings: cleaning(&d.cfg),
		Logger: d.log.Named("reclaim"),
	})
	d.api = api.New(api.Options{
		Cleaner: d.cleaner,
		Engine:  d.engine, Dir: d.dir, Space: space, Prober: d.prober,
		Appraiser: d.works,
		Plugins:   d.plugins, Journal: d.journal, Providers: kinds, UID: uint32(os.Geteuid()),
		Tuning: api.Tuning{Defaults: defaults, Marks: marks(&d.cfg), StateMarks: stateMarks(&d.cfg)},
		Status: status, LogDropped: d.log.Dropped, Logger: d.log.Named("api"),
	})
	access, err := access(&d.cfg.Socket)
	if err != nil {
		return err
	}
	d.measured = d.metrics(started)
	d.server = rpc.NewServer(rpc.Config{
		Service: d.api, Access: access, Metrics: d.measured,
		Panicked: func(method string, value any, stack []byte) {
			d.log.Error("internal error in a request", "method", method, "panic", value, "stack", string(stack))
		},
	})
	return nil
}

// recoveryNotes says in words what reading the journal has found out.
func (d *Daemon) recoveryNotes() []string {
	var notes []string
	if d.recovery.TornTail {
		notes = append(notes, "an unfinished commit at the journal's end was dropped; nobody was told that it had succeeded")
	}
	for _, damage := range d.recovery.Damages {
		notes = append(notes, damage.String())
	}
	if d.recovery.Ambiguous {
		notes = append(notes, "records may be lost: generations were raised above all that exists")
	}
	return notes
}

// socketGroup is the operators' socket's group; -1 where there is no such
// group or the daemon may not give the socket away.
func (d *Daemon) socketGroup() (int, error) {
	name := d.cfg.Socket.Group
	if name == "" || os.Geteuid() != 0 {
		return -1, nil
	}
	gid, err := lookupGroup(name)
	if err != nil {
		if name == config.Default().Socket.Group {
			return -1, nil // a host without the packaged group: root only
		}
		return -1, fmt.Errorf("reading socket.group: %w", err)
	}
	return int(gid), nil
}

// access says who may do what on the operators' socket. Whoever can connect
// may use it for sessions of their own.
func access(s *config.Socket) (rpc.Access, error) {
	a := rpc.Access{AllowUsers: true}
	var err error
	if a.OperatorUIDs, err = ids(s.OperatorUsers, lookupUser); err != nil {
		return a, fmt.Errorf("reading socket.operator_users: %w", err)
	}
	if a.OperatorGIDs, err = ids(s.OperatorGroups, lookupGroup); err != nil {
		return a, fmt.Errorf("reading socket.operator_groups: %w", err)
	}
	if a.ReaderUIDs, err = ids(s.ReaderUsers, lookupUser); err != nil {
		return a, fmt.Errorf("reading socket.reader_users: %w", err)
	}
	if a.ReaderGIDs, err = ids(s.ReaderGroups, lookupGroup); err != nil {
		return a, fmt.Errorf("reading socket.reader_groups: %w", err)
	}
	return a, nil
}

func ids(names []string, lookup func(string) (uint32, error)) ([]uint32, error) {
	var out []uint32
	for _, name := range names {
		id, err := lookup(name)
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}

func lookupUser(name string) (uint32, error) {
	if u, err := user.Lookup(name); err == nil {
		name = u.Uid
	}
	return parseID("user", name)
}

func lookupGroup(name string) (uint32, error) {
	if g, err := user.LookupGroup(name); err == nil {
		name = g.Gid
	}
	return parseID("group", name)
}

func parseID(kind, name string) (uint32, error) {
	id, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s %q does not exist", kind, name)
	}
	return uint32(id), nil
}
