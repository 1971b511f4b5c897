package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/rpc/wire"
)

// sighting is one look at the witnesses of a session.
type sighting struct {
	s         *session
	key       WrapperKey
	attemptID string // the recheck's, see lease.Recheck
	subject   evidence.Subject
	full      bool
	// launchOver: no launch of the session was under way when the look began.
	launchOver bool

	report evidence.Report
	exit   wire.Exit
	ended  bool // exit is the instance's exit record
}

// look asks the witnesses of one session, in a goroutine of its own.
func (e *Engine) look(s *session, full bool) {
	if s.looking {
		s.lookAgain = true
		return
	}
	s.looking, s.lookAt = true, 0
	look := e.sight(s, full)
	e.effect(observeBound, func(ctx context.Context) {
		e.observe(ctx, look)
		e.post(func(t *tx) { t.observed(look) })
	})
}

func (e *Engine) sight(s *session, full bool) *sighting {
	return &sighting{
		s: s, key: s.instance(), attemptID: s.state.Stop.AttemptID, full: full,
		subject: e.subject(&s.lease, s.link != nil), launchOver: s.launch == nil,
	}
}

// observe fills in what the witnesses answer, and the exit record of a wrapper
// that is gone.
func (e *Engine) observe(ctx context.Context, look *sighting) {
	look.report = e.opts.Effects.Observe(ctx, look.subject, look.full)
	if wrapperGone(&look.report) {
		look.exit, look.ended = e.exit(look.s.id, look.key.Generation)
	}
}

// wrapperGone reports whether the wrapper itself has ended, whatever it has
// left behind.
func wrapperGone(r *evidence.Report) bool {
	return r.Verdict == evidence.Absent || r.Alive && processGone(r)
}

// processGone reports whether the wrapper's process is proven dead, which says
// nothing of what it ran.
func processGone(r *evidence.Report) bool {
	for _, w := range r.Witnesses {
		if w.Name == evidence.Pidfd {
			return w.Answer == evidence.Absent
		}
	}
	return false
}

// relist asks the witnesses of every owned session in one worker: events may
// be lost, the truth is asked again. Only what is news comes back.
func (e *Engine) relist() {
	e.nextRelist = e.opts.Now() + e.opts.Settings.RelistEvery
	if e.relisting {
		return
	}
	var looks []*sighting
	for _, s := range e.sessions {
		if s.state.Owned() && s.launch == nil && !s.looking {
			looks = append(looks, e.sight(s, false))
		}
	}
	if len(looks) == 0 {
		return
	}
	e.relisting = true
	e.lookAtAll(looks, 1, func(look *sighting) bool {
		return look.report.Verdict != evidence.Present || wrapperGone(&look.report)
	})
}

// lookAtAll observes all sightings with a few workers and posts those that are
// news as one result.
func (e *Engine) lookAtAll(looks []*sighting, workers int, news func(*sighting) bool) {
	e.effect(observeBound+time.Duration(len(looks))*10*time.Millisecond, func(ctx context.Context) {
		next := make(chan *sighting)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for look := range next {
					e.observe(ctx, look)
				}
			})
		}
		for _, look := range looks {
			next <- look
		}
		close(next)
		wg.Wait()
		e.post(func(t *tx) {
			t.then(func() { e.relisting = false })
			t.answer(func() { e.lookedOnce.Do(func() { close(e.looked) }) })
			for _, look := range looks {
				if news(look) {
					t.observed(look)
				}
			}
		})
	})
}

// Looked is closed once every session of an earlier daemon has been looked at
// for the first time. Whoever lets wrappers call before that makes the looks
// wait for a thousand hellos.
func (e *Engine) Looked() <-chan struct{} { return e.looked }

// observed takes one look at the witnesses.
func (t *tx) observed(look *sighting) {
	d := t.draft(look.s.id)
	if d == nil {
		return
	}
	t.touch(d.s.id)
	t.then(func() {
		d.s.looking = false
		d.s.lastReport = &look.report
		if d.s.lookAgain {
			d.s.lookAgain, d.s.lookAt = false, t.now
		}
	})
	switch {
	case d.state.Kind == lease.Quarantined:
		t.rechecked(d, look)
	case !d.state.Owned() || d.s.instance() != look.key:
	case look.report.Verdict == evidence.Absent:
		t.gone(d, look)
	case wrapperGone(&look.report):
		t.leftovers(d, look)
	case look.report.Verdict == evidence.Present:
		t.present(d, look)
	default:
		t.unknown(d, look)
	}
}

// rechecked settles a quarantined session that was looked at.
func (t *tx) rechecked(d *draft, look *sighting) {
	ev := lease.Event{
		Kind: lease.RecheckDone, AttemptID: look.attemptID,
		Instance: lease.Instance{ID: look.key.Instance, Generation: look.key.Generation},
		Error:    fmt.Sprintf("looked again: %s", look.report.Verdict),
	}
	if look.report.Verdict == evidence.Absent && look.full {
		ev.Kind = lease.RecheckAbsent
		if look.ended {
			d.exit = &look.exit
		}
	}
	t.mustReduce(d, ev)
}

// gone settles an instance that has ended and left nothing.
func (t *tx) gone(d *draft, look *sighting) {
	if look.ended {
		d.exit = &look.exit
	}
	if !look.launchOver || d.s.launch != nil {
		return
	}
	t.failStart(d, refusal(codeStartFailed, true, "the wrapper of session %q ended before it was verified", d.s.id))
	t.mustReduce(d, lease.Event{Kind: lease.OwnedAbsent, Instance: d.state.Instance, AbsenceVerified: true})
}

// emptyPatience is how long a leaf may say that something lives in it after its
// wrapper's end was seen: the kernel tells that before it takes the wrapper from
// the leaf's count.
const emptyPatience = 50 * time.Millisecond

// leftovers stops what an instance has left behind whose wrapper has ended.
func (t *tx) leftovers(d *draft, look *sighting) {
	if d.s.leftFor != look.key {
		t.then(func() { d.s.leftFor, d.s.lookAt = look.key, t.now+emptyPatience })
		return
	}
	if look.ended {
		d.exit = &look.exit
	}
	t.failStart(d, refusal(codeStartFailed, true, "the wrapper of session %q ended before it was verified", d.s.id))
	t.mustReduce(d, lease.Event{
		Kind: lease.RequestStop, Reason: lease.TerminalEnded, Target: lease.Target{Instance: d.state.Instance},
		Error: "the wrapper has ended and left processes",
	})
}

// present notes a wrapper that is there, watches it and asks it to call home.
func (t *tx) present(d *draft, look *sighting) {
	t.then(func() {
		s, e := d.s, t.e
		if s.link != nil {
			return
		}
		silentFor := t.now - s.linkDownAt
		switch {
		case s.adoption == Reconciling:
			e.setAdoption(s, Present)
		case s.adoption == Present && silentFor >= e.opts.Settings.AdoptPatience:
			e.setAdoption(s, Unknown)
		}
		if look.report.Wrapper != nil {
			e.poke(s, *look.report.Wrapper)
		}
		s.lookAt = t.now + e.opts.Settings.AdoptPatience
	})
}

// unknown notes that the witnesses cannot answer, and looks again: at once and
// at all of them where the wrapper is dead and only the scan can tell of the rest.
func (t *tx) unknown(d *draft, look *sighting) {
	t.then(func() {
		// Where no process was recorded there is none to be seen gone.
		if !look.full && (processGone(&look.report) || d.lease.Wrapper.PID == 0) {
			t.e.look(d.s, true)
			return
		}
		if d.s.link == nil && d.s.adoption != "" {
			t.e.setAdoption(d.s, Unknown)
		}
		d.s.lookAt = t.now + t.e.opts.Settings.AdoptPatience
	})
}

// silence stops an instance whose wrapper has not called home for too long.
// Silence is not death: the stop ladder finds out what there is.
func (t *tx) silence(d *draft) {
	at, ok := t.e.silentAt(d.s)
	if !ok || t.now < at || d.s.state != d.state {
		return
	}
	t.mustReduce(d, lease.Event{
		Kind: lease.RequestStop, Reason: lease.Unhealthy, Target: lease.Target{Instance: d.state.Instance},
		Error: fmt.Sprintf("the wrapper has not called home for %s", t.e.opts.Settings.ReconnectWindow),
	})
}

// silentAt is when the wrapper will have been silent for too long; false while
// it is connected, and while it starts: that has a deadline of its own.
func (e *Engine) silentAt(s *session) (time.Duration, bool) {
	if !s.state.Owned() || s.state.Kind == lease.Starting || s.link != nil || s.launch != nil || s.linkDownAt == 0 {
		return 0, false
	}
	return s.linkDownAt + e.opts.Settings.ReconnectWindow, true
}
