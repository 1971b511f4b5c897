package effect

import (
	"context"
	"fmt"
	"time"

	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/cgroupfs"
	"github.com/berthd/berth/systemd/scope"
)

const (
	// wrapperTasks and wrapperMemory are what a scope may hold beyond the limits
	// of the work in it: a wrapper has some ten threads and needs a few MiB.
	wrapperTasks  = 64
	wrapperMemory = 64 << 20
)

// fence completes what holds the parked wrapper, sets the limits, and proves
// that the wrapper is in it. Nothing of the session runs before that.
func (h *Host) fence(ctx context.Context, p engine.LaunchPlan, c sandbox.Limits, at berth) error {
	managed, err := h.enclose(ctx, p, c, at)
	if err != nil {
		return err
	}
	// Where version 1 has the controllers only systemd reaches them.
	if !managed || h.opts.Trees.Mode() != cgroupfs.Hybrid {
		h.limit(p.Key.Session, at.leaf, c)
	}
	found, err := h.opts.Trees.PathOf(at.parked.Identity.PID)
	if err != nil {
		return fmt.Errorf("verifying the wrapper's leaf: %w", err)
	}
	if found != at.leaf.WrapPath() {
		return fmt.Errorf("verifying the wrapper's leaf: it is in %q, not in %q", found, at.leaf.WrapPath())
	}
	return nil
}

// enclose has systemd make a scope of a leaf that is named like one, with the
// wrapper in the leaf itself, and then moves the wrapper to where it stays. The
// leaf is the same fence when that cannot be had: the session runs in it, unless
// scopes are insisted on. managed says that there is a scope.
func (h *Host) enclose(ctx context.Context, p engine.LaunchPlan, c sandbox.Limits, at berth) (managed bool, err error) {
	if !at.leaf.IsScope() {
		if h.opts.ScopesOnly {
			return false, noScope(p.Key.Session, nil)
		}
		return false, nil
	}
	err = h.opts.Scopes.Adopt(ctx, h.unit(p, c, at))
	switch {
	case ctx.Err() != nil:
		return false, fmt.Errorf("making a scope: %w", ctx.Err())
	case err != nil && h.opts.ScopesOnly:
		return false, noScope(p.Key.Session, err)
	}
	if err := at.leaf.Settle(at.parked.Identity.PID); err != nil {
		return false, fmt.Errorf("moving the wrapper within its leaf: %w", err)
	}
	return err == nil, nil
}

// noScope refuses a start that would have a leaf only.
func noScope(session string, cause error) error {
	r := &engine.Refusal{
		Code: engine.Code(rpc.CodeDegraded), Retryable: true,
		Message: fmt.Sprintf("session %q cannot have a scope of systemd's now, and leaves = \"scope\" allows nothing else", session),
	}
	if cause != nil {
		r.Message += ": " + cause.Error()
	}
	return r
}

// unit is the scope of an instance. Its limits are those of the work in it, and
// room for the wrapper.
func (h *Host) unit(p engine.LaunchPlan, c sandbox.Limits, at berth) scope.Unit {
	grace := p.Spec.Grace
	if grace < 0 {
		grace = h.opts.Grace
	}
	u := scope.Unit{
		Name: at.leaf.Name(), Slice: Slice, PID: at.parked.Identity.PID,
		Description: fmt.Sprintf("berth session %s, generation %d", p.Key.Session, p.Key.Generation),
		StopTimeout: grace + wrapperLeave, CPUPercent: c.CPUPercent,
	}
	if c.Processes != 0 {
		u.Tasks = c.Processes + wrapperTasks
	}
	if c.MemoryBytes != 0 {
		u.MemoryBytes = c.MemoryBytes + wrapperMemory
	}
	return u
}

// Slice is the unit that all scopes lie in.
const Slice = "berth.slice"

// limit sets the recipe's limits on the leaf and logs those that this host
// cannot set there.
func (h *Host) limit(session string, leaf *cgroupfs.Leaf, c sandbox.Limits) {
	unapplied := leaf.SetLimits(cgroupfs.Limits{
		PidsMax: c.Processes, MemoryMaxBytes: c.MemoryBytes,
		CPUMax: time.Duration(c.CPUPercent) * cgroupfs.CPUPeriod / 100,
	})
	for _, u := range unapplied {
		h.opts.Logger.Warn("a limit could not be set on the leaf", "session", session, "file", u.File, "error", u.Err)
	}
}
