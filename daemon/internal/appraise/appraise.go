// Package appraise has berth-workspace work on workspaces for the daemon: it finds
// out what a workspace holds that its deletion would lose, saves that, and fills a
// new one step by step. The program runs as the session's user, in a cgroup of its
// own that is killed afterwards, within a bound, with the end of the daemon as its
// own end. The daemon itself never reads what an agent has written.
package appraise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berthd/berth/daemon/internal/workspace"
	"github.com/berthd/berth/statefs"
	"github.com/berthd/berth/statefs/cgroupfs"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

const (
	inspectBound = 2 * time.Minute
	salvageBound = 9 * time.Minute
	// graceBound is what the program gets beyond its own bound.
	graceBound = 5 * time.Second
	// atOnce is how many programs run at a time for one user: they read whole
	// trees, and a user whose repositories hang holds up nobody else.
	atOnce         = 2
	preparedAtOnce = 4
	maxReport      = 1 << 20
	maxStderr      = 4 << 10
	// No leaves of sessions: see cgroupfs.ParseLeafName.
	lookDir    = "appraise-"
	prepareDir = "prepare-"
)

// Options is what an Appraiser needs.
type Options struct {
	Program string // berth-workspace
	UID     uint32 // the daemon's
	Tree    *cgroupfs.Tree
	Dir     *statefs.Dir
	// KeepFree is how many bytes a salvage leaves free in the state directory.
	KeepFree uint64
	// StepLimit bounds one step of a preparation, StepQuiet the time that it may
	// print nothing.
	StepLimit, StepQuiet time.Duration
	// Cache: objects of clones are kept for the next clone of the same.
	Cache  bool
	Logger hclog.Logger
}

// Appraiser runs berth-workspace. It is safe for concurrent use.
type Appraiser struct {
	opts Options
	left []string // cgroups of an earlier daemon's runs
	// keeping is full while objects of a clone are being kept.
	keeping chan struct{}

	mu    sync.Mutex
	slots map[slotKey]chan struct{}
}

// slotKey is whose programs, and of which sort, share a bound.
type slotKey struct {
	uid     uint32
	prepare bool
}

// New returns an Appraiser and notes what an earlier daemon has left; see Sweep.
func New(opts Options) *Appraiser {
	return &Appraiser{opts: opts, left: leftovers(&opts), slots: map[slotKey]chan struct{}{}, keeping: make(chan struct{}, 1)}
}

// slot is the user's tokens. What takes minutes does not hold up what is asked for
// by somebody who waits.
func (a *Appraiser) slot(key slotKey) chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.slots[key] == nil {
		n := atOnce
		if key.prepare {
			n = preparedAtOnce
		}
		a.slots[key] = make(chan struct{}, n)
	}
	return a.slots[key]
}

// Subject is the workspace of a session.
type Subject struct {
	Session  string
	Root     string
	UID, GID uint32
}

// Inspect looks at a workspace. A workspace that is not there holds nothing.
func (a *Appraiser) Inspect(ctx context.Context, s Subject) (*workspace.Report, error) {
	if _, err := os.Lstat(s.Root); errors.Is(err, os.ErrNotExist) {
		return &workspace.Report{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, inspectBound+graceBound)
	defer cancel()
	return a.run(ctx, s, workspace.Request{
		Verb: workspace.VerbInspect, Root: s.Root, Seconds: int(inspectBound / time.Second),
	})
}

// InspectAll is Inspect, and also tells of files that git ignores. A workspace that
// is not there is an error: nothing is known of it.
func (a *Appraiser) InspectAll(ctx context.Context, s Subject) (*workspace.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectBound+graceBound)
	defer cancel()
	return a.run(ctx, s, workspace.Request{
		Verb: workspace.VerbInspect, Root: s.Root, Ignored: true, Seconds: int(inspectBound / time.Second),
	})
}

// Salvage saves what the workspace holds under a name that is used once, and
// returns the directory. One that an earlier call has finished is replaced: the
// workspace may have changed since.
//
// Crash points: what is unfinished has another name and is begun anew.
func (a *Appraiser) Salvage(ctx context.Context, s Subject, name string) (path string, err error) {
	store := a.opts.Dir.Salvages()
	part, err := store.Begin(name, s.UID, s.GID)
	if err != nil {
		return "", err
	}
	defer part.Close()
	ctx, cancel := context.WithTimeout(ctx, salvageBound+graceBound)
	defer cancel()
	report, err := a.run(ctx, s, workspace.Request{
		Verb: workspace.VerbSalvage, Root: s.Root, Out: part.Path(), KeepFree: a.opts.KeepFree, Seconds: int(salvageBound / time.Second),
	})
	if err == nil && report.Error != "" {
		err = errors.New(report.Error)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("saving workspace %q: %w", s.Root, err), part.Abandon())
	}
	return part.Finish(report.Saved)
}

// run runs the program once and returns its report.
func (a *Appraiser) run(ctx context.Context, s Subject, req workspace.Request) (*workspace.Report, error) {
	return a.runIn(ctx, s, req, room{key: slotKey{uid: s.UID}, cgroup: lookDir})
}

// room is where a program runs, beside what all of them have.
type room struct {
	key    slotKey
	cgroup string // the beginning of its cgroup's name
	limits cgroupfs.Limits
	files  []*os.File // from descriptor 3 on
	// gently: the end of its input ends the program, which then ends what it has
	// started in other process groups.
	gently bool
}

func (a *Appraiser) runIn(ctx context.Context, s Subject, req workspace.Request, in room) (*workspace.Report, error) {
	slot := a.slot(in.key)
	select {
	case slot <- struct{}{}:
		defer func() { <-slot }()
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting to work on workspaces: %w", ctx.Err())
	}
	program, err := os.Open(a.opts.Program)
	if err != nil {
		return nil, fmt.Errorf("opening the program that works on workspaces: %w", err)
	}
	defer program.Close()
	leaf, cgroup, err := a.leaf(in.cgroup, s.Session, in.limits)
	if err != nil {
		return nil, err
	}
	if leaf != nil {
		defer a.clear(leaf)
		defer cgroup.Close()
	}
	// By descriptor: the user need not reach the directory that the program is in. It
	// is one that the child is given, since what else is open may be replaced by
	// those before the exec.
	files := append(slices.Clip(in.files), program)
	cmd := exec.CommandContext(ctx, fmt.Sprintf("/proc/self/fd/%d", 2+len(files)))
	cmd.Args = []string{"berth-workspace"}
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = a.attributes(s, cgroup)
	cmd.ExtraFiles = files
	cmd.WaitDelay = graceBound
	// With all that it has started: there may be no cgroup that tells.
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	return converse(cmd, req, in.gently)
}

// attributes make the program the session's user, in its own session and cgroup.
func (a *Appraiser) attributes(s Subject, cgroup *os.File) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if s.UID != a.opts.UID {
		attr.Credential = &syscall.Credential{Uid: s.UID, Gid: s.GID, Groups: []uint32{}}
	}
	if cgroup != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(cgroup.Fd())
	}
	return attr
}

// converse sends the request and keeps the program's input open until it has
// answered: its end would be the program's.
func converse(cmd *exec.Cmd, req workspace.Request, gently bool) (*workspace.Report, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if gently {
		cmd.Cancel = in.Close
	}
	out, diagnostics := workspace.Head{Limit: maxReport}, workspace.Head{Limit: maxStderr}
	cmd.Stdout, cmd.Stderr = &out, &diagnostics
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the program that works on workspaces: %w", err)
	}
	_, writeErr := in.Write(append(body, '\n'))
	err = errors.Join(writeErr, cmd.Wait())
	in.Close() // Wait has closed it already
	if err != nil {
		return nil, fmt.Errorf("working on the workspace: %w%s", err, prefixed(diagnostics.Text))
	}
	var report workspace.Report
	if err := json.Unmarshal(out.Text, &report); err != nil {
		return nil, fmt.Errorf("reading what the program says of the workspace: %w", err)
	}
	return &report, nil
}

func prefixed(text []byte) string {
	if s := strings.TrimSpace(string(text)); s != "" {
		return ": " + s
	}
	return ""
}
