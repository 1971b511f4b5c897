package lease

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestRulesValidate: rules under which a lease would be stuck are told.
func TestRulesValidate(t *testing.T) {
	t.Parallel()
	if err := DefaultRules().Validate(); err != nil {
		t.Error(err)
	}
	off := Rules{StopAttempts: 1, AttemptDeadline: 1, JoinBound: 1, AttemptDelays: []time.Duration{0}}
	if err := off.Validate(); err != nil {
		t.Errorf("what may be switched off is: %v", err)
	}
	for name, spoil := range map[string]func(*Rules){
		"no attempt":            func(r *Rules) { r.StopAttempts = 0 },
		"no attempt deadline":   func(r *Rules) { r.AttemptDeadline = 0 },
		"no join bound":         func(r *Rules) { r.JoinBound = 0 },
		"startup below zero":    func(r *Rules) { r.StartupDeadline = -1 },
		"ready below zero":      func(r *Rules) { r.ReadyDeadline = -1 },
		"keep warm below zero":  func(r *Rules) { r.KeepWarm = -1 },
		"recheck below zero":    func(r *Rules) { r.RecheckEvery = -1 },
		"window below zero":     func(r *Rules) { r.RecheckWindow = -1 },
		"an earlier next start": func(r *Rules) { r.AttemptDelays[2] = -1 },
	} {
		r := DefaultRules()
		spoil(&r)
		if err := r.Validate(); !errors.Is(err, ErrRules) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestInputIsChecked: what no cell is written for is refused and named.
func TestInputIsChecked(t *testing.T) {
	t.Parallel()
	whole := example(Ready, Verified)
	stop := example(StopNeeded, BeginAttempt)
	for name, c := range map[string]struct {
		s    State
		e    Event
		want error
	}{
		"no event":          {whole, Event{Now: t0}, ErrEvent},
		"event out of set":  {whole, Event{Kind: eventEnd, Now: t0}, ErrEvent},
		"no time":           {whole, Event{Kind: Verified, Instance: instA}, ErrNoTime},
		"time below zero":   {whole, Event{Kind: Verified, Now: -1, Instance: instA}, ErrNoTime},
		"no state":          {State{}, Event{Kind: NewEpoch, Now: t0}, ErrMalformed},
		"state out of set":  {State{Kind: kindEnd}, Event{Kind: NewEpoch, Now: t0}, ErrMalformed},
		"stop without kind": {stop, Event{Kind: FloorRaised, Now: t0}, ErrNoFloor},
	} {
		n, effects, outcome, err := DefaultRules().Reduce(c.s, c.e)
		if n != c.s || effects != nil || outcome != Refused || !errors.Is(err, c.want) {
			t.Errorf("%s: %s %v %v", name, outcome, effects, err)
		}
	}
}

// TestNothingIsDueAtNoTime: an event that Reduce would refuse is not due.
func TestNothingIsDueAtNoTime(t *testing.T) {
	t.Parallel()
	if e, ok := DefaultRules().Due(example(StopNeeded, Exhaust), 0); ok {
		t.Errorf("%s is due", e.Kind)
	}
}

// TestCheck: each way in which a record can contradict itself.
func TestCheck(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]struct {
		kind Kind
		how  func(*State)
	}{
		"vacant with an instance":       {Vacant, func(s *State) { s.Instance = instA }},
		"vacant with a stop":            {Vacant, func(s *State) { s.Stop.Reason = Operator }},
		"vacant with a deadline":        {Vacant, func(s *State) { s.Deadline = t1 }},
		"owned without instance":        {Ready, func(s *State) { s.Instance = Instance{} }},
		"owned by half an instance":     {Ready, func(s *State) { s.Instance.ID = "" }},
		"owned without generation":      {Ready, func(s *State) { s.Instance.Generation = 0 }},
		"owned above the counter":       {Ready, func(s *State) { s.NextGeneration = 3 }},
		"owned without counter":         {Ready, func(s *State) { s.NextGeneration = 0 }},
		"owned with a stop":             {Warm, func(s *State) { s.Stop.Attempts = 1 }},
		"ready by reuse":                {Ready, func(s *State) { s.Reuse = true }},
		"active with a deadline":        {Active, func(s *State) { s.Deadline = t1 }},
		"deadline below zero":           {Ready, func(s *State) { s.Deadline = -1 }},
		"link lost below zero":          {Ready, func(s *State) { s.LinkLostAt = -1 }},
		"frozen without time":           {Active, func(s *State) { s.Frozen = true }},
		"frozen before boot":            {Active, func(s *State) { s.Frozen, s.FrozenAt = true, -1 }},
		"not frozen since":              {Active, func(s *State) { s.FrozenAt = t0 }},
		"stop without reason":           {StopNeeded, func(s *State) { s.Stop.Reason = 0 }},
		"stop with a strange reason":    {StopNeeded, func(s *State) { s.Stop.Reason = reasonEnd }},
		"stop of somebody else":         {StopNeeded, func(s *State) { s.Stop.Target.Instance = instB }},
		"stop of half an instance":      {StopNeeded, func(s *State) { s.Instance.Generation = 0; s.Stop.Target = Target{} }},
		"stop that is frozen":           {StopNeeded, func(s *State) { s.Frozen, s.FrozenAt = true, t0 }},
		"attempts below zero":           {StopNeeded, func(s *State) { s.Stop.Attempts = -1 }},
		"attempts without id":           {StopNeeded, func(s *State) { s.Stop.AttemptID = "" }},
		"id without attempts":           {StopNeeded, func(s *State) { s.Stop.Attempts = 0 }},
		"requested before boot":         {StopNeeded, func(s *State) { s.Stop.RequestedAt = -1 }},
		"next attempt before boot":      {StopNeeded, func(s *State) { s.Stop.NextAttemptAt = -1 }},
		"join before boot":              {StopNeeded, func(s *State) { s.Stop.JoinBy = -1 }},
		"stuck outside quarantine":      {StopNeeded, func(s *State) { s.Stop.Stuck = true }},
		"quarantine elsewhere":          {StopNeeded, func(s *State) { s.Stop.ExhaustedAt = t0 }},
		"recheck elsewhere":             {StopNeeded, func(s *State) { s.Stop.NextRecheckAt = t0 }},
		"attempt between attempts":      {StopNeeded, func(s *State) { s.Stop.AttemptDeadline = t0 }},
		"attempt start between":         {StopNeeded, func(s *State) { s.Stop.AttemptStartedAt = t0 }},
		"stopping without attempt":      {Stopping, func(s *State) { s.Stop.Attempts, s.Stop.AttemptID = 0, "" }},
		"stopping without start":        {Stopping, func(s *State) { s.Stop.AttemptStartedAt = 0 }},
		"stopping without deadline":     {Stopping, func(s *State) { s.Stop.AttemptDeadline = 0 }},
		"stopping with a worker out":    {Stopping, func(s *State) { s.Stop.JoinBy = t1 }},
		"a worker that never was":       {Quarantined, func(s *State) { s.Stop.Attempts, s.Stop.AttemptID, s.Stop.Stuck = 0, "", true }},
		"a worker both late and stuck":  {Quarantined, func(s *State) { s.Stop.JoinBy, s.Stop.Stuck = t1, true }},
		"quarantine before boot":        {Quarantined, func(s *State) { s.Stop.ExhaustedAt = -1 }},
		"recheck before boot":           {Quarantined, func(s *State) { s.Stop.NextRecheckAt = -1 }},
		"quarantine with a dead line":   {Quarantined, func(s *State) { s.Deadline = t1 }},
		"quarantine with a lost link":   {Quarantined, func(s *State) { s.LinkLostAt = t1 }},
		"quarantine started by a reuse": {Quarantined, func(s *State) { s.Reuse = true }},
	} {
		s := example(spoil.kind, NewEpoch)
		if err := s.Check(); err != nil {
			t.Fatalf("%s: the example is bad: %v", name, err)
		}
		spoil.how(&s)
		if err := s.Check(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestExtremes: no number, however large, makes a step panic, a state malformed,
// a generation fall or a deadline lie in the past.
func TestExtremes(t *testing.T) {
	t.Parallel()
	const most = time.Duration(1<<63 - 1)
	times := rapid.SampledFrom([]time.Duration{0, 1, t0, t1, most - 1, most, -1})
	numbers := rapid.SampledFrom([]uint64{0, 1, 2, 3, 4, 9, ^uint64(0) - 1, ^uint64(0)})
	names := rapid.SampledFrom([]string{"", instA.ID, instB.ID})
	instance := rapid.Custom(func(t *rapid.T) Instance { return Instance{names.Draw(t, "id"), numbers.Draw(t, "generation")} })
	rapid.Check(t, func(t *rapid.T) {
		r := DefaultRules()
		if rapid.Bool().Draw(t, "odd rules") {
			r = Rules{StartupDeadline: most, ReadyDeadline: most, KeepWarm: most, AttemptDeadline: most,
				JoinBound: most, RecheckEvery: 1, RecheckWindow: most, StopAttempts: rapid.IntRange(-1, 2).Draw(t, "budget")}
		}
		states := statesOf(Kinds()[rapid.IntRange(0, int(kindEnd)-2).Draw(t, "kind")])
		s := states[rapid.IntRange(0, len(states)-1).Draw(t, "state")]
		for range 20 {
			e := Event{
				Kind: EventKinds()[rapid.IntRange(0, int(eventEnd)-2).Draw(t, "event")], Now: times.Draw(t, "now"),
				Instance: instance.Draw(t, "instance"), Deadline: times.Draw(t, "deadline"),
				Target: Target{instance.Draw(t, "target")}, Reason: Reason(rapid.IntRange(0, int(reasonEnd)).Draw(t, "reason")),
				AttemptID: names.Draw(t, "attempt"), Floor: numbers.Draw(t, "floor"), By: "by", Why: "why",
				AbsenceVerified: rapid.Bool().Draw(t, "absence"), Timer: rapid.Bool().Draw(t, "timer"),
			}
			if rapid.Bool().Draw(t, "due") {
				if d, ok := r.Due(s, e.Now); ok {
					d.AttemptID += names.Draw(t, "suffix")
					e = d
				}
			}
			n, _, outcome, _ := r.Reduce(s, e)
			if err := n.Check(); err != nil || n.NextGeneration < s.NextGeneration {
				t.Fatalf("%+v\n%+v\n%s %+v\n%v", s, e, outcome, n, err)
			}
			s = n
		}
	})
}
