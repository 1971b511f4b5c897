package effect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/berthd/berth/daemon/internal/appraise"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/evidence"
)

// Reclaim gives up a workspace: it proves that nothing of the session lives, looks
// into it once more, and takes it out of its place by one rename; what is behind
// that is erased.
//
// Crash points: a rename that was done before the daemon died is found done; what
// is in the trash then goes at the next start.
func (h *Host) Reclaim(ctx context.Context, p engine.ReclaimPlan) (engine.ReclaimResult, error) {
	kept := func(format string, args ...any) (engine.ReclaimResult, error) {
		return engine.ReclaimResult{Kept: fmt.Sprintf(format, args...)}, nil
	}
	p.Subject.Instance, p.Subject.Generation = "", 0
	if report := h.settled(ctx, p.Subject); report.Verdict != evidence.Absent {
		return kept("something of the session may be alive: %s", report.Reason)
	}
	if err := h.opts.Appraiser.Fence(ctx, p.Lease.Session); err != nil {
		return engine.ReclaimResult{}, err
	}
	trash, path := h.opts.Dir.Trash(), p.Lease.Workspace
	result := engine.ReclaimResult{Evidence: "it was moved away before the daemon was restarted"}
	if present(engine.LaunchPlan{Lease: p.Lease}) == nil {
		report, err := h.opts.Appraiser.InspectAll(ctx, appraise.Subject{Session: p.Lease.Session, Root: path, UID: p.Lease.UID, GID: p.Lease.GID})
		if err != nil {
			return kept("it cannot be looked at: %v", err)
		}
		if ok, why := h.opts.Worthless(report); !ok {
			return kept("%s: %s", strings.Join(why, ", "), report.Summary())
		}
		result.Evidence = fmt.Sprintf("repositories: %d; nothing uncommitted, unpushed, stashed or untracked was found", report.Repositories)
	}
	if err := trash.Put(ctx, path, p.Lease.Reclaim); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return engine.ReclaimResult{}, err
	}
	if usage, err := trash.Measure(ctx, p.Lease.Reclaim); err == nil {
		result.Bytes, result.Inodes = usage.Bytes, usage.Inodes
		result.Evidence += fmt.Sprintf("; %d bytes, %d inodes", usage.Bytes, usage.Inodes)
	}
	if err := trash.Purge(ctx, p.Lease.Reclaim); err != nil {
		h.opts.Logger.Warn("a workspace that was given up is not erased yet; the next start tries again", "session", p.Lease.Session, "error", err)
	}
	return result, nil
}
