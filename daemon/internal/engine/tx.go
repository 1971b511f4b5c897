package engine

import (
	"fmt"
	"time"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/failpoint"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// tx collects what one batch changes. Nothing outside it changes before the
// journal has the records; then the drafts become the sessions' state and the
// functions given to then run, in order.
type tx struct {
	e       *Engine
	now     time.Duration
	wall    time.Time
	entries []journal.Entry
	events  []Event // one for each lease record and some others, Seq by index
	drafts  map[string]*draft
	order   []*draft
	ops     map[opKey]*record.Operation // nil = dropped
	tombs   map[string]*record.Tombstone
	host    *record.Host
	touched map[string]bool // sessions whose views change
	effects []pending
	after   []func() // volatile changes
	replies []func() // answers, after the state is published
	stale   uint64
}

// pending is a lease's effect that waits for its state to be durable.
type pending struct {
	s      *session
	effect lease.Effect
}

// draft is the state of one session as the batch has changed it so far.
type draft struct {
	s         *session
	lease     record.Lease
	state     lease.State
	spec      *record.Spec
	token     string  // of an allocation in this batch
	startKeys []opKey // as session's
	openKeys  []opKey // as session's
	waiters   []func(Started, error)
	fresh     bool       // that allocation is the workspace's first use
	exit      *wire.Exit // the exit record of the instance, where one was read
	gone      bool       // has become a tombstone
	operation string     // key of the request that changes it in this batch
	ended     bool       // an instance has ended with the event that is being recorded
	note      string     // of the event that is about to be recorded
}

func (e *Engine) begin() *tx {
	return &tx{
		e: e, now: e.opts.Now(), wall: e.opts.Wall(),
		drafts: map[string]*draft{}, touched: map[string]bool{},
	}
}

// draft returns the session's draft, nil when there is no such session.
func (t *tx) draft(id string) *draft {
	if d, ok := t.drafts[id]; ok {
		if d.gone {
			return nil
		}
		return d
	}
	s, ok := t.e.sessions[id]
	if !ok {
		return nil
	}
	return t.add(s)
}

// create makes the draft of a new session.
func (t *tx) create(id string) *draft {
	return t.add(&session{id: id, lease: record.Lease{Session: id}, state: lease.New(), dueIndex: -1})
}

func (t *tx) add(s *session) *draft {
	d := &draft{
		s: s, lease: s.lease, state: s.state, spec: s.spec,
		startKeys: s.startKeys, openKeys: s.openKeys, waiters: s.waiters,
	}
	t.drafts[s.id] = d
	t.order = append(t.order, d)
	return d
}

// then runs f, a volatile change, once the batch is durable and before its
// state is published.
func (t *tx) then(f func()) { t.after = append(t.after, f) }

// answer runs f, which tells a caller, once the state is published: who has an
// answer reads it back.
func (t *tx) answer(f func()) { t.replies = append(t.replies, f) }

// touch publishes the session's view although no durable fact has changed.
func (t *tx) touch(id string) { t.touched[id] = true }

// reduce applies a lease event. Changed reports whether the state is another
// one now; a refusal is returned, stale events are counted.
func (t *tx) reduce(d *draft, ev lease.Event) (changed bool, err error) {
	ev.Now = t.now
	next, effects, outcome, err := t.e.opts.Rules.Reduce(d.state, ev)
	switch outcome {
	case lease.Stale:
		t.stale++
		return false, nil
	case lease.Refused:
		return false, err
	}
	before := d.state
	d.state, d.ended = next, false
	for _, effect := range effects {
		if effect.Kind == lease.Vacated {
			t.vacated(d, effect)
			d.ended = !effect.Instance.IsZero()
		}
		t.effects = append(t.effects, pending{d.s, effect})
	}
	if outcome == lease.Unchanged {
		return false, nil
	}
	t.count(d, before, &ev)
	t.put(d, ev.Kind.String(), ev.Error)
	d.ended = false
	return true, nil
}

// vacated settles what ends with an instance: the reservation, the exit record
// and the debt to the provider.
func (t *tx) vacated(d *draft, ended lease.Effect) {
	l := &d.lease
	l.ReservedBytes, l.ReservedInodes = 0, 0
	l.ReleasedWall, l.Unreadable, l.ActiveAge = t.wall, "", t.e.age(t.now)
	l.ReleasedAt, l.ReleasedBoot = t.now, t.e.boot()
	if ended.Instance.IsZero() {
		return
	}
	l.Exit = exitRecord(d.exit, ended, t.wall)
	exit := l.Exit.Kind
	t.then(func() { t.e.sums.Exits.Add(exit) })
	if l.Wrapper.Provider != "" {
		l.Debts = append(l.Debts[:len(l.Debts):len(l.Debts)], record.Debt{
			Provider: l.Wrapper.Provider, Handle: l.Wrapper.Handle, Generation: l.Generation,
		})
	}
}

// put appends the draft's lease as a record, with the event that made it.
func (t *tx) put(d *draft, event, detail string) {
	putState(&d.lease, d.state)
	d.lease.Epoch, d.lease.Event, d.lease.Wall = t.e.opts.Epoch, event, t.wall
	d.lease.Note, d.note = d.note, ""
	t.append(record.TypeLease, d.s.id, d.state.NextGeneration, d.lease.Append(nil))
	ev := leaseEvent(&d.lease)
	if detail != "" {
		ev.Detail = detail
	}
	ev.Ended = ev.Ended || d.ended
	if ev.Operation = d.operation; ev.Operation == "" && len(d.startKeys) > 0 {
		ev.Operation = d.startKeys[0].key
	}
	t.event(ev)
	t.touch(d.s.id)
}

// putSpec appends the draft's specification as a record.
func (t *tx) putSpec(d *draft, spec *record.Spec) {
	d.spec = spec
	t.append(record.TypeSpec, d.s.id, d.state.NextGeneration, spec.Append(nil))
}

// putHost appends the host's facts as a record.
func (t *tx) putHost(h record.Host) {
	h.Age, h.AgeAt = t.e.age(t.now), t.now
	t.host = &h
	t.append(record.TypeHost, "", h.GenerationFloor, h.Append(nil))
}

// hostNow is the host's facts as the batch has changed them so far.
func (t *tx) hostNow() record.Host {
	if t.host != nil {
		return *t.host
	}
	return t.e.host
}

func (t *tx) append(typ record.Type, session string, generation uint64, body []byte) {
	t.entries = append(t.entries, journal.Entry{
		Type: uint16(typ), Session: session, Generation: generation, Body: body,
	})
}

// event records what happened for watchers; its number is that of the newest
// record so far.
func (t *tx) event(ev Event) {
	ev.At, ev.Detail = t.wall, truncate(ev.Detail, detailMax)
	ev.Seq = uint64(len(t.entries)) // made absolute at commit
	t.events = append(t.events, ev)
}

// act makes the drafts the state, publishes it and acts.
func (e *Engine) act(t *tx) {
	_ = failpoint.Hit("engine.durable")
	if t.host != nil {
		e.host = *t.host
	}
	for _, d := range t.order {
		e.adoptDraft(d)
	}
	for _, p := range t.effects {
		e.perform(p.s, p.effect)
	}
	for _, f := range t.after {
		f()
	}
	for id := range t.touched {
		if s, ok := e.sessions[id]; ok {
			e.enact(s)
			e.schedule(s)
		}
	}
	e.stale.Add(t.stale)
	e.publish(t)
	_ = failpoint.Hit("engine.published")
	e.callHome()
	e.launchEffects()
	for _, f := range t.replies {
		f()
	}
	_ = failpoint.Hit("engine.answered")
	e.events.append(t.events)
	e.maybeSnapshot()
	e.launchEffects()
}

// adoptDraft makes one draft the session's state and keeps the sums.
func (e *Engine) adoptDraft(d *draft) {
	s := d.s
	e.rooms.move(&s.lease, &d.lease)
	s.lease, s.state, s.spec = d.lease, d.state, d.spec
	s.startKeys, s.openKeys, s.waiters = d.startKeys, d.openKeys, d.waiters
	if d.token != "" {
		s.token, s.firstUse = d.token, d.fresh
	}
	if d.gone {
		e.unschedule(s)
		e.setAdoption(s, "")
		delete(e.sessions, s.id)
		delete(e.workspaces, s.lease.Workspace)
		return
	}
	e.sessions[s.id] = s
	if s.lease.Workspace != "" {
		e.workspaces[s.lease.Workspace] = s.id
	}
	if !s.state.Owned() { // who waits for the adoption is told what became of it
		e.setAdoption(s, "")
	}
}

// settle brings every draft to rest: what is due at once is done in the same
// batch, so that a stop and its first attempt share one fsync.
func (t *tx) settle() {
	for _, d := range t.order {
		if !d.gone {
			t.advance(d)
			t.advanceDeletion(d)
			t.complete(d, nil)
		}
	}
}

// advance applies the lease's due events until none is left.
func (t *tx) advance(d *draft) {
	for range advanceMax {
		ev, due := t.e.opts.Rules.Due(d.state, t.now)
		if !due {
			return
		}
		switch ev.Kind {
		case lease.BeginAttempt:
			ev.AttemptID = t.e.opts.NewID()
			ev.Deadline += t.e.grace(d.spec) // an attempt's time counts from the kill
		case lease.RequestStop:
			ev.WorkAccepted = d.state.Kind == lease.Ready // a command is its own first message
			t.failStart(d, refusal(codeStartFailed, true, "the wrapper was not verified before the startup deadline"))
		}
		changed, err := t.reduce(d, ev)
		if err != nil {
			panic(fmt.Sprintf("internal error: due event %s refused in %s: %v", ev.Kind, d.state.Kind, err))
		}
		if !changed {
			return
		}
	}
}

// advanceMax bounds the due events of one lease in one batch; more would be a
// cycle in the table.
const advanceMax = 8
