package lease

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// The grid: for each cell, every combination of the states and the events that
// could matter to it. Small enough to go through entirely.

const (
	t0 = 1000 * time.Second // when things were set up
	t1 = 1500 * time.Second // when deadlines of the grid pass
)

var (
	instA     = Instance{"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 3}
	instB     = Instance{"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", 4}
	olderA    = Instance{instA.ID, 2}
	otherID   = Instance{instB.ID, 3}
	lastOne   = Instance{instB.ID, ^uint64(0)}
	instances = []Instance{instA, {}, instB, olderA, otherID, lastOne, {ID: instA.ID}, {Generation: 7}}
	targets   = []Target{{instA}, {}, {instB}, {olderA}, {otherID}, {Instance{ID: instA.ID}}}
)

// statesOf returns well-formed states of kind k.
func statesOf(k Kind) []State {
	switch {
	case k == Vacant:
		return []State{New(), {Kind: Vacant, NextGeneration: 4}, {Kind: Vacant, NextGeneration: 9}, {Kind: Vacant}}
	case k.Owned():
		return ownedStates(k)
	}
	return cleaningStates(k)
}

func ownedStates(k Kind) []State {
	var all []State
	for _, s := range []State{
		{}, {LinkLostAt: t0 - 5}, {Frozen: true, FrozenAt: t0}, {Frozen: true, FrozenAt: t0, LinkLostAt: t0 - 5},
		{Frozen: true, FrozenAt: t0, LinkLostAt: t0 + 5},
	} {
		s.Kind, s.Instance, s.NextGeneration = k, instA, 4
		all = append(all, s)
		if k != Active {
			s.Deadline = t1
			all = append(all, s)
		}
		if k == Starting {
			s.Reuse = true
			all = append(all, s)
		}
	}
	return all
}

func cleaningStates(k Kind) []State {
	var all []State
	whose := []State{
		{NextGeneration: 4, Instance: instA, Stop: Stop{Target: Target{instA}, Reason: Unhealthy}},
		{NextGeneration: 4, Instance: instA, Stop: Stop{Reason: Operator, By: "uid 0", Why: "test"}},
		{NextGeneration: 9, Stop: Stop{Reason: UnexpectedWrapper}},
	}
	for _, s := range whose {
		s.Kind = k
		s.Stop.RequestedAt, s.Stop.NextAttemptAt, s.Stop.LastError = t0, t0, "was"
		for _, p := range stopsOf(k, s.Stop) {
			s.Stop = p
			all = append(all, s)
		}
	}
	if k == Quarantined {
		all = append(all, Unreadable(0), Unreadable(4))
	}
	return all
}

// stopsOf varies what a stop in kind k can carry.
func stopsOf(k Kind, p Stop) []Stop {
	var all []Stop
	for _, n := range []int{0, 1, 2, 4, 5, 6} {
		p.Attempts, p.AttemptID = n, ""
		if n > 0 {
			p.AttemptID = "last"
		}
		switch k {
		case StopNeeded:
			p.NextAttemptAt = t1
			all = append(all, p)
			if n > 0 {
				q := p
				q.JoinBy = t1
				all = append(all, q)
			}
		case Stopping:
			if n > 0 {
				p.AttemptStartedAt, p.AttemptDeadline = t0, t1
				all = append(all, p)
			}
		case Quarantined:
			all = append(all, quarantineStops(p)...)
		}
	}
	return all
}

func quarantineStops(p Stop) []Stop {
	p.ExhaustedAt, p.NextRecheckAt = t0, t1
	all := []Stop{p}
	p.NextRecheckAt = 0
	all = append(all, p)
	if p.Attempts > 0 {
		p.JoinBy = t1
		all = append(all, p)
		p.JoinBy, p.Stuck = 0, true
		all = append(all, p)
	}
	return all
}

// nows are the moments around t1 and around the recheck grid of t0.
func nows(k EventKind) []time.Duration {
	switch k {
	case RecheckDue, RecheckDone:
		every := DefaultRules().RecheckEvery
		return []time.Duration{t0, t1 - 1, t1, t0 + every, t0 + every - 1, t0 + 6*every - 1, t0 + 6*every, t0 + 60*every}
	}
	return []time.Duration{t1 - 1, t1, t1 + 400*time.Second}
}

// eventsOf returns every variation of the fields that event k reads.
func eventsOf(k EventKind) []Event {
	var all []Event
	for _, now := range nows(k) {
		e := Event{Kind: k, Now: now}
		switch k {
		case Allocate, Verified, Idle, OwnedAbsent:
			all = append(all, byDeadline(byInstance(e))...)
		case Accepted, LinkLost, LinkRegained, Frozen, Thawed:
			all = append(all, byInstance(e)...)
		case Reuse:
			all = append(all, byDeadline(byObserved(byInstance(e)))...)
		case Adopt:
			all = append(all, byDecision(byObserved(byInstance(e)))...)
		case Abandon:
			all = append(all, byDecision([]Event{e})...)
		case RequestStop:
			all = append(all, byStop(e)...)
		case BeginAttempt:
			all = append(all, byDeadline(byAttempt([]Event{e}))...)
		case AttemptAbsent, AttemptNotConfirmed, AttemptExpired, WorkerStuck:
			all = append(all, byAttempt([]Event{e})...)
		case RecheckAbsent, RecheckDone:
			all = append(all, byAttempt(byInstance(e))...)
		case FloorRaised:
			for _, f := range []uint64{0, 1, 4, 5, 100} {
				e.Floor = f
				all = append(all, e)
			}
		default:
			all = append(all, e)
		}
	}
	return all
}

func byInstance(e Event) []Event {
	var all []Event
	for _, e.Instance = range instances {
		e.AbsenceVerified = true
		all = append(all, e)
		if e.Kind == Allocate || e.Kind == OwnedAbsent {
			e.AbsenceVerified = false
			all = append(all, e)
		}
	}
	return all
}

func byDeadline(in []Event) []Event {
	var all []Event
	for _, e := range in {
		for _, d := range []time.Duration{0, e.Now, e.Now + 1, e.Now + time.Hour} {
			e.Deadline = d
			all = append(all, e)
		}
	}
	return all
}

func byObserved(in []Event) []Event {
	var all []Event
	for _, e := range in {
		for _, e.Observed = range [][]Instance{{instA}, nil, {instB}, {instA, instB}, {instA, instA}, {olderA}, {e.Instance}} {
			all = append(all, e)
		}
	}
	return all
}

func byDecision(in []Event) []Event {
	var all []Event
	for _, e := range in {
		for _, w := range [][2]string{{"uid 0", "looked"}, {"", "looked"}, {"uid 0", ""}} {
			e.By, e.Why = w[0], w[1]
			all = append(all, e)
		}
	}
	return all
}

func byAttempt(in []Event) []Event {
	var all []Event
	for _, e := range in {
		for _, e.AttemptID = range []string{"last", "next", ""} {
			for _, e.Error = range []string{"", "is"} {
				all = append(all, e)
			}
		}
	}
	return all
}

func byStop(e Event) []Event {
	var all []Event
	e.Error, e.By, e.Why = "because", "uid 7", "asked"
	for e.Reason = 0; e.Reason <= reasonEnd; e.Reason++ {
		for _, e.Target = range targets {
			e.Timer, e.WorkAccepted = false, true
			all = append(all, e)
			for _, e.WorkAccepted = range []bool{false, true} {
				e.Timer = true
				all = append(all, e)
			}
		}
	}
	return all
}

var sentinels = []error{
	ErrMalformed, ErrEvent, ErrNoTime, ErrOwned, ErrCleanupPending, ErrNotQuarantined, ErrNoInstance,
	ErrAbsenceUnverified, ErrGenerationUnknown, ErrGenerationUsed, ErrNoGenerationLeft, ErrDeadlinePassed,
	ErrReason, ErrTarget, ErrBudgetSpent, ErrAttemptID, ErrWorkerOut, ErrNotExactlyOne, ErrNoDecision, ErrNoFloor,
}

// answer is Reduce's answer as a verdict, without one guard.
func answer(r Rules, s State, e Event, without omission) (verdict, error) {
	n, effects, outcome, err := r.reduce(s, e, without)
	v := verdict{state: n, outcome: outcome}
	if copy(v.effects[:], effects) != len(effects) {
		return v, fmt.Errorf("%d effects", len(effects))
	}
	for _, known := range sentinels {
		if errors.Is(err, known) {
			v.err = known
		}
	}
	if (err != nil) != (v.err != nil) {
		return v, fmt.Errorf("error of no known kind: %w", err)
	}
	return v, nil
}

// wrong says what is wrong with the answer to e in s, "" if nothing is: it must
// be the model's, and a state that can be.
func wrong(r Rules, s State, e Event, without omission) string {
	got, err := answer(r, s, e, without)
	if err != nil {
		return err.Error()
	}
	if want := (model{r, s, e}).run(); got != want {
		return fmt.Sprintf("got  %+v\nwant %+v", got, want)
	}
	if err := got.state.Check(); err != nil {
		return err.Error()
	}
	return ""
}

// firstWrong goes through the grid of one cell.
func firstWrong(k Kind, ek EventKind, without omission) (what string, size int) {
	r := DefaultRules()
	for _, s := range statesOf(k) {
		for _, e := range eventsOf(ek) {
			size++
			if w := wrong(r, s, e, without); w != "" {
				return fmt.Sprintf("%+v\nevent %+v\n%s", s, e, w), size
			}
		}
	}
	return "", size
}

// TestGridAgreesWithModel: every cell, over its whole grid, answers what the
// reference model answers.
func TestGridAgreesWithModel(t *testing.T) {
	t.Parallel()
	total := 0
	for _, k := range Kinds() {
		for _, s := range statesOf(k) {
			if err := s.Check(); err != nil || s.Kind != k {
				t.Fatalf("grid state %+v of %s: %v", s, k, err)
			}
		}
		for _, ek := range EventKinds() {
			what, size := firstWrong(k, ek, omission{})
			total += size
			if what != "" {
				t.Errorf("%s × %s: %s", k, ek, what)
			}
		}
	}
	t.Logf("%d state and event pairs compared", total)
}

// TestEveryGuardIsNeeded is the sabotage list: each guard is taken out of each
// cell that lists it, and the grid of that cell must show it.
func TestEveryGuardIsNeeded(t *testing.T) {
	t.Parallel()
	total := 0
	for _, k := range Kinds() {
		for _, ek := range EventKinds() {
			for _, g := range table[k][ek].guards {
				total++
				if what, _ := firstWrong(k, ek, omission{k, ek, g.name}); what == "" {
					t.Errorf("%s × %s: nobody notices that guard %q is gone", k, ek, g.name)
				}
			}
		}
	}
	t.Logf("%d guards taken out, one at a time", total)
}
