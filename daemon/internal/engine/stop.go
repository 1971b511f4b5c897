package engine

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// Caller says who asks for something of a session, and as which operation.
type Caller struct {
	Session string
	// UID is whose operation key it is; Any says that the caller may act on
	// sessions of every owner. By names the caller in the audit log.
	UID uint32
	Any bool
	By  string
	// Key may be empty. Digest is that of the canonical request.
	Key, Digest string
}

// operation is the ledger's key of the request.
func (c *Caller) operation(kind string) opKey { return opKey{c.UID, kind, c.Key} }

// StopRequest asks for everything of a session to end.
type StopRequest struct {
	Caller
	Why string
}

// Stop puts the stop on disk and returns; Await tells when it is done. With a
// key, answer is the recorded one of a request that was made before and has
// come to its end, else nil.
func (e *Engine) Stop(ctx context.Context, req StopRequest) (answer []byte, err error) {
	return e.once(ctx, opStop, &req.Caller, func(t *tx, d *draft) error {
		if d.lease.Deletion != nil {
			return deleting(&d.lease)
		}
		t.requestStop(d, lease.Operator, lease.Target{}, req.By, req.Why, "")
		return nil
	})
}

// once carries out a change of an existing session and opens its ledger row, in
// one batch. A repeat changes nothing: it gets the recorded answer, or nil and
// may wait for the same outcome.
func (e *Engine) once(ctx context.Context, kind string, c *Caller, change func(t *tx, d *draft) error) ([]byte, error) {
	return ask(ctx, e, journal.Reserved, func(t *tx, reply func([]byte, error)) {
		answer, err := t.once(kind, c, change)
		t.answer(func() { reply(answer, err) })
	})
}

func (t *tx) once(kind string, c *Caller, change func(t *tx, d *draft) error) ([]byte, error) {
	key := c.operation(kind)
	row, err := t.claim(key, c.Digest)
	if err != nil {
		return nil, err
	}
	if row != nil && row.Done {
		answer, err := replay[json.RawMessage](row)
		return answer, err
	}
	d, err := t.own(c.Session, c.UID, c.Any)
	if err != nil {
		return nil, err
	}
	if row != nil && slices.Contains(d.openKeys, key) {
		return nil, nil
	}
	if err := t.orphaned(row, d.openKeys); err != nil {
		return nil, err
	}
	d.operation = key.key
	if err := change(t, d); err != nil || key.key == "" {
		return nil, err
	}
	if t.operationQuota(row, key) == nil { // an end is never refused for want of a row
		t.open(d, key, c)
	}
	return nil, nil
}

// own returns the draft of a session that the caller may act on.
func (t *tx) own(id string, uid uint32, anyOwner bool) (*draft, error) {
	d := t.draft(id)
	if d == nil {
		if tomb := t.tombstone(id); tomb != nil {
			return nil, deleted(tomb)
		}
		return nil, refusal(codeNotFound, false, "session %q does not exist", id)
	}
	if !anyOwner && d.lease.UID != uid {
		return nil, refusal(codeForbidden, false, "session %q belongs to uid %d", id, d.lease.UID)
	}
	return d, nil
}

// requestStop asks for a stop for a reason. In a state that is stopping
// already it changes nothing, but a quarantined session is looked at once.
func (t *tx) requestStop(d *draft, reason lease.Reason, target lease.Target, by, why, cause string) {
	if d.state.Kind == lease.Quarantined {
		t.e.log.Warn("stop asked for a quarantined session: looking once", "session", d.s.id, "reason", reason.String())
		t.recheck(d)
	}
	t.failStart(d, refusal(codeStartFailed, true, "session %q was stopped while it started (%s)", d.s.id, reason))
	if _, err := t.reduce(d, lease.Event{
		Kind: lease.RequestStop, Target: target, Reason: reason, By: by, Why: why, Error: cause,
	}); err != nil {
		t.e.log.Error("a stop was refused", "session", d.s.id, "reason", reason.String(), "error", err)
	}
}

// startAttempt runs the stop ladder once, after a launch under way has come to
// its cancelled end: what it is about to spawn must be seen.
func (e *Engine) startAttempt(s *session, effect lease.Effect) {
	w := &work{id: effect.AttemptID, done: make(chan struct{})}
	launch, generation := s.launch, effect.Instance.Generation
	plan := StopPlan{
		AttemptID: effect.AttemptID, Subject: e.subject(&s.lease, s.link != nil),
		Whole: effect.Target.Whole(), Grace: e.grace(s.spec), Reason: effect.Reason.String(),
		By: effect.By, Link: s.link,
		Linked: func() Link {
			if v, ok := e.View(s.id); ok {
				return v.Link
			}
			return nil
		},
	}
	w.cancel = e.effect(effect.Deadline-e.opts.Now(), func(ctx context.Context) {
		defer close(w.done)
		result := StopResult{Err: errors.New("the launch does not return")}
		if joined(ctx, launch) {
			result = e.opts.Effects.Stop(ctx, plan)
		}
		exit, known := e.exit(s.id, generation)
		e.post(func(t *tx) { t.attemptEnded(s.id, w, result, exit, known) })
	})
	s.attempt = w
}

// joined waits for a work that was cancelled; false when ctx ends first.
func joined(ctx context.Context, w *work) bool {
	if w == nil {
		return true
	}
	select {
	case <-w.done:
		return true
	case <-ctx.Done():
		return false
	}
}

func (e *Engine) exit(session string, generation uint64) (wire.Exit, bool) {
	if generation == 0 {
		return wire.Exit{}, false
	}
	return e.opts.Effects.Exit(session, generation)
}

// grace is the time between TERM and kill for a session.
func (e *Engine) grace(spec *record.Spec) time.Duration {
	if spec != nil && spec.Grace >= 0 {
		return spec.Grace
	}
	return e.opts.Settings.Grace
}

// attemptEnded takes the result of one stop attempt.
func (t *tx) attemptEnded(id string, w *work, r StopResult, exit wire.Exit, known bool) {
	d := t.draft(id)
	if d == nil {
		return
	}
	t.touch(id)
	t.then(func() {
		if d.s.attempt == w {
			d.s.attempt = nil
		}
		d.s.lastReport = &r.Report
	})
	if known {
		d.exit = &exit
	}
	ev := lease.Event{Kind: lease.AttemptAbsent, AttemptID: w.id}
	if !r.Absent {
		ev.Kind, ev.Error = lease.AttemptNotConfirmed, errorText(r.Err)
	}
	if _, err := t.reduce(d, ev); err != nil {
		t.e.log.Error("the result of a stop attempt was refused", "session", id, "error", err)
	}
}

func errorText(err error) string {
	if err == nil {
		return "absence could not be proven"
	}
	return err.Error()
}

// exitRecord is what is known of how an instance ended. An exit that nobody
// saw is unknown, never 0.
func exitRecord(seen *wire.Exit, ended lease.Effect, wall time.Time) *record.Exit {
	x := &record.Exit{
		Instance: ended.Instance.ID, Generation: ended.Instance.Generation,
		Kind: "unknown", Unknown: "no_exit_record", By: ended.By, Wall: wall,
	}
	if ended.Reason != 0 {
		x.Reason = ended.Reason.String()
	}
	switch {
	case seen != nil:
		x.Kind, x.Code, x.Signal, x.Unknown = seen.Kind, seen.Code, seen.Signal, seen.Unknown
		x.Wall = seen.At
	case ended.Cause == lease.CauseNewEpoch:
		x.Unknown = "host_restarted"
	case ended.Cause == lease.CauseAbandoned:
		x.Unknown = "abandoned"
	case ended.Cause == lease.CauseStopped:
		x.Unknown = "killed_by_stop"
	}
	return x
}
