package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// boot is the boot that the boot clock counts from.
func (e *Engine) boot() string {
	boot, _, _ := strings.Cut(e.opts.Epoch, ":")
	return boot
}

// ReleasedFor is how long ago a session was last released, by the journal and the
// boot clock; ok is false for one that never was. A release in another boot is at
// least as old as this one.
func (e *Engine) ReleasedFor(l *record.Lease) (age time.Duration, ok bool) {
	switch {
	case l.ReleasedWall.IsZero():
		return 0, false
	case l.ReleasedBoot == e.boot():
		return e.opts.Now() - l.ReleasedAt, true
	}
	return e.opts.Now(), true
}

// Reclaimed is what has come of giving up a workspace.
type Reclaimed struct {
	// Gone: it is. If not, something spoke against it.
	Gone bool
	// Bytes and Inodes are what it took.
	Bytes, Inodes uint64
}

// Reclaim gives up the workspace of a vacant session that berth has made and can
// make again; the session lives on. why is the decision with its numbers. The
// errors are *Refusal where the session is not in a state for it.
//
// Crash points: (1) once the intent is on disk, a start is refused and the effect
// is done again after a restart; (2) the workspace leaves its place by one rename,
// which is found done; (3) what is in the trash is erased by whoever comes next.
func (e *Engine) Reclaim(ctx context.Context, session, why string) (Reclaimed, error) {
	return ask(ctx, e, journal.Reserved, func(t *tx, reply func(Reclaimed, error)) {
		d := t.draft(session)
		if err := reclaimable(d, session); err != nil {
			t.answer(func() { reply(Reclaimed{}, err) })
			return
		}
		d.lease.Reclaim = fmt.Sprintf("%s-%d-room", session, d.state.NextGeneration)
		d.note = why
		t.put(d, "workspace_reclaim", why)
		t.then(func() { d.s.reclaimed = append(d.s.reclaimed, reply) })
	})
}

func reclaimable(d *draft, session string) error {
	switch {
	case d == nil:
		return refusal(codeNotFound, false, "session %q does not exist", session)
	case !d.state.Vacant() || len(d.lease.Debts) > 0 || d.lease.Deletion != nil || d.lease.Unreadable != "" || d.lease.Reclaim != "":
		return refusal(codeCleanupPending, true, "session %q is not at rest", session)
	case !d.lease.WorkspaceMade || d.spec == nil || d.spec.Source == nil || d.spec.Pinned:
		return refusal(codeInvalid, false, "the workspace of session %q is not one that can be made again", session)
	}
	return nil
}

// startReclaim gives up the workspace that the lease says is to go.
func (e *Engine) startReclaim(s *session) {
	if s.lease.Reclaim == "" || s.reclaiming || !s.state.Vacant() {
		return
	}
	s.reclaiming = true
	plan := ReclaimPlan{Lease: s.lease, Subject: e.subject(&s.lease, false)}
	e.effect(reclaimBound, func(ctx context.Context) {
		result, err := e.opts.Effects.Reclaim(ctx, plan)
		if err != nil {
			result.Kept = err.Error()
		}
		e.post(func(t *tx) { t.reclaimed(s.id, plan.Lease.Reclaim, result) })
	})
}

// reclaimed takes the end of it.
func (t *tx) reclaimed(id, name string, r ReclaimResult) {
	d := t.draft(id)
	if d == nil || d.lease.Reclaim != name {
		return
	}
	d.lease.Reclaim = ""
	if r.Kept != "" {
		d.note = truncate(r.Kept, detailMax)
		t.put(d, "workspace_kept", d.note)
	} else {
		d.note = truncate(r.Evidence, detailMax)
		d.lease.WorkspaceMade, d.lease.Preparation = false, &record.Preparation{Again: true}
		t.put(d, "workspace_reclaimed", d.note)
	}
	t.then(func() {
		waiting := d.s.reclaimed
		d.s.reclaiming, d.s.reclaimed = false, nil
		t.answer(func() {
			for _, reply := range waiting {
				reply(Reclaimed{r.Kept == "", r.Bytes, r.Inodes}, nil)
			}
		})
	})
}
