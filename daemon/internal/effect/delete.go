package effect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/berthd/berth/daemon/internal/appraise"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/statefs/failpoint"
)

// Delete does one step of a deletion. Both steps look at the witnesses first:
// no file of a session goes while anything of it may live.
//
// Crash points: a rename that was done before the daemon died is found done; a
// purge goes on where it stopped.
func (h *Host) Delete(ctx context.Context, p engine.DeletePlan) (engine.DeleteResult, error) {
	p.Subject.Instance, p.Subject.Generation = "", 0
	if err := failpoint.Hit("delete.before"); err != nil {
		return engine.DeleteResult{}, err
	}
	report := h.settled(ctx, p.Subject)
	if report.Verdict != evidence.Absent {
		return engine.DeleteResult{}, fmt.Errorf("proving absence before deleting files: %s", report.Reason)
	}
	if err := h.opts.Appraiser.Fence(ctx, p.Session); err != nil {
		return engine.DeleteResult{}, fmt.Errorf("proving absence before deleting files: %w", err)
	}
	result, name := engine.DeleteResult{Report: report}, p.Lease.Deletion.Trash
	if p.Step == "trash" {
		var err error
		result.Saved, err = h.trash(ctx, p, name)
		return result, err
	}
	if err := failpoint.Hit("delete.purge.before"); err != nil {
		return result, err
	}
	return result, errors.Join(
		ignoreGone(h.opts.Dir.Trash().Purge(ctx, name+".workspace")),
		ignoreGone(h.opts.Dir.Trash().Purge(ctx, name+".session")),
		failpoint.Hit("delete.purged"),
	)
}

// settled is a quick look, and a full one where the quick one cannot tell.
func (h *Host) settled(ctx context.Context, s evidence.Subject) evidence.Report {
	report := h.Observe(ctx, s, false)
	if report.Verdict != evidence.Absent {
		report = h.Observe(ctx, s, true)
	}
	return report
}

// trash renames away what the session has: the workspace that berth made for
// it, and the directory of its generations. It returns where work was saved.
func (h *Host) trash(ctx context.Context, p engine.DeletePlan, name string) (saved string, err error) {
	t := h.opts.Dir.Trash()
	if p.Lease.WorkspaceMade || p.Lease.Workspace == h.opts.Dir.WorkspaceDir(p.Session) {
		if saved, err = h.keepWork(ctx, p, name); err != nil {
			return "", err
		}
		if err := t.Put(ctx, p.Lease.Workspace, name+".workspace"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("moving the workspace to the trash: %w", err)
		}
	}
	if err := failpoint.Hit("delete.workspace.trashed"); err != nil {
		return "", err
	}
	if err := t.Put(ctx, h.opts.Dir.SessionDir(p.Session), name+".session"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("moving the session's directory to the trash: %w", err)
	}
	return saved, failpoint.Hit("delete.trashed")
}

// keepWork refuses a workspace that holds work, or saves that, unless the client
// has agreed to lose it. The api asked before the intent was put on disk; the
// agent went on working until it was stopped.
func (h *Host) keepWork(ctx context.Context, p engine.DeletePlan, name string) (saved string, err error) {
	d := p.Lease.Deletion
	if d == nil || d.Discard {
		return "", nil
	}
	subject := appraise.Subject{Session: p.Session, Root: p.Lease.Workspace, UID: p.Lease.UID, GID: p.Lease.GID}
	report, err := h.opts.Appraiser.Inspect(ctx, subject)
	_ = failpoint.Hit("delete.inspected")
	switch {
	case err != nil:
		return "", fmt.Errorf("looking for work in the workspace (delete again with discard to lose it): %w", err)
	case report.Clean(): // or gone: it was saved and trashed before the daemon died
		if path, ok := h.opts.Dir.Salvages().Find(name); ok {
			return path, nil
		}
		return "", nil
	case d.Salvage:
		saved, err := h.opts.Appraiser.Salvage(ctx, subject, name)
		return saved, errors.Join(err, failpoint.Hit("delete.salvaged"))
	}
	return "", fmt.Errorf("workspace %q holds work: %s; delete again with salvage to save it, or with discard to lose it",
		p.Lease.Workspace, report.Summary())
}
