package engine

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/statefs/record"
)

// DeleteRequest asks for a session to be gone for good.
type DeleteRequest struct {
	Caller
	// Discard agrees to lose what is in the workspace, Salvage wants it saved first.
	Discard, Salvage bool
}

// Delete puts the intent on disk and returns. From then on the session can
// only end. Await tells when it has; the tombstone is then in the snapshot.
//
// With a key, answer is the recorded one of a request that was made before and
// has come to its end, else nil.
func (e *Engine) Delete(ctx context.Context, req DeleteRequest) (answer []byte, err error) {
	return e.once(ctx, opDelete, &req.Caller, func(t *tx, d *draft) error {
		if d.lease.Deletion == nil {
			t.intend(d, &req, "explicit")
		} else {
			t.hurry(d, &req)
		}
		return nil
	})
}

// intend makes the intent durable and asks for the stop that proves absence,
// also of a session that is vacant: what is deleted is looked at once more.
func (t *tx) intend(d *draft, req *DeleteRequest, reason string) {
	d.lease.Deletion = &record.Deletion{
		Reason: reason, By: req.By, Wall: t.wall, Discard: req.Discard, Salvage: req.Salvage, Step: stepStop,
	}
	t.put(d, "delete_requested", "")
	t.failStart(d, deleting(&d.lease)) // a start that is under way loses, for ever
	t.requestStop(d, lease.SessionDelete, lease.Target{}, req.By, "", "")
}

// hurry makes a deletion that waits try at once, since a client asks again, and
// maybe says now what is to become of what is there.
func (t *tx) hurry(d *draft, req *DeleteRequest) {
	if d.state.Kind == lease.Quarantined {
		t.recheck(d)
	}
	agreed := req.Discard && !d.lease.Deletion.Discard || req.Salvage && !d.lease.Deletion.Salvage
	if agreed || d.lease.Deletion.NextAt > t.now {
		t.deletion(d, func(del *record.Deletion) {
			del.NextAt, del.LastError = 0, ""
			del.Discard, del.Salvage = del.Discard || req.Discard, del.Salvage || req.Salvage
		})
		t.put(d, "delete_requested", "")
	}
}

// deletion changes a copy of the intent: the old one may be published.
func (t *tx) deletion(d *draft, change func(*record.Deletion)) {
	del := *d.lease.Deletion
	change(&del)
	d.lease.Deletion = &del
}

// advanceDeletion moves a deletion on to the step that its lease now allows:
// files wait for the proof of absence and for every provider. The name in the
// trash is on disk before anything gets it, so that a repeated step finds what
// an earlier one has moved, whatever became of the generations meanwhile.
func (t *tx) advanceDeletion(d *draft) {
	del := d.lease.Deletion
	if del == nil || !d.state.Vacant() || del.Trash != "" {
		return
	}
	next := stepTrash
	if len(d.lease.Debts) > 0 {
		next = stepRelease
	}
	if next == stepRelease && del.Step == stepRelease {
		return
	}
	t.deletion(d, func(del *record.Deletion) {
		del.Step = next
		if next == stepTrash {
			del.Trash = trashName(d.s.id, d.state.NextGeneration)
		}
	})
	t.put(d, "delete_step", "next: "+next)
}

// trashName is unique: ids and generations are never used again together.
func trashName(session string, next uint64) string {
	return session + "-" + strconv.FormatUint(next, 10)
}

// startDeletion does the deletion's next step, once it is due.
func (e *Engine) startDeletion(s *session) {
	del := s.lease.Deletion
	if del == nil || s.deleting != nil || !s.state.Vacant() || del.NextAt > e.opts.Now() ||
		del.Trash == "" || s.lease.Reclaim != "" {
		return
	}
	step := del.Step
	w := &work{id: step, done: make(chan struct{})}
	plan := DeletePlan{Session: s.id, Step: step, Lease: s.lease, Subject: e.subject(&s.lease, false)}
	w.cancel = e.effect(deleteBound, func(ctx context.Context) {
		defer close(w.done)
		result, err := e.opts.Effects.Delete(ctx, plan)
		e.post(func(t *tx) { t.deleteStepped(plan, w, result, err) })
	})
	s.deleting = w
}

// deleteStepped takes the result of one step of a deletion.
func (t *tx) deleteStepped(plan DeletePlan, w *work, r DeleteResult, err error) {
	d := t.draft(plan.Session)
	if d == nil {
		return
	}
	t.touch(plan.Session)
	t.then(func() {
		if d.s.deleting == w {
			d.s.deleting = nil
		}
	})
	if err != nil {
		t.deletion(d, func(del *record.Deletion) {
			del.Step, del.LastError = plan.Step, truncate(err.Error(), 1024)
			del.Attempts++
			del.NextAt = t.now + backoff(del.Attempts)
		})
		t.put(d, "delete_held_up", err.Error())
		return
	}
	if plan.Step == stepTrash {
		t.deletion(d, func(del *record.Deletion) {
			del.Step, del.LastError, del.Attempts, del.NextAt = stepPurge, "", 0, 0
			del.Saved = r.Saved
		})
		t.put(d, "delete_trashed", r.Saved)
		return
	}
	t.bury(d, r)
}

// bury replaces the session by its tombstone. The lease goes last, after all
// evidence is in.
func (t *tx) bury(d *draft, r DeleteResult) {
	evidence, err := json.Marshal(r.Report)
	if err != nil {
		t.e.log.Error("evidence cannot be encoded", "session", d.s.id, "error", err)
		evidence = nil
	}
	tomb := &record.Tombstone{
		Session: d.s.id, UID: d.lease.UID, LastGeneration: d.state.NextGeneration - 1, Wall: t.wall, Age: t.e.age(t.now),
		Reason: d.lease.Deletion.Reason, By: d.lease.Deletion.By, Evidence: evidence,
		Saved: d.lease.Deletion.Saved, Abandoned: d.lease.Abandoned,
	}
	t.append(record.TypeTombstone, d.s.id, d.state.NextGeneration, tomb.Append(nil))
	t.event(deletedEvent(tomb))
	if t.tombs == nil {
		t.tombs = map[string]*record.Tombstone{}
	}
	t.tombs[d.s.id] = tomb
	t.complete(d, tomb)
	d.gone = true
	d.lease.ReservedBytes, d.lease.ReservedInodes = 0, 0
	t.touch(d.s.id)
}

// tombstone returns what stays of a deleted session, nil when there is none.
func (t *tx) tombstone(id string) *record.Tombstone {
	if tomb, ok := t.tombs[id]; ok {
		return tomb
	}
	tomb, _ := t.e.snapshot.Load().Tombstones.Get([]byte(id))
	return tomb
}

func deleting(l *record.Lease) *Refusal {
	return refusal(codeDeleting, false, "session %q is being deleted since %s", l.Session,
		l.Deletion.Wall.Format(time.RFC3339)).with(map[string]any{"step": l.Deletion.Step})
}

func deleted(tomb *record.Tombstone) *Refusal {
	return refusal(codeSessionDeleted, false, "session %q was deleted at %s", tomb.Session, tomb.Wall.Format(time.RFC3339))
}

// startRelease asks the providers for what they still owe.
func (e *Engine) startRelease(s *session) {
	if s.releasing || !s.state.Vacant() {
		return
	}
	now := e.opts.Now()
	i := slices.IndexFunc(s.lease.Debts, func(d record.Debt) bool { return d.NextAt <= now })
	if i < 0 {
		return
	}
	debt := s.lease.Debts[i]
	s.releasing = true
	e.effect(releaseBound, func(ctx context.Context) {
		err := e.opts.Effects.Release(ctx, s.id, debt)
		e.post(func(t *tx) { t.released(s.id, debt, err) })
	})
}

// released takes the result of one release.
func (t *tx) released(id string, debt record.Debt, err error) {
	d := t.draft(id)
	if d == nil {
		return
	}
	t.touch(id)
	t.then(func() { d.s.releasing = false })
	debts := slices.Clone(d.lease.Debts)
	i := slices.IndexFunc(debts, func(o record.Debt) bool { return o.Handle == debt.Handle && o.Provider == debt.Provider })
	if i < 0 {
		return
	}
	if err == nil {
		d.lease.Debts = slices.Delete(debts, i, i+1)
		t.put(d, "released", "")
		return
	}
	debts[i].Attempts++
	debts[i].LastError = truncate(err.Error(), 1024)
	debts[i].NextAt = t.now + backoff(debts[i].Attempts)
	d.lease.Debts = debts
	t.put(d, "release_held_up", err.Error())
}

// expire drops ledger rows and tombstones that are old enough. Before a
// tombstone goes the host's generation floor rises above it, so that the id
// can never see one of its generations again.
func (t *tx) expire() {
	snapshot, settings, age := t.e.snapshot.Load(), t.e.opts.Settings, t.e.age(t.now)
	snapshot.operations.Root().Walk(func(_ []byte, op *record.Operation) bool {
		if age-op.Age > settings.OperationFor {
			t.dropOperation(opKey{op.UID, op.Kind, op.Key}, op.Session)
		}
		return false
	})
	host := t.hostNow()
	var old []*record.Tombstone
	snapshot.Tombstones.Root().Walk(func(_ []byte, tomb *record.Tombstone) bool {
		if age-tomb.Age > max(settings.TombstoneFor, settings.OperationFor) {
			old = append(old, tomb)
			host.GenerationFloor = max(host.GenerationFloor, tomb.LastGeneration)
		}
		return false
	})
	t.putHost(host) // with its age, for the next daemon. The floor first: a torn batch must not forget and keep it low
	for _, tomb := range old {
		t.append(record.TypeForget, tomb.Session, tomb.LastGeneration+1, nil)
		if t.tombs == nil {
			t.tombs = map[string]*record.Tombstone{}
		}
		t.tombs[tomb.Session] = nil
	}
}
