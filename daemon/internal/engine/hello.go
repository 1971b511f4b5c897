package engine

import (
	"context"
	"errors"
	"time"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/journal"
)

// Hello is a wrapper that has proven who it is: the link server has checked
// its token and its process against the published lease.
type Hello struct {
	Key          WrapperKey
	Identity     sys.Identity
	Status       wire.Status
	Protocol     int
	RecipeDigest string // empty when this daemon has not launched it
	TokenHash    string // of the token that it has shown
	Link         Link
}

// ErrNotExpected refuses a hello of an instance that its session's lease does
// not name. The wrapper keeps trying; the lease decides its fate.
var ErrNotExpected = errors.New("the session's lease does not name this instance")

// Hello takes a wrapper's connection. When it returns nil the instance is
// verified on disk, if it was not before, and its link is the session's.
func (e *Engine) Hello(ctx context.Context, h Hello) error {
	_, err := ask(ctx, e, journal.Reserved, func(t *tx, reply func(struct{}, error)) {
		err := t.hello(&h)
		t.answer(func() { reply(struct{}{}, err) })
	})
	return err
}

func (t *tx) hello(h *Hello) error {
	instance := lease.Instance{ID: h.Key.Instance, Generation: h.Key.Generation}
	d := t.draft(h.Key.Session)
	if d == nil || d.state.Instance != instance {
		return ErrNotExpected
	}
	switch {
	case d.state.Kind == lease.Starting && h.Status.StartError != "":
		t.startFailed(d, refusal(codeStartFailed, false, "starting the command: %s", h.Status.StartError))
	case d.state.Kind == lease.Starting:
		t.verify(d, h)
	case d.state.Kind == lease.Ready: // the record that a command is active with its verified start was lost
		t.mustReduce(d, lease.Event{Kind: lease.Accepted, Instance: instance})
	case d.state.Owned() && d.state.LinkLostAt != 0:
		t.mustReduce(d, lease.Event{Kind: lease.LinkRegained, Instance: instance})
	}
	if d.state.Owned() && d.lease.Wrapper.TokenHash == "" && h.TokenHash != "" {
		t.introduced(d, h)
	}
	t.touch(d.s.id)
	t.then(func() { t.e.takeLink(d.s, h) })
	return nil
}

// introduced completes the record of a wrapper that an operator has adopted by
// its process, since its record was lost: from now on its token counts.
func (t *tx) introduced(d *draft, h *Hello) {
	w := &d.lease.Wrapper
	w.TokenHash, w.Protocol, w.AgentPID = h.TokenHash, h.Protocol, h.Status.AgentPID
	t.put(d, lease.LinkRegained.String(), "")
}

// verify makes the instance the session's running one. A command is active
// from its verified start: its operation is its first message.
func (t *tx) verify(d *draft, h *Hello) {
	w := &d.lease.Wrapper
	w.PID, w.StartTicks = h.Identity.PID, h.Identity.StartTicks
	w.PidfdInode, w.BootID = h.Identity.PidfdInode, h.Identity.BootID
	w.Protocol, w.AgentPID = h.Protocol, h.Status.AgentPID
	if h.RecipeDigest != "" {
		w.RecipeDigest = h.RecipeDigest
	}
	if d.spec != nil && d.spec.Workspace == "" {
		d.lease.WorkspaceMade = true
	}
	instance := d.state.Instance
	t.mustReduce(d, lease.Event{Kind: lease.Verified, Instance: instance})
	t.mustReduce(d, lease.Event{Kind: lease.Accepted, Instance: instance})
	t.finishStart(d, started(d), nil)
}

// mustReduce applies an event that the table cannot refuse in this state.
func (t *tx) mustReduce(d *draft, ev lease.Event) {
	if _, err := t.reduce(d, ev); err != nil {
		t.e.log.Error("a lease event was refused", "session", d.s.id, "refused", ev.Kind.String(), "error", err)
	}
}

// takeLink makes the connection the session's own and watches the process.
func (e *Engine) takeLink(s *session, h *Hello) {
	if old := s.link; old != nil && old != h.Link {
		e.effects.Go(func() { _ = old.Close() }) // replaced by the newer connection
	}
	s.link, s.status, s.linkDownAt = h.Link, h.Status, 0
	if s.adoption != "" {
		e.setAdoption(s, Adopted)
	}
	e.hold(s, h.Identity)
}

// hold watches the wrapper's process for its end.
func (e *Engine) hold(s *session, id sys.Identity) {
	key := s.instance()
	if s.heldFor == key {
		return
	}
	if err := e.opts.Effects.Hold(id, key, false); err != nil {
		// It has ended already, or cannot be watched: look at the witnesses.
		s.lookAt = e.opts.Now()
		return
	}
	s.heldFor = key
}

// silentWrapper is one that is there and has not called home.
type silentWrapper struct {
	id  sys.Identity
	key WrapperKey
}

// poke has the wrapper's process watched and asked to call home, see callHome.
func (e *Engine) poke(s *session, id sys.Identity) {
	s.heldFor = s.instance()
	e.silent = append(e.silent, silentWrapper{id, s.heldFor})
}

// callHome watches and asks those that poke has named. After a restart that is
// every wrapper of the host, so it is an effect: what is known of them is
// published first, and their hellos do not hold up the loop.
func (e *Engine) callHome() {
	silent := e.silent
	if e.silent = nil; len(silent) == 0 {
		return
	}
	e.effect(observeBound+time.Duration(len(silent))*10*time.Millisecond, func(context.Context) {
		for _, w := range silent {
			if err := e.opts.Effects.Hold(w.id, w.key, true); err != nil {
				e.post(func(t *tx) { t.notHeld(w.key) })
			}
		}
	})
}

// notHeld looks at the witnesses of a wrapper that has ended meanwhile, or that
// cannot be watched.
func (t *tx) notHeld(key WrapperKey) {
	d := t.draft(key.Session)
	if d == nil {
		return
	}
	t.touch(key.Session)
	t.then(func() {
		if d.s.heldFor == key {
			d.s.heldFor, d.s.lookAt = WrapperKey{}, t.now
		}
	})
}

// LinkDown tells that a wrapper's connection has ended. It is no verdict.
func (e *Engine) LinkDown(key WrapperKey, link Link) {
	e.post(func(t *tx) {
		d := t.draft(key.Session)
		if d == nil || d.s.link != link {
			return
		}
		if d.state.Owned() {
			t.mustReduce(d, lease.Event{Kind: lease.LinkLost, Instance: d.state.Instance})
		}
		t.touch(key.Session)
		t.then(func() {
			if d.s.link == link {
				d.s.link, d.s.linkDownAt, d.s.lookAt = nil, t.now, t.now
			}
		})
	})
}

// Exited tells that a held process has ended. Events only trigger: the
// witnesses decide what it means.
func (e *Engine) Exited(key WrapperKey) {
	e.post(func(t *tx) {
		d := t.draft(key.Session)
		if d == nil || d.s.instance() != key || !d.state.Owned() {
			return
		}
		t.touch(key.Session)
		t.then(func() { t.e.look(d.s, false) })
	})
}
