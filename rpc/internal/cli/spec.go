package cli

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berthd/berth/rpc"
)

// specFlags are the flags that describe a session.
type specFlags struct {
	env              []string
	workspace        string
	copyOf, clone    string
	branch           string
	workBranch       string
	depth            uint64
	setup            []string
	pin              bool
	provider         string
	terminal         bool
	rows, cols       uint16
	grace, retention time.Duration
	reserve          bytesFlag
	reserveInodes    uint64
	memory           bytesFlag
	processes, files uint64
	cpu              uint64
	owner, key       string

	set *pflag.FlagSet
	// describes holds the names of the flags that make a specification.
	describes map[string]bool
}

func (s *specFlags) register(cmd *cobra.Command) {
	f := pflag.NewFlagSet("spec", pflag.ContinueOnError)
	f.StringArrayVarP(&s.env, "env", "e", nil, "add NAME=value to the agent's environment (NAME alone: its value here); no secrets")
	f.StringVarP(&s.workspace, "workspace", "w", "", "an existing directory to work in (default: an empty one that berth makes and deletes with the session)")
	f.StringVar(&s.copyOf, "copy", "", "fill the workspace with a copy of this directory")
	f.StringVar(&s.clone, "clone", "", "fill the workspace with a clone of this git repository, a URL or a path")
	f.StringVar(&s.branch, "branch", "", "with --clone: the branch or tag to check out (default: the repository's choice)")
	f.StringVar(&s.workBranch, "work-branch", "", "with --clone: a branch for the work, made if the repository has none of that name")
	f.Uint64Var(&s.depth, "depth", 0, "with --clone: how many commits of the history to fetch (default: all)")
	f.StringArrayVar(&s.setup, "setup", nil, "a shell command to run in the workspace before the first start; may be given several times")
	f.BoolVar(&s.pin, "pin", false, "never reclaim the workspace when the disk is full")
	f.StringVar(&s.provider, "provider", "", "the sandbox provider's kind (default: the first one that can do what is asked)")
	f.BoolVarP(&s.terminal, "terminal", "t", false, "give the agent a terminal")
	f.Uint16Var(&s.rows, "rows", 0, "rows of the terminal (default: this terminal's, else 24)")
	f.Uint16Var(&s.cols, "cols", 0, "columns of the terminal (default: this terminal's, else 80)")
	f.DurationVar(&s.grace, "grace", 0, "time between TERM and kill when the session is stopped, 0 = kill at once (default: the daemon's)")
	f.DurationVar(&s.retention, "retention", 0, "how long to keep the session after its last activity, 0 = for ever (default: the daemon's)")
	f.Var(&s.reserve, "reserve", "room on the disk to set aside, e.g. 2GiB (default: the daemon's)")
	f.Uint64Var(&s.reserveInodes, "reserve-inodes", 0, "inodes to set aside (default: the daemon's)")
	f.Var(&s.memory, "limit-memory", "memory that the session may use, e.g. 4GiB (default: no limit)")
	f.Uint64Var(&s.processes, "limit-processes", 0, "processes and threads that the session may have (default: no limit)")
	f.Uint64Var(&s.cpu, "limit-cpu", 0, "processor time in percent of one processor, e.g. 150 (default: no limit)")
	f.Uint64Var(&s.files, "limit-open-files", 0, "open files of each process (default: no limit)")
	s.describes = map[string]bool{}
	f.VisitAll(func(x *pflag.Flag) { s.describes[x.Name] = true })
	f.StringVar(&s.owner, "owner", "", "the user (name or uid) that the session belongs to; operators only (default: you; as root the daemon's sessions.default_owner)")
	f.StringVar(&s.key, "key", "", "operation key: repeating a request with the same key is the same operation (default: a new one)")
	s.set = cmd.Flags()
	s.set.AddFlagSet(f)
	cmd.MarkFlagDirname("workspace")
	cmd.MarkFlagDirname("copy")
}

// request makes the request; command may be empty when no other flag asks for
// a specification: the stored one is then used.
func (s *specFlags) request(command []string) (rpc.StartRequest, error) {
	req := rpc.StartRequest{Key: s.key, Owner: s.owner}
	if req.Key == "" {
		req.Key = "berthctl-" + randomHex(16)
	}
	if len(command) == 0 {
		var given string
		s.set.Visit(func(f *pflag.Flag) {
			if s.describes[f.Name] {
				given = f.Name
			}
		})
		if given != "" {
			return req, usagef("--%s describes a session: it needs a command after \"--\"", given)
		}
		return req, nil
	}
	spec, err := s.spec(command)
	if err != nil {
		return req, err
	}
	req.Spec = &spec
	return req, nil
}

func (s *specFlags) spec(command []string) (rpc.SessionSpec, error) {
	spec := rpc.SessionSpec{
		Command: command, Provider: s.provider, Terminal: s.terminal, Rows: s.rows, Cols: s.cols,
		Limits: rpc.Limits{Processes: s.processes, MemoryBytes: uint64(s.memory), CPUPercent: s.cpu, OpenFiles: s.files},
	}
	for _, e := range s.env {
		name, _, given := strings.Cut(e, "=")
		if name == "" {
			return spec, usagef("--env %q has no name", e)
		}
		if !given {
			v, ok := os.LookupEnv(name)
			if !ok {
				return spec, usagef("--env %s: there is no such variable here", name)
			}
			e = name + "=" + v
		}
		spec.Env = append(spec.Env, e)
	}
	if s.workspace != "" {
		dir, err := filepath.Abs(s.workspace)
		if err != nil {
			return spec, fmt.Errorf("finding the workspace: %w", err)
		}
		spec.Workspace = dir
	}
	spec.Setup, spec.Pinned = s.setup, s.pin
	if err := s.source(&spec); err != nil {
		return spec, err
	}
	if s.set.Changed("grace") {
		if s.grace < 0 {
			return spec, usagef("--grace %s is negative", s.grace)
		}
		grace := s.grace.Seconds()
		spec.GraceSeconds = &grace
	}
	if s.set.Changed("retention") {
		if s.retention < 0 {
			return spec, usagef("--retention %s is negative", s.retention)
		}
		retention := s.retention.Seconds()
		spec.RetentionSeconds = &retention
	}
	if s.set.Changed("reserve") {
		n := uint64(s.reserve)
		spec.ReserveBytes = &n
	}
	if s.set.Changed("reserve-inodes") {
		n := s.reserveInodes
		spec.ReserveInodes = &n
	}
	return spec, nil
}

// source says what the workspace is filled from; a path of this machine is made
// absolute.
func (s *specFlags) source(spec *rpc.SessionSpec) (err error) {
	if s.copyOf == "" && s.clone == "" {
		if s.branch != "" || s.workBranch != "" || s.depth != 0 {
			return usagef("--branch, --work-branch and --depth are for --clone")
		}
		return nil
	}
	out := &rpc.Source{Copy: s.copyOf, Clone: s.clone, Branch: s.branch, WorkBranch: s.workBranch, Depth: s.depth}
	if out.Copy != "" {
		if out.Copy, err = filepath.Abs(out.Copy); err != nil {
			return fmt.Errorf("finding the directory to copy: %w", err)
		}
	}
	if _, err := os.Stat(out.Clone); err == nil { // as git tells a path from a URL
		if out.Clone, err = filepath.Abs(out.Clone); err != nil {
			return fmt.Errorf("finding the repository to clone: %w", err)
		}
	}
	spec.Source = out
	return nil
}

// bytesFlag is a number of bytes: 4096, 512MiB, 2G.
type bytesFlag uint64

// String shows the number.
func (b *bytesFlag) String() string {
	if *b == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(*b), 10)
}

// Type names the value in the help.
func (b *bytesFlag) Type() string { return "size" }

// Set reads a number with an optional unit; K, KB and KiB are all 1024.
func (b *bytesFlag) Set(text string) error {
	number := strings.TrimRight(text, "BbIiKkMmGgTt")
	unit := strings.ToLower(text[len(number):])
	shift, ok := map[string]uint{
		"": 0, "b": 0, "k": 10, "kb": 10, "kib": 10, "m": 20, "mb": 20, "mib": 20,
		"g": 30, "gb": 30, "gib": 30, "t": 40, "tb": 40, "tib": 40,
	}[unit]
	v, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(v >= 0) || v*math.Exp2(float64(shift)) >= math.MaxInt64 {
		return fmt.Errorf("%q is not a size like 4096, 512MiB or 2G", text)
	}
	*b = bytesFlag(v * math.Exp2(float64(shift)))
	return nil
}

// randomHex returns 2n random hex characters.
func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
