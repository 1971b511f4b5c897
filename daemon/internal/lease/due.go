package lease

import "time"

// timerReason is the stop that the deadline of kind k asks for, 0 for a kind
// without a deadline.
func timerReason(k Kind) Reason {
	switch k {
	case Starting:
		return StartupFailed
	case Ready:
		return ReadinessFailed
	case Warm:
		return KeepWarmExpired
	}
	return 0
}

// due reports whether the deadline of an owned state has passed. Frozen, its
// clock stands still.
func (s State) due(now time.Duration) bool {
	return s.Deadline != 0 && !s.Frozen && now >= s.Deadline
}

func (s State) recheckDue(now time.Duration) bool {
	if s.Stop.ExhaustedAt == 0 {
		return true
	}
	return s.Stop.NextRecheckAt != 0 && now >= s.Stop.NextRecheckAt
}

// NextDeadline returns when Due will next have something to say about s, if
// nothing else happens; it may lie in the past. False: never.
func (r Rules) NextDeadline(s State) (time.Duration, bool) {
	p := s.Stop
	switch s.Kind {
	case Starting, Ready, Warm:
		return s.Deadline, s.Deadline != 0 && !s.Frozen
	case StopNeeded:
		switch {
		case p.Attempts >= r.budget():
			return 0, true
		case p.JoinBy != 0:
			return p.JoinBy, true
		}
		return p.NextAttemptAt, true
	case Stopping:
		return p.AttemptDeadline, true
	case Quarantined:
		if p.JoinBy != 0 && (p.NextRecheckAt == 0 || p.JoinBy < p.NextRecheckAt) {
			return p.JoinBy, true
		}
		return p.NextRecheckAt, p.ExhaustedAt == 0 || p.NextRecheckAt != 0
	}
	return 0, false
}

// Due returns the event that time alone brings about by now, a CLOCK_BOOTTIME
// reading above 0; false if there is none yet. The caller passes it to Reduce,
// which asks the state again, after filling in what only the caller knows: the
// AttemptID of a BeginAttempt, WorkAccepted of a RequestStop. It may be asked
// again at the same now with the state that came out: that ends after a few
// events.
func (r Rules) Due(s State, now time.Duration) (Event, bool) {
	at, ok := r.NextDeadline(s)
	if !ok || now < at || now <= 0 {
		return Event{}, false
	}
	e := Event{Now: now, AttemptID: s.Stop.AttemptID}
	switch s.Kind {
	case Starting, Ready, Warm:
		e.Kind, e.Timer = RequestStop, true
		e.Instance, e.Target, e.Reason = s.Instance, Target{s.Instance}, timerReason(s.Kind)
	case StopNeeded:
		switch {
		case s.Stop.Attempts >= r.budget():
			e.Kind = Exhaust
		case s.Stop.JoinBy != 0:
			e.Kind = WorkerStuck
		default:
			e.Kind, e.AttemptID = BeginAttempt, ""
			e.Deadline = after(now, r.AttemptDeadline)
		}
	case Stopping:
		e.Kind = AttemptExpired
	case Quarantined:
		e.Kind, e.Instance = RecheckDue, s.Instance
		if s.Stop.JoinBy != 0 && at == s.Stop.JoinBy {
			e.Kind = WorkerStuck
		}
	}
	return e, true
}

// Owed returns the effects that a daemon owes for a lease that it reads back
// after a restart in the same epoch: the workers died with the process before
// it, the state did not. Nothing is ever launched again from here, and a stop
// goes on under its old attempt id and deadline. A lease with a worker out is
// first to be told of its return by AttemptNotConfirmed.
func (s State) Owed() []Effect {
	switch {
	case s.Kind == Stopping:
		return []Effect{s.work()}
	case !s.Owned():
		return nil
	}
	effects := []Effect{{Kind: Verify, Instance: s.Instance, Deadline: s.Deadline}}
	if s.Frozen {
		effects = append(effects, Effect{Kind: Freeze, Instance: s.Instance})
	}
	return effects
}
