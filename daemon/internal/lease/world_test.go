package lease

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestMain makes the walks long enough to get somewhere; the command line wins.
func TestMain(m *testing.M) {
	defaults := map[string]string{"rapid.checks": "600", "rapid.steps": "250", "rapid.nofailfile": "true"}
	for name, value := range defaults {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// world is one session and all that surrounds it: processes that live, workers
// that run, and results on their way. Everything that it reports was true when
// it was reported, but may arrive late, twice, out of order or never. The lease
// must keep the promise under all of that.
type world struct {
	t     *rapid.T
	r     Rules
	s     State
	now   time.Duration
	ids   int
	most  uint64                // the highest generation ever launched
	spawn map[Instance]struct{} // launch workers that run
	live  map[Instance]struct{} // wrappers that live
	work  map[string]Effect     // attempt workers that run
	look  []Effect              // observations that run
	mail  []Event               // results on their way
	count map[string]int

	abandoned bool // the operator let a session go with a worker still out
}

func (w *world) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(w.t, label) }

func (w *world) instance(label string, from map[Instance]struct{}) Instance {
	all := make([]Instance, 0, len(from))
	for i := range from {
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b Instance) int { return int(a.Generation) - int(b.Generation) })
	return all[w.pick(label, len(all))]
}

func (w *world) id(prefix string) string {
	w.ids++
	return fmt.Sprintf("%s%d", prefix, w.ids)
}

func (w *world) send(e Event) { w.mail = append(w.mail, e) }
func (w *world) empty() bool  { return len(w.live) == 0 && len(w.spawn) == 0 }

// apply gives e to the lease and performs the effects.
func (w *world) apply(e Event) Outcome {
	e.Now = w.now
	was := w.s
	next, effects, outcome, err := w.r.Reduce(was, e)
	w.count[e.Kind.String()+" "+outcome.String()]++
	if outcome != Changed && (next != was || len(effects) > 0 && e.Kind != RecheckForced) {
		w.t.Fatalf("%s: %s, but something changed", e.Kind, outcome)
	}
	if (err != nil) != (outcome == Refused) || outcome == Changed && next == was {
		w.t.Fatalf("%s: %s with error %v, state %+v", e.Kind, outcome, err, next)
	}
	if got, want := must(w.t, w.r, was, e), (model{w.r, was, e}).run(); got != want {
		w.t.Fatalf("%+v\nevent %+v\ngot  %+v\nwant %+v", was, e, got, want)
	}
	w.keepsPromises(was, next, e)
	w.s = next
	for _, f := range effects {
		w.perform(f)
	}
	return outcome
}

func must(t *rapid.T, r Rules, s State, e Event) verdict {
	v, err := answer(r, s, e, omission{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// keepsPromises checks what one step may never do.
func (w *world) keepsPromises(was, next State, e Event) {
	if err := next.Check(); err != nil {
		w.t.Fatalf("after %s: %v\n%+v", e.Kind, err, next)
	}
	if next.NextGeneration < was.NextGeneration {
		w.t.Fatalf("%s: next generation fell from %d to %d", e.Kind, was.NextGeneration, next.NextGeneration)
	}
	if was.Cleaning() && !next.Cleaning() {
		switch e.Kind {
		case AttemptAbsent, RecheckAbsent, NewEpoch, Adopt, Abandon:
		default:
			w.t.Fatalf("%s lost the stop %+v", e.Kind, was.Stop)
		}
	}
	if was.Cleaning() && next.Cleaning() && (was.Stop.Reason != next.Stop.Reason ||
		was.Stop.Target != next.Stop.Target || was.Stop.RequestedAt != next.Stop.RequestedAt ||
		was.Stop.Attempts > next.Stop.Attempts) {
		w.t.Fatalf("%s changed the stop %+v into %+v", e.Kind, was.Stop, next.Stop)
	}
}

// perform does outside what an effect asks for, or lets a worker do it.
func (w *world) perform(f Effect) {
	switch f.Kind {
	case Launch:
		if f.Instance.Generation <= w.most {
			w.t.Fatalf("launched generation %d after %d", f.Instance.Generation, w.most)
		}
		w.most = f.Instance.Generation
		w.spawn[f.Instance] = struct{}{}
	case CancelLaunch:
		if _, runs := w.spawn[f.Instance]; runs {
			w.endLaunch(f.Instance)
		}
	case BeginAttemptWork:
		if len(w.work) > 0 && !w.abandoned {
			w.t.Fatalf("attempt %s begins while %v run", f.AttemptID, w.work)
		}
		w.work[f.AttemptID] = f
	case Recheck:
		w.look = append(w.look, f)
	}
}

// endLaunch: the launch worker returns, with or without a wrapper.
func (w *world) endLaunch(i Instance) {
	delete(w.spawn, i)
	if rapid.Bool().Draw(w.t, "spawned") {
		w.live[i] = struct{}{}
		w.send(Event{Kind: Verified, Instance: i})
		return
	}
	w.send(Event{Kind: RequestStop, Target: Target{i}, Reason: StartupFailed, Error: "no wrapper"})
}

// check is the promise itself.
func (w *world) check(*rapid.T) {
	alive := len(w.live) + len(w.spawn)
	if alive > 1 {
		w.t.Fatalf("two owners: live %v, spawning %v, lease %+v", w.live, w.spawn, w.s)
	}
	if w.s.Vacant() && alive > 0 {
		w.t.Fatalf("vacant, but live %v, spawning %v", w.live, w.spawn)
	}
	for i := range w.live {
		if w.s.Owned() && i != w.s.Instance {
			w.t.Fatalf("%s lives, the lease is %s's", i, w.s.Instance)
		}
		if i.Generation >= w.s.NextGeneration && w.s.NextGeneration != 0 {
			w.t.Fatalf("%s lives at or above the next generation %d", i, w.s.NextGeneration)
		}
	}
}

// beginning is a session's first state: new, or read back from a damaged record
// with a wrapper that lives.
func (w *world) beginning(t *rapid.T) {
	w.s = New()
	if rapid.IntRange(0, 4).Draw(t, "damaged") == 0 {
		w.s = Unreadable(uint64(w.pick("counter", 2)) * 8)
		w.most = 7
		if rapid.Bool().Draw(t, "lives") {
			w.live[Instance{"survivor", 7}] = struct{}{}
		}
	}
}

// TestPromiseHoldsInAnyOrder: whatever the order, delay or repetition of true
// results, and wherever the daemon or the machine dies, a session has one owner.
//
// case B10 (an event of an earlier run), B11 (a slot reused before its release),
// T07 (a crash between spawn and record), T09 (stuck in between), T41 (a kill
// that gives up): this is where they are excluded.
func TestPromiseHoldsInAnyOrder(t *testing.T) {
	t.Parallel()
	count := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t, r: DefaultRules(), now: time.Second, count: count,
			spawn: map[Instance]struct{}{}, live: map[Instance]struct{}{}, work: map[string]Effect{},
		}
		w.r.StopAttempts = rapid.IntRange(1, 5).Draw(t, "budget")
		w.beginning(t)
		t.Repeat(map[string]func(*rapid.T){
			"":         w.check,
			"pass":     w.pass,
			"due":      w.due,
			"due2":     w.due,
			"deliver":  w.deliver,
			"deliver2": w.deliver,
			"deliver3": w.deliver,
			"deliver4": w.deliver,
			"client":   w.client,
			"launcher": w.launcher,
			"wrapper":  w.wrapper,
			"stop":     w.stop,
			"worker":   w.worker,
			"observer": w.observer,
			"operator": w.operator,
			"crash":    w.crash,
			"floor":    w.floorRaised,
		})
	})
	for _, k := range EventKinds() {
		if count[k.String()+" changed"] == 0 && k != RecheckForced {
			t.Errorf("the walks never changed anything by %s: they are too tame", k)
		}
	}
	t.Log(count)
}
