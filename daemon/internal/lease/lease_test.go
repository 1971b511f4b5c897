package lease

import (
	"errors"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// play gives events to a lease and fails unless each changes it.
func play(t *testing.T, r Rules, s State, events ...Event) State {
	t.Helper()
	for _, e := range events {
		n, _, outcome, err := r.Reduce(s, e)
		if outcome != Changed {
			t.Fatalf("%s in %s: %s, %v", e.Kind, s.Kind, outcome, err)
		}
		s = n
	}
	return s
}

// cold is a lease in Starting since t0.
func cold(t *testing.T) State {
	t.Helper()
	return play(t, DefaultRules(), State{Kind: Vacant, NextGeneration: 3},
		Event{Kind: Allocate, Now: t0, Instance: instA, AbsenceVerified: true})
}

// TestPure: the package can have no clock, disk or randomness, since it imports
// nothing that has.
func TestPure(t *testing.T) {
	t.Parallel()
	allowed := []string{"errors", "fmt", "strconv", "strings", "time"}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if path, _ := strconv.Unquote(i.Path.Value); !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", name, path)
			}
		}
	}
}

// TestStopSchedule: five attempts, 5, 10, 10, 10 s after the result of the one
// before, then quarantine with six rechecks and silence.
func TestStopSchedule(t *testing.T) {
	t.Parallel()
	r := DefaultRules()
	s := play(t, r, cold(t), Event{Kind: RequestStop, Now: t0, Target: Target{instA}, Reason: Operator})
	now := t0
	for n, pause := range []time.Duration{5, 10, 10, 10, 0} {
		e, ok := r.Due(s, now)
		if !ok || e.Kind != BeginAttempt || e.Deadline != now+45*time.Second {
			t.Fatalf("attempt %d at %s: %v %+v", n+1, now, ok, e)
		}
		e.AttemptID = strconv.Itoa(n)
		s = play(t, r, s, e)
		now += 7 * time.Second // the attempt takes a while
		s = play(t, r, s, Event{Kind: AttemptNotConfirmed, Now: now, AttemptID: e.AttemptID, Error: "busy"})
		if at, _ := r.NextDeadline(s); n < 4 && at != now+pause*time.Second {
			t.Fatalf("after the result of attempt %d at %s: next at %s", n+1, now, at)
		}
		now += pause * time.Second
	}
	e, ok := r.Due(s, now)
	if !ok || e.Kind != Exhaust {
		t.Fatalf("after the last attempt: %v %+v", ok, e)
	}
	s = play(t, r, s, e)
	for n := 1; ; n++ {
		at, ok := r.NextDeadline(s)
		if !ok {
			if n != 7 {
				t.Fatalf("%d rechecks, not 6", n-1)
			}
			break
		}
		if at != now+time.Duration(n)*10*time.Minute {
			t.Fatalf("recheck %d at %s, quarantined at %s", n, at, now)
		}
		e, _ := r.Due(s, at+3*time.Second) // the sweep comes a little late
		s = play(t, r, s, e)
	}
	_, effects, outcome, err := r.Reduce(s, Event{Kind: RecheckForced, Now: now + 24*time.Hour})
	if outcome != Unchanged || err != nil || len(effects) != 1 || effects[0].Kind != Recheck {
		t.Fatalf("a forced recheck after the window: %s %v %v", outcome, effects, err)
	}
}

// TestLastAttemptExpires: the budget is spent the moment that the last attempt
// runs out; quarantine does not wait for its worker, but tells of it.
func TestLastAttemptExpires(t *testing.T) {
	t.Parallel()
	r := DefaultRules()
	r.StopAttempts = 1
	s := play(t, r, cold(t),
		Event{Kind: RequestStop, Now: t0, Target: Target{instA}, Reason: Operator},
		Event{Kind: BeginAttempt, Now: t0, AttemptID: "one"})
	now := s.Stop.AttemptDeadline
	for _, want := range []EventKind{AttemptExpired, Exhaust, WorkerStuck, RecheckDue} {
		at, ok := r.NextDeadline(s)
		e, due := r.Due(s, max(now, at))
		if !ok || !due || e.Kind != want {
			t.Fatalf("at %s, next at %s: %s, not %s", now, at, e.Kind, want)
		}
		if want == Exhaust && at > now {
			t.Fatalf("quarantine only at %s, the last attempt ended at %s", at, now)
		}
		now = max(now, at)
		s = play(t, r, s, e)
	}
	if !s.Stop.Stuck || now != s.Stop.ExhaustedAt+r.RecheckEvery {
		t.Fatalf("at %s: %+v", now, s)
	}
	// The worker is waited for also when nothing is looked at any more, and after
	// a look that is due at the same time or earlier.
	for _, c := range []struct {
		recheck, at time.Duration
		want        EventKind
	}{{0, t1, WorkerStuck}, {t1 - 1, t1 - 1, RecheckDue}, {t1, t1, WorkerStuck}, {t1 + 1, t1, WorkerStuck}} {
		s := example(Quarantined, WorkerStuck)
		s.Stop.NextRecheckAt = c.recheck
		at, ok := r.NextDeadline(s)
		e, due := r.Due(s, at)
		if !ok || !due || at != c.at || e.Kind != c.want {
			t.Errorf("recheck at %s: next at %s %s, not %s", c.recheck, at, e.Kind, c.want)
		}
	}
}

// TestStuckWorkerGoesOn: a worker that the kernel holds quarantines the lease
// with that cause, and stopping goes on when it has returned.
func TestStuckWorkerGoesOn(t *testing.T) {
	t.Parallel()
	r := DefaultRules()
	s := play(t, r, cold(t),
		Event{Kind: RequestStop, Now: t0, Target: Target{instA}, Reason: Operator},
		Event{Kind: BeginAttempt, Now: t0, AttemptID: "one"})
	for _, want := range []EventKind{AttemptExpired, WorkerStuck} {
		at, _ := r.NextDeadline(s)
		if e, early := r.Due(s, at-1); early {
			t.Fatalf("%s is due before its time", e.Kind)
		}
		e, ok := r.Due(s, at)
		if !ok || e.Kind != want {
			t.Fatalf("%v %s, not %s", ok, e.Kind, want)
		}
		s = play(t, r, s, e)
	}
	if s.Kind != Quarantined || !s.Stop.Stuck || !strings.Contains(s.Stop.LastError, "kernel") {
		t.Fatalf("not quarantined with the cause: %+v", s)
	}
	now := t0 + time.Hour
	s = play(t, r, s, Event{Kind: AttemptAbsent, Now: now, AttemptID: "one"})
	if e, ok := r.Due(s, now+5*time.Second); s.Kind != StopNeeded || !ok || e.Kind != BeginAttempt {
		t.Fatalf("does not go on: %+v", s)
	}
}

// TestRestartKeepsTheAttempt: a stop that a daemon left behind is run on under
// its old id and deadline (case T32), and a start is looked for, never made
// again (cases T03, T04).
func TestRestartKeepsTheAttempt(t *testing.T) {
	t.Parallel()
	r := DefaultRules()
	s := cold(t)
	if owed := s.Owed(); len(owed) != 1 || owed[0].Kind != Verify || owed[0].Instance != instA {
		t.Fatalf("owed for a cold start: %v", owed)
	}
	frozen := play(t, r, s, Event{Kind: Frozen, Now: t0 + 1, Instance: instA})
	if owed := frozen.Owed(); len(owed) != 2 || owed[1].Kind != Freeze {
		t.Fatalf("owed while frozen: %v", owed)
	}
	s = play(t, r, s, Event{Kind: RequestStop, Now: t0, Target: Target{instA}, Reason: Operator})
	if owed := s.Owed(); owed != nil {
		t.Fatalf("owed for a stop between attempts: %v", owed)
	}
	s = play(t, r, s, Event{Kind: BeginAttempt, Now: t0, AttemptID: "one", Deadline: t0 + 9*time.Second})
	owed := s.Owed()
	if len(owed) != 1 || owed[0].Kind != BeginAttemptWork || owed[0].AttemptID != "one" || owed[0].Deadline != t0+9*time.Second {
		t.Fatalf("owed for a running attempt: %v", owed)
	}
}

// TestDeadlinesAskForStops: each deadline of an owned state, a moment too early
// and in time.
func TestDeadlinesAskForStops(t *testing.T) {
	t.Parallel()
	r := DefaultRules()
	starting := cold(t)
	ready := play(t, r, starting, Event{Kind: Verified, Now: t0, Instance: instA})
	active := play(t, r, ready, Event{Kind: Accepted, Now: t0, Instance: instA})
	warm := play(t, r, active, Event{Kind: Idle, Now: t0, Instance: instA})
	for _, c := range []struct {
		s      State
		after  time.Duration
		reason Reason
	}{
		{starting, 13 * time.Minute, StartupFailed},
		{ready, 60 * time.Second, ReadinessFailed},
		{warm, 5 * time.Minute, KeepWarmExpired},
	} {
		if _, ok := r.Due(c.s, t0+c.after-1); ok {
			t.Errorf("%s ends early", c.s.Kind)
		}
		e, ok := r.Due(c.s, t0+c.after)
		if !ok || e.Reason != c.reason || e.Target != (Target{instA}) {
			t.Errorf("%s: %v %+v", c.s.Kind, ok, e)
			continue
		}
		e.WorkAccepted = true
		if n := play(t, r, c.s, e); n.Kind != Active || n.Deadline != 0 {
			t.Errorf("%s with accepted work became %+v", c.s.Kind, n)
		}
	}
	if at, ok := r.NextDeadline(active); ok {
		t.Errorf("active ends at %s", at)
	}
	if at, ok := r.NextDeadline(New()); ok {
		t.Errorf("vacant ends at %s", at)
	}
}

// TestZeroSwitchesOff: a rule of 0 gives no deadline.
func TestZeroSwitchesOff(t *testing.T) {
	t.Parallel()
	r := DefaultRules()
	r.StartupDeadline, r.ReadyDeadline, r.KeepWarm, r.RecheckEvery = 0, 0, 0, 0
	s := State{Kind: Vacant, NextGeneration: 3}
	for _, e := range []Event{
		{Kind: Allocate, Now: t0, Instance: instA, AbsenceVerified: true},
		{Kind: Verified, Now: t0, Instance: instA},
		{Kind: Accepted, Now: t0, Instance: instA},
		{Kind: Idle, Now: t0, Instance: instA},
	} {
		s = play(t, r, s, e)
		if at, ok := r.NextDeadline(s); ok {
			t.Errorf("%s ends at %s", s.Kind, at)
		}
	}
	q := play(t, r, example(StopNeeded, Exhaust), Event{Kind: Exhaust, Now: t0})
	if at, ok := r.NextDeadline(q); ok {
		t.Errorf("quarantine looks again at %s", at)
	}
	q = play(t, r, Unreadable(4), Event{Kind: RecheckDue, Now: t0})
	if at, ok := r.NextDeadline(q); ok {
		t.Errorf("after the first look, an unreadable lease looks again at %s", at)
	}
}

// TestFrozenClocksStandStill: the time spent frozen is given back, no verdict
// of a clock counts meanwhile, and a deadline set meanwhile starts with thawing.
func TestFrozenClocksStandStill(t *testing.T) {
	t.Parallel()
	r := DefaultRules()
	ready := play(t, r, cold(t),
		Event{Kind: Verified, Now: t0, Instance: instA},
		Event{Kind: LinkLost, Now: t0 + 10*time.Second, Instance: instA},
		Event{Kind: Frozen, Now: t0 + 20*time.Second, Instance: instA})
	if _, ok := r.Due(ready, t0+time.Hour); ok {
		t.Error("the ready deadline runs while frozen")
	}
	_, _, outcome, _ := r.Reduce(ready, Event{Kind: RequestStop, Now: t0 + time.Hour, Target: Target{instA}, Reason: Unhealthy})
	if outcome != Stale {
		t.Errorf("unhealthy while frozen: %s", outcome)
	}
	s := play(t, r, ready, Event{Kind: Thawed, Now: t0 + 120*time.Second, Instance: instA})
	if s.Deadline != t0+160*time.Second || s.LinkLostAt != t0+110*time.Second {
		t.Errorf("deadline %s, link lost at %s", s.Deadline, s.LinkLostAt)
	}
	s = play(t, r, ready,
		Event{Kind: Accepted, Now: t0 + 30*time.Second, Instance: instA},
		Event{Kind: Idle, Now: t0 + 40*time.Second, Instance: instA},
		Event{Kind: Thawed, Now: t0 + 100*time.Second, Instance: instA})
	if s.Deadline != t0+100*time.Second+5*time.Minute {
		t.Errorf("warm until %s", s.Deadline-t0)
	}
}

// TestUnreadable: fails closed, looks at once, and waits for the evidence before
// it gives out a generation (cases B12, T42).
func TestUnreadable(t *testing.T) {
	t.Parallel()
	r := DefaultRules()
	s := Unreadable(0)
	if err := s.Check(); err != nil || s.Kind != Quarantined || !s.Stop.Target.Whole() || s.Stop.Reason != ObservationFailed {
		t.Fatalf("%+v %v", s, err)
	}
	e, ok := r.Due(s, t0)
	if !ok || e.Kind != RecheckDue {
		t.Fatalf("no look at once: %v %+v", ok, e)
	}
	s = play(t, r, s, e)
	if at, ok := r.NextDeadline(s); !ok || at != t0+10*time.Minute {
		t.Fatalf("next look %s %v", at, ok)
	}
	s = play(t, r, s, Event{Kind: RecheckAbsent, Now: t0 + 1})
	allocate := Event{Kind: Allocate, Now: t0 + 2, Instance: instB, AbsenceVerified: true}
	if _, _, _, err := r.Reduce(s, allocate); !errors.Is(err, ErrGenerationUnknown) {
		t.Fatalf("allocated without a counter: %v", err)
	}
	s = play(t, r, s, Event{Kind: FloorRaised, Now: t0 + 2, Floor: 4}, allocate)
	if s.NextGeneration != 5 {
		t.Fatalf("%+v", s)
	}
}

// TestTextIsCut: what people write cannot bloat every later record.
func TestTextIsCut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", 5000)
	s := play(t, DefaultRules(), cold(t), Event{
		Kind: RequestStop, Now: t0, Target: Target{instA}, Reason: Operator, Error: long, By: long, Why: long,
	})
	for _, text := range []string{s.Stop.LastError, s.Stop.By, s.Stop.Why, clip("x" + long)} {
		if len(text) < 1023 || len(text) > 1024 || !utf8.ValidString(text) {
			t.Errorf("%d bytes, valid %v", len(text), utf8.ValidString(text))
		}
	}
	if clip(strings.Repeat("\x80", 2000)) != "" || clip("short") != "short" {
		t.Error("odd texts")
	}
}
