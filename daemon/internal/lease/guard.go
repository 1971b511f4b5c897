package lease

// A guard lets an event through with outcome 0, or ends it. Guards run in the
// order in which a cell lists them. They look, they never change.
type guard struct {
	name  string
	check func(r Rules, s State, e Event) (Outcome, error)
}

// staleUnless makes a guard that counts the event as stale where ok is false.
func staleUnless(name string, ok func(r Rules, s State, e Event) bool) guard {
	return guard{name, func(r Rules, s State, e Event) (Outcome, error) {
		if ok(r, s, e) {
			return 0, nil
		}
		return Stale, nil
	}}
}

// refuseUnless makes a guard that refuses with err where ok is false.
func refuseUnless(name string, err error, ok func(r Rules, s State, e Event) bool) guard {
	return guard{name, func(r Rules, s State, e Event) (Outcome, error) {
		if ok(r, s, e) {
			return 0, nil
		}
		return Refused, err
	}}
}

// ignoreUnless makes a guard that leaves the state alone where ok is false.
func ignoreUnless(name string, ok func(r Rules, s State, e Event) bool) guard {
	return guard{name, func(r Rules, s State, e Event) (Outcome, error) {
		if ok(r, s, e) {
			return 0, nil
		}
		return Unchanged, nil
	}}
}

// Guards on whom the event is about.
var (
	sameInstance = staleUnless("same_instance", func(_ Rules, s State, e Event) bool {
		return s.Instance == e.Instance
	})
	sameAttempt = staleUnless("same_attempt", func(_ Rules, s State, e Event) bool {
		return s.Stop.AttemptID == e.AttemptID
	})
	// currentTarget: a stop of the whole session is always about this lease, a
	// stop of one instance only if the lease names it.
	currentTarget = staleUnless("current_target", func(_ Rules, s State, e Event) bool {
		return e.Target.Whole() || e.Target.Instance == s.Instance
	})
	// adoptable: a lease that names an instance can be given to no other; one
	// that could not be read names none.
	adoptable = staleUnless("adoptable", func(_ Rules, s State, e Event) bool {
		return s.Instance.IsZero() || s.Instance == e.Instance
	})
	workerOut = staleUnless("worker_out", func(_ Rules, s State, _ Event) bool {
		return s.WorkerOut()
	})
)

// Guards on what the event brings along.
var (
	instanceGiven = refuseUnless("instance_given", ErrNoInstance, func(_ Rules, _ State, e Event) bool {
		return e.Instance.Whole()
	})
	absenceVerified = refuseUnless("absence_verified", ErrAbsenceUnverified, func(_ Rules, _ State, e Event) bool {
		return e.AbsenceVerified
	})
	// launchOver: while a cold launch runs, seeing nothing proves nothing.
	launchOver = refuseUnless("launch_over", ErrAbsenceUnverified, func(_ Rules, s State, e Event) bool {
		return s.Reuse || e.AbsenceVerified
	})
	counterKnown = refuseUnless("counter_known", ErrGenerationUnknown, func(_ Rules, s State, _ Event) bool {
		return s.NextGeneration != 0
	})
	generationFresh = refuseUnless("generation_fresh", ErrGenerationUsed, func(_ Rules, s State, e Event) bool {
		return e.Instance.Generation >= s.NextGeneration
	})
	generationLeft = refuseUnless("generation_left", ErrNoGenerationLeft, func(_ Rules, _ State, e Event) bool {
		return e.Instance.Generation != ^uint64(0)
	})
	deadlineAhead = refuseUnless("deadline_ahead", ErrDeadlinePassed, func(_ Rules, _ State, e Event) bool {
		return e.Deadline == 0 || e.Deadline > e.Now
	})
	exactlyOne = refuseUnless("exactly_one", ErrNotExactlyOne, func(_ Rules, s State, e Event) bool {
		return len(e.Observed) == 1 && e.Observed[0] == s.Instance
	})
	noOther = refuseUnless("no_other", ErrNotExactlyOne, func(_ Rules, _ State, e Event) bool {
		return len(e.Observed) == 0 || len(e.Observed) == 1 && e.Observed[0] == e.Instance
	})
	decided = refuseUnless("decided", ErrNoDecision, func(_ Rules, _ State, e Event) bool {
		return e.By != "" && e.Why != ""
	})
	floorGiven = refuseUnless("floor_given", ErrNoFloor, func(_ Rules, _ State, e Event) bool {
		return e.Floor != 0
	})
)

// Guards on a stop request.
var (
	reasonKnown = refuseUnless("reason_known", ErrReason, func(_ Rules, _ State, e Event) bool {
		return e.Reason.Valid()
	})
	reasonScope = refuseUnless("reason_scope", ErrTarget, func(_ Rules, _ State, e Event) bool {
		return e.Reason.Emission().Scope.admits(e.Target)
	})
	// reasonHolds: a verdict on one kind is void once the lease has moved on; a
	// message accepted at the last moment beats the ready deadline.
	reasonHolds = staleUnless("reason_holds", func(_ Rules, s State, e Event) bool {
		only := e.Reason.Emission().Only
		return only == 0 || only == s.Kind
	})
	// timerDue: the deadline is asked again; a timer is a hint.
	timerDue = staleUnless("timer_due", func(_ Rules, s State, e Event) bool {
		if !e.Timer && e.Reason != KeepWarmExpired {
			return true
		}
		return e.Reason == timerReason(s.Kind) && s.due(e.Now)
	})
	// clockRuns: a clock that berth's own freeze holds gives no verdict.
	clockRuns = staleUnless("clock_runs", func(_ Rules, s State, e Event) bool {
		return !s.Frozen || !e.Reason.Emission().Paused
	})
)

// Guards on attempts and rechecks.
var (
	attemptDue = staleUnless("attempt_due", func(_ Rules, s State, e Event) bool {
		return e.Now >= s.Stop.NextAttemptAt
	})
	// workerJoined: two attempts of one session never overlap.
	workerJoined = staleUnless("worker_joined", func(_ Rules, s State, _ Event) bool {
		return s.Stop.JoinBy == 0
	})
	// joinOverdue: the worker still has time to return.
	joinOverdue = staleUnless("join_overdue", func(_ Rules, s State, e Event) bool {
		return e.Now >= s.Stop.JoinBy
	})
	// workerBack: a worker that comes back to life could kill what was adopted.
	workerBack = refuseUnless("worker_back", ErrWorkerOut, func(_ Rules, s State, _ Event) bool {
		return !s.WorkerOut()
	})
	// workerAway: until it is back, the worker fences the session, whatever else
	// was seen: it could act on what is started next.
	workerAway = ignoreUnless("worker_away", func(_ Rules, s State, _ Event) bool {
		return !s.WorkerOut()
	})
	budgetLeft = refuseUnless("budget_left", ErrBudgetSpent, func(r Rules, s State, _ Event) bool {
		return s.Stop.Attempts < r.budget()
	})
	// freshAttempt: with an id used before, a late result of the earlier attempt
	// would pass for one of this.
	freshAttempt = refuseUnless("fresh_attempt", ErrAttemptID, func(_ Rules, s State, e Event) bool {
		return e.AttemptID != "" && e.AttemptID != s.Stop.AttemptID
	})
	expired = staleUnless("expired", func(_ Rules, s State, e Event) bool {
		return e.Now >= s.Stop.AttemptDeadline
	})
	budgetSpent = staleUnless("budget_spent", func(r Rules, s State, _ Event) bool {
		return s.Stop.Attempts >= r.budget()
	})
	recheckDue = staleUnless("recheck_due", func(_ Rules, s State, e Event) bool {
		return s.recheckDue(e.Now)
	})
	// reused: only a start on a wrapper that was there before can fall back to
	// idle without having accepted anything.
	reused = ignoreUnless("reused", func(_ Rules, s State, _ Event) bool {
		return s.Reuse
	})
)
