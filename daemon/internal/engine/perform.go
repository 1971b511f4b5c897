package engine

import (
	"context"
	"errors"

	"github.com/berthd/berth/daemon/internal/lease"
)

// perform starts one effect of a lease. The state that asks for it is on disk.
func (e *Engine) perform(s *session, effect lease.Effect) {
	switch effect.Kind {
	case lease.Launch:
		e.startLaunch(s, effect)
	case lease.CancelLaunch:
		if s.launch != nil {
			s.launch.cancel()
		}
	case lease.Verify:
		e.setAdoption(s, Reconciling)
		e.look(s, false)
	case lease.BeginAttemptWork:
		e.startAttempt(s, effect)
	case lease.CancelAttempt:
		if s.attempt != nil {
			s.attempt.cancel()
		}
	case lease.Recheck:
		e.look(s, true)
	case lease.Vacated:
		e.vacate(s)
	}
}

// enact starts what a vacant session still owes, and what waits for it.
func (e *Engine) enact(s *session) {
	e.startRelease(s)
	e.startReclaim(s)
	e.startDeletion(s)
	if len(s.parked) > 0 && s.adoption != Reconciling && s.adoption != Present {
		e.pending = append(e.pending, s.parked...)
		s.parked = nil
	}
}

// vacate lets go of what was held for the instance that is gone.
func (e *Engine) vacate(s *session) {
	e.setAdoption(s, "")
	s.heldFor, s.lookAt, s.linkDownAt = WrapperKey{}, 0, 0
	if s.link != nil {
		link := s.link
		s.link = nil
		e.effects.Go(func() { _ = link.Close() }) // the peer is dead; nothing is lost
	}
}

// startLaunch launches the instance that has just been allocated.
func (e *Engine) startLaunch(s *session, effect lease.Effect) {
	key := WrapperKey{s.id, effect.Instance.ID, effect.Instance.Generation}
	plan := LaunchPlan{Key: key, Lease: s.lease, Spec: *s.spec, Token: s.token, FirstUse: s.firstUse}
	plan.Stepped = func(ctx context.Context, r StepResult) error { return e.stepped(ctx, key, r) }
	s.token = ""
	w := &work{id: key.Instance, done: make(chan struct{})}
	w.cancel = e.effect(effect.Deadline-e.opts.Now(), func(ctx context.Context) {
		err := e.opts.Effects.Launch(ctx, plan)
		close(w.done)
		e.post(func(t *tx) { t.launched(key, w, err) })
	})
	s.launch = w
}

// launched takes the end of a launch; a good one is only a step, the wrapper's
// hello is what counts.
func (t *tx) launched(key WrapperKey, w *work, err error) {
	d := t.draft(key.Session)
	if d == nil {
		return
	}
	t.touch(key.Session)
	t.then(func() {
		if d.s.launch == w {
			d.s.launch = nil
			d.s.linkDownAt = t.now // from here on the wrapper's silence counts
			if d.state.Kind == lease.Starting {
				d.s.lookAt = t.now + helloPatience // it may have ended before this was known
			}
		}
	})
	if err == nil || d.state.Instance != (lease.Instance{ID: key.Instance, Generation: key.Generation}) {
		return
	}
	t.startFailed(d, err)
}

// startFailed ends the start of a new instance: the caller is told why, and
// the instance is stopped, since some of it may exist.
func (t *tx) startFailed(d *draft, err error) {
	if d.state.Kind != lease.Starting {
		return
	}
	var failure *Refusal
	if !errors.As(err, &failure) {
		failure = refusal(codeStartFailed, false, "session %q cannot start: %v", d.s.id, err).because(err)
	}
	t.finishStart(d, Started{}, failure)
	if _, err := t.reduce(d, lease.Event{
		Kind: lease.RequestStop, Reason: lease.StartupFailed,
		Target: lease.Target{Instance: d.state.Instance}, Error: failure.Message,
	}); err != nil {
		t.e.log.Error("a failed start cannot be stopped", "session", d.s.id, "error", err)
	}
}

// setAdoption moves a session's adoption on and keeps the count of those that
// are not settled.
func (e *Engine) setAdoption(s *session, a Adoption) {
	e.unsettled += unsettled(a) - unsettled(s.adoption)
	s.adoption = a
}

func unsettled(a Adoption) int {
	if a == Reconciling || a == Present {
		return 1
	}
	return 0
}
