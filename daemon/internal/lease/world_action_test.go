package lease

import (
	"slices"
	"time"

	"pgregory.net/rapid"
)

// What can happen in a world.

// pass lets time go by.
func (w *world) pass(*rapid.T) {
	if at, ok := w.r.NextDeadline(w.s); ok && rapid.Bool().Draw(w.t, "to the deadline") {
		w.now = max(w.now, at)
		return
	}
	w.now += time.Duration(rapid.IntRange(0, 120).Draw(w.t, "seconds")) * time.Second
}

// due lets time act. What Due says is never stale and never refused.
func (w *world) due(*rapid.T) {
	for n := 0; ; n++ {
		e, ok := w.r.Due(w.s, w.now)
		at, any := w.r.NextDeadline(w.s)
		if ok != (any && at <= w.now) {
			w.t.Fatalf("due %v, next deadline %s %v at %s in %+v", ok, at, any, w.now, w.s)
		}
		if !ok {
			return
		}
		if e.Kind == BeginAttempt {
			e.AttemptID = w.id("attempt")
		}
		if _, lives := w.live[w.s.Instance]; lives {
			e.WorkAccepted = rapid.Bool().Draw(w.t, "work accepted")
		}
		if outcome := w.apply(e); outcome != Changed {
			w.t.Fatalf("due %+v is %s", e, outcome)
		}
		if n > 4 {
			w.t.Fatalf("time alone acts for ever at %s: %+v", w.now, w.s)
		}
	}
}

// deliver hands over some result that is on its way, perhaps not for the last
// time.
func (w *world) deliver(t *rapid.T) {
	if len(w.mail) == 0 {
		t.Skip("no mail")
	}
	i := w.pick("mail", len(w.mail))
	e := w.mail[i]
	if !rapid.Bool().Draw(t, "twice") {
		w.mail = slices.Delete(w.mail, i, i+1)
	}
	w.apply(e)
}

// client asks for a start: verified absence, or a reuse.
func (w *world) client(t *rapid.T) {
	switch {
	case w.s.Vacant() && w.empty() && w.s.NextGeneration > 0:
		i := Instance{w.id("instance"), w.s.NextGeneration + uint64(w.pick("skip", 3))}
		w.send(Event{Kind: Allocate, Instance: i, AbsenceVerified: true})
	case w.s.Owned() && len(w.live) == 1:
		i := w.instance("seen", w.live)
		w.send(Event{Kind: Reuse, Instance: i, Observed: []Instance{i}})
	default:
		t.Skip("cleanup pending")
	}
}

func (w *world) launcher(t *rapid.T) {
	if len(w.spawn) == 0 {
		t.Skip("no launch")
	}
	w.endLaunch(w.instance("launch", w.spawn))
}

func (w *world) wrapper(t *rapid.T) {
	if len(w.live) == 0 {
		t.Skip("no wrapper")
	}
	i := w.instance("wrapper", w.live)
	news := []EventKind{Accepted, Idle, LinkLost, LinkRegained, Frozen, Thawed, OwnedAbsent}
	e := Event{Kind: news[w.pick("news", len(news))], Instance: i}
	switch { // what has begun is the likelier to end
	case w.s.Frozen && rapid.Bool().Draw(t, "thaw"):
		e.Kind = Thawed
	case w.s.LinkLostAt != 0 && rapid.Bool().Draw(t, "regain"):
		e.Kind = LinkRegained
	}
	if e.Kind == OwnedAbsent {
		delete(w.live, i)
		e.AbsenceVerified = true
	}
	w.send(e)
}

func (w *world) stop(*rapid.T) {
	all := Reasons()
	e := Event{Kind: RequestStop, Reason: all[w.pick("reason", len(all))]}
	if e.Reason.Emission().Scope == ScopeInstance {
		e.Target = Target{w.s.Instance}
	}
	w.send(e)
}

// worker lets an attempt's worker kill, or return what it then sees.
func (w *world) worker(t *rapid.T) {
	ids := make([]string, 0, len(w.work))
	for id := range w.work {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		t.Skip("no worker")
	}
	slices.Sort(ids)
	id := ids[w.pick("worker", len(ids))]
	if rapid.Bool().Draw(t, "kills") {
		clear(w.live)
		return
	}
	delete(w.work, id)
	e := Event{Kind: AttemptNotConfirmed, AttemptID: id, Error: "still there"}
	if w.empty() {
		e.Kind = AttemptAbsent
	}
	w.send(e)
}

func (w *world) observer(t *rapid.T) {
	if len(w.look) == 0 {
		w.apply(Event{Kind: RecheckForced})
		t.Skip("no observation")
	}
	f := w.look[0]
	w.look = w.look[1:]
	e := Event{Kind: RecheckDone, Instance: f.Instance, AttemptID: f.AttemptID, Error: w.id("look ")}
	if w.empty() {
		e.Kind = RecheckAbsent
	}
	w.send(e)
}

// operator decides about a quarantined lease what is true.
func (w *world) operator(t *rapid.T) {
	e := Event{By: "uid 0", Why: "looked"}
	switch {
	case w.s.Kind != Quarantined:
		t.Skip("not quarantined")
	case w.empty():
		e.Kind = Abandon
		w.abandoned = w.abandoned || len(w.work) > 0
	default:
		e.Kind, e.Instance = Adopt, w.instance("adopted", w.live)
	}
	w.apply(e)
}

// crash: the daemon dies with everything that it had not made durable, and
// starts again.
func (w *world) crash(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "lucky") != 0 {
		t.Skip("no crash")
	}
	for i := range w.spawn {
		w.endLaunch(i)
	}
	clear(w.work)
	w.mail, w.look, w.abandoned = nil, nil, false
	if rapid.IntRange(0, 3).Draw(t, "machine") == 0 {
		clear(w.live)
		w.now = time.Second + time.Duration(w.pick("uptime", 100))*time.Second
		w.apply(Event{Kind: NewEpoch})
		return
	}
	if w.s.WorkerOut() {
		w.apply(Event{Kind: AttemptNotConfirmed, AttemptID: w.s.Stop.AttemptID, Error: "restarted"})
	}
	if w.s.WorkerOut() {
		t.Fatalf("the worker is out after a restart: %+v", w.s)
	}
	for _, f := range w.s.Owed() {
		if f.Kind == Launch {
			t.Fatal("a restart launches")
		}
		w.perform(f)
	}
}

// floorRaised: the evidence of the host is in, and shows this or more.
func (w *world) floorRaised(t *rapid.T) {
	if w.s.NextGeneration != 0 && rapid.IntRange(0, 4).Draw(t, "quiet") != 0 {
		t.Skip("no evidence")
	}
	w.send(Event{Kind: FloorRaised, Floor: w.most + 1 + uint64(w.pick("floor", 10))})
}
