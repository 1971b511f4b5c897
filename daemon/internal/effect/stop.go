package effect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/berthd/berth/daemon/internal/discover"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/cgroupfs"
	"github.com/berthd/berth/statefs/failpoint"
	"golang.org/x/sys/unix"
)

const (
	// wrapperLeave is how long a wrapper may take, after its agent is gone, to
	// drain the output, write the exit record and leave.
	wrapperLeave = 2 * time.Second
	// wrapperLadder is how long more a wrapper may take where there is no leaf.
	// It knows of descendants that nobody else finds, and on a slow or busy
	// machine each look for them takes long. With the default grace and attempt
	// deadline it leaves the daemon time for what is left.
	wrapperLadder = 20 * time.Second
	// wrapperReach is how long a live wrapper that is not connected is waited
	// for; its own retries are a second apart.
	wrapperReach = 3 * time.Second
	// pollPause is the time between two looks at a wrapper that is leaving.
	pollPause = 5 * time.Millisecond
	// confirmPause is the time between two looks at what was killed.
	confirmPause = 20 * time.Millisecond
)

// Stop runs the ladder: tell the wrapper, TERM what it runs, wait up to the
// grace, kill what it runs, let the wrapper write the exit record, kill the
// leaf, prove absence, remove the leaf.
func (h *Host) Stop(ctx context.Context, p engine.StopPlan) engine.StopResult {
	if p.Whole {
		p.Subject.Instance, p.Subject.Generation = "", 0
	}
	p.Subject.Link = evidence.Unknown // what it was when the attempt began is no evidence of its end
	if err := failpoint.Hit("stop.before"); err != nil {
		return engine.StopResult{Report: h.Observe(ctx, p.Subject, false), Err: err}
	}
	h.announce(&p)
	_ = failpoint.Hit("stop.announced")
	if p.Subject.Weak && (p.Link != nil || h.reach(ctx, &p)) {
		h.leaveToWrapper(ctx, &p)
	}
	leaves, err := h.leavesOf(&p)
	if err != nil {
		return engine.StopResult{Report: h.Observe(ctx, p.Subject, false), Err: err}
	}
	for _, leaf := range leaves {
		if err := h.empty(ctx, leaf, p.Grace); err != nil {
			return engine.StopResult{Report: h.Observe(ctx, p.Subject, false), Err: err}
		}
	}
	_ = failpoint.Hit("stop.emptied")
	report, err := h.confirm(ctx, &p)
	if err != nil {
		return engine.StopResult{Report: report, Err: err}
	}
	for _, leaf := range leaves {
		if err := h.remove(ctx, leaf); err != nil {
			return engine.StopResult{Report: report, Err: fmt.Errorf("removing leaf %q: %w", leaf.Name(), err)}
		}
	}
	_ = failpoint.Hit("stop.removed")
	return engine.StopResult{Absent: true, Report: report}
}

// announce tells the wrapper that it is being stopped, so that the exit record
// says so; without a leaf it also runs the ladder on its own descendants.
func (h *Host) announce(p *engine.StopPlan) {
	if p.Link == nil {
		return
	}
	_ = p.Link.Send(wire.Frame{Kind: wire.KindStop, Stop: &wire.Stop{ // it may be gone
		Reason: p.Reason, By: p.By, Grace: p.Grace, Signal: p.Subject.Weak,
	}})
}

// reach waits, where there is no leaf, for a live wrapper that is not connected:
// it is about to be, and what it runs without a marker would be lost with it.
func (h *Host) reach(ctx context.Context, p *engine.StopPlan) bool {
	return waitFor(ctx, wrapperReach, func(ctx context.Context) error {
		for {
			if p.Link = p.Linked(); p.Link != nil {
				h.announce(p)
				return nil
			}
			if seen, _, err := sys.Observe(p.Subject.Wrapper); err != nil || seen != sys.Alive {
				return errWrapperGone
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pollPause):
			}
		}
	})
}

// errWrapperGone ends the wait for a wrapper.
var errWrapperGone = errors.New("the wrapper is gone")

// leaveToWrapper waits, where there is no leaf, for the wrapper to run the
// ladder on its descendants, which only it can list, and to write the exit
// record. What is left when it is gone, stopped by somebody, or overdue, is
// found by its marker.
func (h *Host) leaveToWrapper(ctx context.Context, p *engine.StopPlan) {
	prompt := time.Now().Add(p.Grace + wrapperLeave)
	waitFor(ctx, p.Grace+wrapperLeave+wrapperLadder, func(ctx context.Context) error {
		for {
			if seen, _, err := sys.Observe(p.Subject.Wrapper); err == nil && seen != sys.Alive {
				return nil
			}
			if time.Now().After(prompt) && standsStill(p.Subject.Wrapper.PID) {
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pollPause):
			}
		}
	})
}

// standsStill reports whether a process has been stopped by a signal or a
// tracer: states T and t of proc_pid_stat(5).
func standsStill(pid int) bool {
	stat, err := sys.ReadStat(pid)
	return err == nil && (stat.State == 'T' || stat.State == 't')
}

// leavesOf opens the leaf that the lease names and, for the whole session,
// every other leaf of it.
func (h *Host) leavesOf(p *engine.StopPlan) ([]*cgroupfs.Leaf, error) {
	if h.opts.Trees.Mode() == cgroupfs.None {
		return nil, nil
	}
	names := map[string]bool{}
	if p.Subject.LeafPath != "" {
		names[leafBase(p.Subject.LeafPath)] = true
	}
	if p.Whole {
		all, err := h.opts.Trees.List()
		if err != nil {
			return nil, fmt.Errorf("listing leaves: %w", err)
		}
		for _, name := range all {
			if session, _, ok := cgroupfs.ParseLeafName(name); ok && session == p.Subject.Session {
				names[name] = true
			}
		}
	}
	var leaves []*cgroupfs.Leaf
	for name := range names {
		leaf, err := h.opts.Trees.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("opening leaf %q: %w", name, err)
		}
		leaves = append(leaves, leaf)
	}
	return leaves, nil
}

func leafBase(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}

// empty ends everything in one leaf.
func (h *Host) empty(ctx context.Context, leaf *cgroupfs.Leaf, grace time.Duration) error {
	if grace > 0 {
		if err := h.term(ctx, leaf, grace); err != nil {
			return err
		}
	}
	if err := failpoint.Hit("stop.kill.before"); err != nil {
		return err
	}
	if err := ignoreGone(leaf.KillWork()); err != nil {
		return fmt.Errorf("killing work: %w", err)
	}
	_ = failpoint.Hit("stop.kill.after")
	if waitFor(ctx, wrapperLeave, leaf.WaitEmpty) {
		return nil
	}
	if err := ignoreGone(leaf.Kill()); err != nil {
		return fmt.Errorf("killing leaf: %w", err)
	}
	if err := ignoreGone(leaf.WaitEmpty(ctx)); err != nil {
		return fmt.Errorf("waiting for leaf %q to empty: %w", leaf.Name(), err)
	}
	return nil
}

// term sends TERM to what the wrapper runs and waits for it up to the grace.
func (h *Host) term(ctx context.Context, leaf *cgroupfs.Leaf, grace time.Duration) error {
	if err := ignoreGone(leaf.Thaw()); err != nil {
		return fmt.Errorf("thawing: %w", err)
	}
	if _, err := leaf.TermWork(ctx); err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.opts.Logger.Debug("not everything could be asked to end", "leaf", leaf.Name(), "error", err)
	}
	waitFor(ctx, grace, leaf.WaitWorkEmpty)
	return nil // also when ctx has ended: the kill is one write
}

// waitFor runs a wait within a bound of its own and reports whether it was met.
func waitFor(ctx context.Context, bound time.Duration, wait func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err := wait(ctx)
	return err == nil || errors.Is(err, fs.ErrNotExist)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// confirm proves absence, and where no leaf holds them together ends, through
// verified pidfds, the session's processes that the scan has found. Where the
// fence alone decides there is no scan.
func (h *Host) confirm(ctx context.Context, p *engine.StopPlan) (evidence.Report, error) {
	if report := h.Observe(ctx, p.Subject, false); report.Verdict == evidence.Absent && !h.hasLegacy(p) {
		return report, nil
	}
	signal := unix.SIGTERM
	started := time.Now()
	for {
		report := h.Observe(ctx, p.Subject, true)
		if report.Verdict == evidence.Absent && len(h.strays(p, &report)) == 0 {
			return report, nil
		}
		if time.Since(started) >= p.Grace {
			signal = unix.SIGKILL
		}
		h.signalStrays(p, &report, signal)
		select {
		case <-ctx.Done():
			return report, fmt.Errorf("proving absence: %s", report.Reason)
		case <-time.After(confirmPause):
		}
	}
}

// strays are the session's processes that no leaf holds: escaped ones, all
// where there is no leaf, and for a whole session those of older software.
func (h *Host) strays(p *engine.StopPlan, r *evidence.Report) []discover.Proc {
	strays := append([]discover.Proc(nil), r.Escaped...)
	if p.Subject.Weak {
		strays = append(strays, r.Members...)
	}
	if p.Whole {
		strays = append(strays, r.Others...)
		for _, proc := range r.Legacy {
			if proc.UID == p.Subject.OwnerUID {
				strays = append(strays, proc)
			}
		}
	}
	return strays
}

// signalStrays signals each stray through a pidfd that was opened first and
// then verified. A wrapper is left alone until it is killed: TERM means nothing
// to it, and it has been told.
func (h *Host) signalStrays(p *engine.StopPlan, r *evidence.Report, signal unix.Signal) {
	boot, err := sys.BootID()
	if err != nil {
		return
	}
	for _, proc := range h.strays(p, r) {
		if proc.Zombie {
			continue
		}
		id := sys.Identity{PID: proc.PID, StartTicks: proc.StartTicks, BootID: boot}
		if err := sys.SignalVerified(id, signal); err != nil {
			h.opts.Logger.Debug("a stray was not signalled", "session", p.Subject.Session, "pid", proc.PID, "error", err)
		}
	}
	if signal == unix.SIGKILL && p.Subject.Weak && p.Subject.Wrapper.PID != 0 {
		_ = sys.SignalVerified(p.Subject.Wrapper, signal) // the next look tells
	}
}

// hasLegacy reports whether wrappers of older software were seen under the
// session's name; only a stop of the whole session ends them.
func (h *Host) hasLegacy(p *engine.StopPlan) bool {
	seen := h.legacy.Load()
	return p.Whole && seen != nil && (*seen)[p.Subject.Session]
}
