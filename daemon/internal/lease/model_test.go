package lease

import "time"

// The reference model: what SPEC says about a lease, event by event, written
// without the table, its guards and its steps. It shares only the types.

// verdict is all that Reduce answers, in comparable form.
type verdict struct {
	state   State
	outcome Outcome
	err     error
	effects [2]Effect
}

type model struct {
	r Rules
	s State
	e Event
}

func (m model) owned() bool {
	return m.s.Kind == Starting || m.s.Kind == Ready || m.s.Kind == Active || m.s.Kind == Warm
}

func (m model) stopping() bool {
	return m.s.Kind == StopNeeded || m.s.Kind == Stopping || m.s.Kind == Quarantined
}

func (m model) same() verdict            { return verdict{state: m.s, outcome: Unchanged} }
func (m model) stale() verdict           { return verdict{state: m.s, outcome: Stale} }
func (m model) refuse(err error) verdict { return verdict{state: m.s, outcome: Refused, err: err} }
func (m model) mine() bool               { return m.e.Instance == m.s.Instance }
func (m model) myAttempt() bool          { return m.e.AttemptID == m.s.Stop.AttemptID }
func (m model) late() bool               { return m.e.Deadline != 0 && m.e.Deadline <= m.e.Now }
func (m model) whole(i Instance) bool    { return len(i.ID) > 0 && i.Generation > 0 }
func (m model) pending() bool            { return m.s.Stop.JoinBy > 0 || m.s.Stop.Stuck }
func (m model) spent() bool              { return m.s.Stop.Attempts >= m.r.StopAttempts }
func to(s State, effects ...Effect) verdict {
	v := verdict{state: s, outcome: Changed}
	copy(v.effects[:], effects)
	return v
}

// own is an owned state of kind k that keeps only the instance and the notes.
func (m model) own(k Kind, in time.Duration) State {
	s := m.s
	n := State{Kind: k, NextGeneration: s.NextGeneration, Instance: s.Instance,
		Frozen: s.Frozen, FrozenAt: s.FrozenAt, LinkLostAt: s.LinkLostAt}
	if k == Active {
		return n
	}
	at := m.e.Deadline
	if at == 0 && in > 0 {
		at = m.e.Now + in
	}
	if at != 0 && s.Frozen {
		at -= m.e.Now - s.FrozenAt // thawing gives it back
	}
	n.Deadline = at
	return n
}

func (m model) vacant(c Cause, by, why string) verdict {
	gone := Effect{Kind: Vacated, Instance: m.s.Instance, Target: m.s.Stop.Target,
		Reason: m.s.Stop.Reason, Cause: c, By: by, Why: why}
	n := State{Kind: Vacant, NextGeneration: m.s.NextGeneration}
	if c == CauseGone && m.s.Kind == Starting && !m.s.Reuse {
		return to(n, Effect{Kind: CancelLaunch, Instance: m.s.Instance}, gone)
	}
	return to(n, gone)
}

func (m model) run() verdict {
	switch m.e.Kind {
	case Allocate, Verified, Accepted, Idle, Reuse, OwnedAbsent:
		return m.ownership()
	case LinkLost, LinkRegained, Frozen, Thawed:
		return m.notes()
	case RequestStop:
		return m.request()
	case BeginAttempt, AttemptAbsent, AttemptNotConfirmed, AttemptExpired, Exhaust, WorkerStuck:
		return m.attempts()
	case RecheckAbsent, RecheckDone, RecheckDue, RecheckForced:
		return m.rechecks()
	case NewEpoch:
		if m.s.Kind == Vacant {
			return m.same()
		}
		return m.vacant(CauseNewEpoch, m.s.Stop.By, m.s.Stop.Why)
	case FloorRaised:
		if m.e.Floor == 0 {
			return m.refuse(ErrNoFloor)
		}
		n := m.s
		if n.NextGeneration >= m.e.Floor {
			return m.same()
		}
		n.NextGeneration = m.e.Floor
		return to(n)
	}
	return m.decisions()
}

func (m model) ownership() verdict {
	if m.e.Kind == Allocate {
		return m.allocate()
	}
	if m.e.Kind == Reuse && m.stopping() {
		return m.refuse(ErrCleanupPending)
	}
	if !m.owned() && !m.stopping() || !m.mine() {
		return m.stale()
	}
	if m.stopping() {
		return m.same()
	}
	switch m.e.Kind {
	case Verified:
		if m.s.Kind != Starting {
			return m.same()
		}
		if m.late() {
			return m.refuse(ErrDeadlinePassed)
		}
		return to(m.own(Ready, m.r.ReadyDeadline))
	case Accepted:
		if m.s.Kind == Active {
			return m.same()
		}
		return to(m.own(Active, 0))
	case Idle:
		fallsBack := m.s.Kind == Starting && m.s.Reuse
		if m.s.Kind != Active && !fallsBack {
			return m.same()
		}
		if m.late() {
			return m.refuse(ErrDeadlinePassed)
		}
		return to(m.own(Warm, m.r.KeepWarm))
	case Reuse:
		return m.reuse()
	}
	if m.s.Kind == Starting && !m.s.Reuse && !m.e.AbsenceVerified {
		return m.refuse(ErrAbsenceUnverified)
	}
	return m.vacant(CauseGone, "", "")
}

func (m model) allocate() verdict {
	i := m.e.Instance
	switch {
	case m.owned():
		return m.refuse(ErrOwned)
	case m.stopping():
		return m.refuse(ErrCleanupPending)
	case !m.e.AbsenceVerified:
		return m.refuse(ErrAbsenceUnverified)
	case !m.whole(i):
		return m.refuse(ErrNoInstance)
	case m.s.NextGeneration == 0:
		return m.refuse(ErrGenerationUnknown)
	case i.Generation < m.s.NextGeneration:
		return m.refuse(ErrGenerationUsed)
	case i.Generation+1 == 0:
		return m.refuse(ErrNoGenerationLeft)
	case m.late():
		return m.refuse(ErrDeadlinePassed)
	}
	m.s.Instance = i
	n := m.own(Starting, m.r.StartupDeadline)
	n.NextGeneration = i.Generation + 1
	return to(n, Effect{Kind: Launch, Instance: i, Deadline: n.Deadline})
}

func (m model) reuse() verdict {
	if m.s.Kind != Warm && m.s.Kind != Ready {
		return m.same()
	}
	matching := 0
	for _, o := range m.e.Observed {
		if o == m.s.Instance {
			matching++
		}
	}
	if matching != 1 || len(m.e.Observed) != 1 {
		return m.refuse(ErrNotExactlyOne)
	}
	if m.late() {
		return m.refuse(ErrDeadlinePassed)
	}
	n := m.own(Starting, m.r.StartupDeadline)
	n.Reuse = true
	return to(n, Effect{Kind: Verify, Instance: n.Instance, Deadline: n.Deadline})
}

func (m model) notes() verdict {
	if m.s.Kind == Vacant || !m.mine() {
		return m.stale()
	}
	if m.stopping() {
		return m.same()
	}
	n := m.s
	switch m.e.Kind {
	case LinkLost:
		if n.LinkLostAt == 0 {
			n.LinkLostAt = m.e.Now
			return to(n)
		}
	case LinkRegained:
		if n.LinkLostAt != 0 {
			n.LinkLostAt = 0
			return to(n)
		}
	case Frozen:
		if !n.Frozen {
			n.Frozen, n.FrozenAt = true, m.e.Now
			return to(n, Effect{Kind: Freeze, Instance: n.Instance})
		}
	case Thawed:
		if n.Frozen {
			stood := m.e.Now - n.FrozenAt
			if n.Deadline > 0 {
				n.Deadline += stood
			}
			if n.LinkLostAt > n.FrozenAt {
				n.LinkLostAt = m.e.Now
			} else if n.LinkLostAt > 0 {
				n.LinkLostAt += stood
			}
			n.Frozen, n.FrozenAt = false, 0
			return to(n, Effect{Kind: Thaw, Instance: n.Instance})
		}
	}
	return m.same()
}
