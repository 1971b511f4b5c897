package lease

// The half of the reference model that is about stopping, quarantine and the
// operator.

// request follows the rules of the states and the table of emitters.
func (m model) request() verdict {
	e, s := m.e, m.s
	var session, instance bool
	switch e.Reason {
	case SessionDelete, UnexpectedWrapper, ObservationFailed, HostDrain:
		session = true
	case Operator:
		session, instance = true, true
	case ReadinessFailed, StartupFailed, Unhealthy, TerminalFailed, TerminalCompleted, TerminalEnded,
		TerminalInterrupted, IdleTimeout, KeepWarmExpired, UserInterrupt, LimitExceeded:
		instance = true
	default:
		return m.refuse(ErrReason)
	}
	forSession := e.Target == Target{}
	if forSession && !session || !forSession && (!instance || !m.whole(e.Target.Instance)) {
		return m.refuse(ErrTarget)
	}
	if !forSession && e.Target.Instance != s.Instance {
		return m.stale()
	}
	if m.stopping() {
		return m.same()
	}
	if m.voidReason() {
		return m.stale()
	}
	if m.owned() && e.Timer && e.WorkAccepted {
		return to(m.own(Active, 0))
	}
	n := State{Kind: StopNeeded, NextGeneration: s.NextGeneration, Instance: s.Instance, Stop: Stop{
		Target: e.Target, Reason: e.Reason, RequestedAt: e.Now, NextAttemptAt: e.Now,
		LastError: e.Error, By: e.By, Why: e.Why,
	}}
	if s.Kind == Starting && !s.Reuse {
		return to(n, Effect{Kind: CancelLaunch, Instance: s.Instance})
	}
	return to(n)
}

// voidReason: the verdict was about a state, or a clock, that is not there.
func (m model) voidReason() bool {
	s, reason := m.s, m.e.Reason
	over := s.Deadline > 0 && s.Deadline <= m.e.Now && !s.Frozen
	switch reason {
	case StartupFailed:
		return s.Kind != Starting || m.e.Timer && !over
	case ReadinessFailed:
		return s.Kind != Ready || m.e.Timer && !over
	case KeepWarmExpired:
		return s.Kind != Warm || !over
	case IdleTimeout:
		return s.Kind != Active || m.e.Timer || s.Frozen
	case Unhealthy:
		return m.e.Timer || s.Frozen
	}
	return m.e.Timer
}

func (m model) attempts() verdict {
	if !m.stopping() {
		return m.stale()
	}
	switch m.e.Kind {
	case BeginAttempt:
		return m.begin()
	case AttemptAbsent, AttemptNotConfirmed:
		return m.result()
	case AttemptExpired:
		if m.s.Kind != Stopping || !m.myAttempt() || m.e.Now < m.s.Stop.AttemptDeadline {
			return m.stale()
		}
		n := m.again("attempt " + digits(m.s.Stop.Attempts) + " did not end by its deadline")
		n.Stop.JoinBy = m.e.Now + m.r.JoinBound
		return to(n, m.cancelled(n))
	case Exhaust:
		return m.exhaust()
	}
	return m.stuck()
}

func (m model) cancelled(n State) Effect {
	return Effect{Kind: CancelAttempt, Instance: n.Instance, Target: n.Stop.Target,
		AttemptID: n.Stop.AttemptID, Deadline: n.Stop.JoinBy, Reason: n.Stop.Reason}
}

func (m model) begin() verdict {
	p := m.s.Stop
	switch {
	case m.s.Kind != StopNeeded || m.e.Now < p.NextAttemptAt || p.JoinBy != 0:
		return m.stale()
	case m.spent():
		return m.refuse(ErrBudgetSpent)
	case m.e.AttemptID == "" || m.e.AttemptID == p.AttemptID:
		return m.refuse(ErrAttemptID)
	case m.late():
		return m.refuse(ErrDeadlinePassed)
	}
	p.Attempts++
	p.AttemptID, p.AttemptStartedAt, p.AttemptDeadline = m.e.AttemptID, m.e.Now, m.e.Deadline
	if m.e.Deadline == 0 {
		p.AttemptDeadline = m.e.Now + m.r.AttemptDeadline
	}
	n := m.s
	n.Kind, n.Stop = Stopping, p
	return to(n, Effect{Kind: BeginAttemptWork, Instance: n.Instance, Target: p.Target, AttemptID: p.AttemptID,
		Deadline: p.AttemptDeadline, Reason: p.Reason, By: p.By, Why: p.Why})
}

// again is the state after an attempt without success.
func (m model) again(err string) State {
	n := m.s
	n.Kind = StopNeeded
	n.Stop.AttemptStartedAt, n.Stop.AttemptDeadline = 0, 0
	n.Stop.ExhaustedAt, n.Stop.NextRecheckAt, n.Stop.Stuck, n.Stop.JoinBy = 0, 0, false, 0
	n.Stop.NextAttemptAt = m.e.Now
	if done := n.Stop.Attempts; done < m.r.StopAttempts && len(m.r.AttemptDelays) > 0 {
		if done > len(m.r.AttemptDelays) {
			done = len(m.r.AttemptDelays)
		}
		n.Stop.NextAttemptAt += m.r.AttemptDelays[done-1]
	}
	if err != "" {
		n.Stop.LastError = err
	}
	return n
}

func (m model) result() verdict {
	if !m.myAttempt() {
		return m.stale()
	}
	if m.s.Kind == Stopping {
		if m.e.Kind == AttemptAbsent {
			return m.vacant(CauseStopped, m.s.Stop.By, m.s.Stop.Why)
		}
		return to(m.again(m.e.Error))
	}
	if !m.pending() {
		return m.stale()
	}
	if m.s.Kind == Quarantined && m.s.Stop.Stuck && !m.spent() {
		return to(m.again(m.e.Error))
	}
	n := m.s
	n.Stop.JoinBy, n.Stop.Stuck = 0, false
	if m.e.Error != "" {
		n.Stop.LastError = m.e.Error
	}
	return to(n)
}

// closed is the state at the beginning of quarantine.
func (m model) closed() State {
	n := m.s
	n.Kind = Quarantined
	n.Stop.AttemptStartedAt, n.Stop.AttemptDeadline = 0, 0
	n.Stop.ExhaustedAt, n.Stop.NextRecheckAt = m.e.Now, m.e.Now+m.r.RecheckEvery
	if m.r.RecheckEvery == 0 || m.r.RecheckEvery > m.r.RecheckWindow {
		n.Stop.NextRecheckAt = 0
	}
	return n
}

func (m model) exhaust() verdict {
	switch {
	case m.s.Kind == Quarantined:
		return m.same()
	case !m.spent() || m.s.Kind == Stopping && m.e.Now < m.s.Stop.AttemptDeadline:
		return m.stale()
	}
	n := m.closed()
	if m.s.Kind != Stopping {
		return to(n)
	}
	n.Stop.LastError = "attempt " + digits(m.s.Stop.Attempts) + " did not end by its deadline"
	n.Stop.JoinBy = m.e.Now + m.r.JoinBound
	return to(n, m.cancelled(n))
}

func (m model) stuck() verdict {
	p := m.s.Stop
	if !m.myAttempt() {
		return m.stale()
	}
	if m.s.Kind == Stopping && m.e.Now < p.AttemptDeadline {
		return m.stale()
	}
	if m.s.Kind != Stopping && (!m.pending() || m.e.Now < p.JoinBy) {
		return m.stale()
	}
	if p.Stuck {
		return m.same()
	}
	n := m.s
	if m.s.Kind != Quarantined {
		n = m.closed()
	}
	n.Stop.Stuck, n.Stop.JoinBy = true, 0
	n.Stop.LastError = m.e.Error
	if m.e.Error == "" {
		n.Stop.LastError = "the worker of attempt " + p.AttemptID + " has not returned, the kernel holds it"
	}
	return to(n)
}

func (m model) rechecks() verdict {
	p := m.s.Stop
	look := Effect{Kind: Recheck, Instance: m.s.Instance, Target: p.Target, AttemptID: p.AttemptID, Reason: p.Reason}
	if m.e.Kind == RecheckForced {
		v := m.same()
		if m.s.Kind == Quarantined {
			v.effects[0] = look
		}
		return v
	}
	if m.s.Kind != Quarantined {
		return m.stale()
	}
	if m.e.Kind != RecheckDue && (!m.mine() || !m.myAttempt()) {
		return m.stale()
	}
	if m.e.Kind == RecheckAbsent {
		if m.pending() {
			return m.same()
		}
		return m.vacant(CauseRechecked, p.By, p.Why)
	}
	if m.e.Kind == RecheckDue && p.ExhaustedAt != 0 && (p.NextRecheckAt == 0 || m.e.Now < p.NextRecheckAt) {
		return m.stale()
	}
	n := m.s
	if p.ExhaustedAt == 0 {
		n.Stop.ExhaustedAt = m.e.Now
	}
	n.Stop.NextRecheckAt = 0
	if m.r.RecheckEvery > 0 {
		for at := n.Stop.ExhaustedAt + m.r.RecheckEvery; at <= n.Stop.ExhaustedAt+m.r.RecheckWindow; at += m.r.RecheckEvery {
			if at > m.e.Now {
				n.Stop.NextRecheckAt = at
				break
			}
		}
	}
	if m.e.Kind == RecheckDue {
		return to(n, look)
	}
	if m.e.Error != "" {
		n.Stop.LastError = m.e.Error
	}
	if n == m.s {
		return m.same()
	}
	return to(n)
}

func (m model) decisions() verdict {
	e, s := m.e, m.s
	if s.Kind != Quarantined {
		return m.refuse(ErrNotQuarantined)
	}
	if e.By == "" || e.Why == "" {
		return m.refuse(ErrNoDecision)
	}
	if e.Kind == Abandon {
		return m.vacant(CauseAbandoned, e.By, e.Why)
	}
	switch {
	case !m.whole(e.Instance):
		return m.refuse(ErrNoInstance)
	case s.Instance != Instance{} && s.Instance != e.Instance:
		return m.stale()
	case s.NextGeneration == 0:
		return m.refuse(ErrGenerationUnknown)
	case e.Instance.Generation+1 == 0:
		return m.refuse(ErrNoGenerationLeft)
	}
	for _, o := range e.Observed {
		if o != e.Instance {
			return m.refuse(ErrNotExactlyOne)
		}
	}
	if len(e.Observed) > 1 {
		return m.refuse(ErrNotExactlyOne)
	}
	if m.pending() {
		return m.refuse(ErrWorkerOut)
	}
	next := s.NextGeneration
	if e.Instance.Generation >= next {
		next = e.Instance.Generation + 1
	}
	return to(State{Kind: Active, NextGeneration: next, Instance: e.Instance},
		Effect{Kind: Verify, Instance: e.Instance, By: e.By, Why: e.Why})
}

func digits(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return digits(n/10) + digits(n%10)
}
