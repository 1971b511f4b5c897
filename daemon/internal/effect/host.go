// Package effect performs what the engine decides: it launches wrappers, runs
// the stop ladder, asks the witnesses, releases sandboxes and erases what a
// deleted session leaves. It implements engine.Effects with the real host:
// cgroups, processes, plugins and directories.
//
// It holds no durable state and decides nothing. Every method is idempotent by
// (session, generation), so that a daemon that died in the middle may do it
// again.
package effect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/daemon/internal/appraise"
	"github.com/berthd/berth/daemon/internal/discover"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/daemon/internal/keep"
	"github.com/berthd/berth/daemon/internal/link"
	"github.com/berthd/berth/daemon/internal/spawn"
	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/daemon/internal/workspace"
	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs"
	"github.com/berthd/berth/statefs/cgroupfs"
	"github.com/berthd/berth/statefs/failpoint"
	"github.com/berthd/berth/statefs/record"
	"github.com/berthd/berth/systemd/scope"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// Providers finds providers; plugins/host.Host is one.
type Providers interface {
	// Provider returns a running provider, or a *sandbox.Error that says why
	// there is none.
	Provider(ctx context.Context, kind string) (sandbox.Provider, error)
}

// Options is what a Host needs.
type Options struct {
	HostID    string
	UID       uint32 // the daemon's
	Dir       *statefs.Dir
	Trees     *cgroupfs.Trees
	Watcher   *spawn.Watcher
	Keeper    *keep.Keeper
	Links     *link.Server
	Providers Providers
	Prober    *evidence.Prober
	Scanner   *discover.Scanner
	Appraiser *appraise.Appraiser
	// Worthless says whether a workspace may be given up for what was found in it,
	// and if not, why.
	Worthless func(*workspace.Report) (ok bool, why []string)
	// WrapPath is the absolute path of berth-wrap, Socket that of the wrapper
	// socket.
	WrapPath string
	Socket   string
	// Launches is how many wrappers are spawned at once; more add only latency.
	Launches       int
	HeartbeatEvery time.Duration
	SpoolFileBytes int64
	SpoolFiles     int
	DrainTimeout   time.Duration
	// KeepGenerations is how many generations' output is kept.
	KeepGenerations int
	// Scopes makes scopes of leaves that are named like ones; nil where none are.
	Scopes Scopes
	// ScopesOnly refuses what cannot have a scope, which else has its leaf alone.
	ScopesOnly bool
	// Grace is the one of sessions that do not name their own.
	Grace time.Duration
	// JournalSocket is where wrappers copy the agents' output to, empty =
	// nowhere, JournalRate how many lines a second each, 0 = all.
	JournalSocket string
	JournalRate   int
	Logger        hclog.Logger
}

// Scopes has the service manager of the system make scopes.
type Scopes interface {
	// Adopt makes the unit around its process, within a bound of its own. After
	// an error the process is in its leaf all the same.
	Adopt(ctx context.Context, u scope.Unit) error
	// Orphaned notes that the directory of a scope was removed although the
	// manager may hold it to run.
	Orphaned(name string)
}

// Host performs effects on this machine. It is safe for concurrent use.
type Host struct {
	opts     Options
	launches chan struct{} // a token per wrapper that may be spawned now
	legacy   atomic.Pointer[map[string]bool]
}

var _ engine.Effects = (*Host)(nil)

// New returns a Host.
func New(opts Options) *Host {
	return &Host{opts: opts, launches: make(chan struct{}, max(opts.Launches, 1))}
}

// NoteLegacy names the sessions of which a scan has seen wrappers of older
// software. Only a stop of such a session pays for a scan to end them.
func (h *Host) NoteLegacy(sessions map[string]bool) { h.legacy.Store(&sessions) }

// Observe asks the witnesses.
func (h *Host) Observe(ctx context.Context, s evidence.Subject, full bool) evidence.Report {
	h.widen(&s)
	if full {
		return h.opts.Prober.Full(ctx, s)
	}
	return h.opts.Prober.Quick(ctx, s)
}

// widen makes a subject that is a whole session be about whichever of its
// leaves is populated: there may be another than the one that its lease names.
func (h *Host) widen(s *evidence.Subject) {
	if s.Instance != "" || h.opts.Trees.Mode() == cgroupfs.None {
		return
	}
	names, err := h.opts.Trees.List()
	if err != nil {
		return // the named leaf is asked, and cannot answer either
	}
	for _, name := range names {
		session, _, ok := cgroupfs.ParseLeafName(name)
		if !ok || session != s.Session {
			continue
		}
		if leaf, err := h.opts.Trees.Open(name); err == nil {
			if populated, err := leaf.Populated(); err != nil || populated {
				s.LeafName, s.LeafPath, s.LeafParentInode, s.Weak = name, leaf.Path(), leaf.ParentInode(), false
				return
			}
		}
	}
}

// Exit reads the exit record of an instance.
func (h *Host) Exit(session string, generation uint64) (wire.Exit, bool) {
	data, err := os.ReadFile(filepath.Join(h.opts.Dir.GenerationDir(session, generation), wire.ExitName))
	if err != nil {
		return wire.Exit{}, false
	}
	file, err := wire.ParseExitFile(data)
	if err != nil || file.Session != session || file.Generation != generation || !file.Exit.Valid() {
		h.opts.Logger.Warn("exit record is not usable", "session", session, "generation", generation, "error", err)
		return wire.Exit{}, false
	}
	return file.Exit, true
}

// Hold watches a process and, with poke, asks it to call home now.
func (h *Host) Hold(id sys.Identity, key engine.WrapperKey, poke bool) error {
	pidfd, kept := h.opts.Keeper.Open(key.Session, key.Generation, id)
	if !kept {
		var err error
		if pidfd, err = sys.OpenVerified(id); err != nil {
			return err
		}
	}
	defer unix.Close(pidfd)
	h.opts.Keeper.Keep(key.Session, key.Generation, pidfd)
	if err := h.opts.Watcher.Add(pidfd, key); err != nil && !errors.Is(err, spawn.ErrWatched) {
		return err
	}
	if !poke {
		return nil
	}
	return sys.SignalPidfd(pidfd, unix.SIGUSR1)
}

// Release removes the instance's leaf and gives its sandbox back.
func (h *Host) Release(ctx context.Context, session string, d record.Debt) error {
	h.opts.Links.Forget(session, d.Generation)
	h.opts.Keeper.Forget(session, d.Generation)
	if err := failpoint.Hit("release.before"); err != nil {
		return err
	}
	for _, name := range []string{cgroupfs.LeafName(session, d.Generation), cgroupfs.ScopeName(session, d.Generation)} {
		if err := h.removeLeaf(ctx, name); err != nil {
			return err
		}
	}
	p, err := h.opts.Providers.Provider(ctx, d.Provider)
	if err != nil {
		return err
	}
	if err := failpoint.Hit("release.provider.before"); err != nil {
		return err
	}
	_, err = p.Release(ctx, sandbox.Handle(d.Handle))
	return errors.Join(err, failpoint.Hit("release.provider.after"))
}

// removeLeaf removes an empty leaf; one that is gone, or that there can be none
// of, is fine.
func (h *Host) removeLeaf(ctx context.Context, name string) error {
	leaf, err := h.opts.Trees.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, cgroupfs.ErrUnavailable):
		return nil
	case err != nil:
		return fmt.Errorf("removing leaf %q: %w", name, err)
	}
	return h.remove(ctx, leaf)
}

// remove removes an empty leaf, or has systemd do it where that has made it a
// scope.
func (h *Host) remove(ctx context.Context, leaf *cgroupfs.Leaf) error {
	overdue := leaf.AwaitRemoval(ctx)
	if err := leaf.Remove(ctx); err != nil {
		return err
	}
	if overdue && h.opts.Scopes != nil {
		h.opts.Scopes.Orphaned(leaf.Name())
	}
	return nil
}

// Inventory lists leaves and generation directories.
func (h *Host) Inventory(ctx context.Context) (engine.Inventory, error) {
	inv := engine.Inventory{Generations: map[string]uint64{}}
	names, err := h.opts.Trees.List()
	if err != nil && !errors.Is(err, cgroupfs.ErrUnavailable) {
		return inv, err
	}
	for _, name := range names {
		session, generation, ok := cgroupfs.ParseLeafName(name)
		if !ok {
			continue
		}
		leaf, err := h.opts.Trees.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return inv, err
		}
		populated, err := leaf.Populated()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return inv, err
		}
		inv.Leaves = append(inv.Leaves, engine.LeafSeen{
			Session: session, Generation: generation, Path: leaf.Path(), Populated: populated,
		})
	}
	if h.opts.Trees.Mode() == cgroupfs.None {
		if inv.Strays, err = h.markers(ctx); err != nil {
			return inv, err
		}
	}
	return inv, h.generations(ctx, inv.Generations)
}

// markers finds the processes of sessions where no leaves tell of them.
func (h *Host) markers(ctx context.Context) ([]engine.StraySeen, error) {
	result, err := h.opts.Scanner.Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("scanning for processes of sessions: %w", err)
	}
	var strays []engine.StraySeen
	for i := range result.Procs {
		if p := &result.Procs[i]; p.Kind == discover.Member && !p.Zombie {
			strays = append(strays, engine.StraySeen{Session: p.Session, PID: p.PID, UID: p.UID})
		}
	}
	return strays, nil
}

// generations fills in the highest generation directory of each session.
func (h *Host) generations(ctx context.Context, highest map[string]uint64) error {
	sessions, err := os.ReadDir(h.opts.Dir.Sessions())
	if err != nil {
		return fmt.Errorf("listing sessions: %w", err)
	}
	for _, entry := range sessions {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !entry.IsDir() { // nothing of ours, and no reason to start nothing
			continue
		}
		generations, err := h.generationsOf(entry.Name())
		if err != nil {
			return err
		}
		for _, g := range generations {
			highest[entry.Name()] = max(highest[entry.Name()], g)
		}
	}
	return nil
}

// generationsOf lists the generations that have a directory, in no order.
func (h *Host) generationsOf(session string) ([]uint64, error) {
	entries, err := os.ReadDir(h.opts.Dir.SessionDir(session))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listing generations: %w", err)
	}
	var generations []uint64
	for _, e := range entries {
		if g, err := strconv.ParseUint(strings.TrimPrefix(e.Name(), "g"), 10, 64); err == nil {
			generations = append(generations, g)
		}
	}
	return generations, nil
}
