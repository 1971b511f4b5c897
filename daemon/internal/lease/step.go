package lease

import (
	"strconv"
	"time"
)

// step carries out an event that all guards of its cell let through.
type step func(r Rules, s State, e Event) (State, []Effect, Outcome, error)

func changed(s State, effects ...Effect) (State, []Effect, Outcome, error) {
	return s, effects, Changed, nil
}

func unchanged(s State) (State, []Effect, Outcome, error) {
	return s, nil, Unchanged, nil
}

// The steps that change nothing.

func indifferent(_ Rules, s State, _ Event) (State, []Effect, Outcome, error) {
	return unchanged(s)
}

func outdated(_ Rules, s State, _ Event) (State, []Effect, Outcome, error) {
	return s, nil, Stale, nil
}

func refusing(err error) step {
	return func(_ Rules, s State, _ Event) (State, []Effect, Outcome, error) {
		return s, nil, Refused, err
	}
}

func observe(_ Rules, s State, _ Event) (State, []Effect, Outcome, error) {
	return s, []Effect{s.recheck()}, Unchanged, nil
}

// The steps of an owned instance.

func start(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	n := s.enter(Starting)
	n.Instance = e.Instance
	n.NextGeneration = max(s.NextGeneration, e.Instance.Generation+1)
	n.Deadline = n.deadline(e, r.StartupDeadline)
	return changed(n, Effect{Kind: Launch, Instance: n.Instance, Deadline: n.Deadline})
}

func restart(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	n := s.enter(Starting)
	n.Reuse = true
	n.Deadline = n.deadline(e, r.StartupDeadline)
	return changed(n, Effect{Kind: Verify, Instance: n.Instance, Deadline: n.Deadline})
}

func becomeReady(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	n := s.enter(Ready)
	n.Deadline = n.deadline(e, r.ReadyDeadline)
	return changed(n)
}

func becomeActive(_ Rules, s State, _ Event) (State, []Effect, Outcome, error) {
	return changed(s.enter(Active))
}

func becomeWarm(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	n := s.enter(Warm)
	n.Deadline = n.deadline(e, r.KeepWarm)
	return changed(n)
}

func vacateGone(_ Rules, s State, _ Event) (State, []Effect, Outcome, error) {
	n, effects := s.vacate(CauseGone, "", "")
	return changed(n, append(s.cancelLaunch(), effects...)...)
}

func noteLost(_ Rules, s State, e Event) (State, []Effect, Outcome, error) {
	if s.LinkLostAt != 0 {
		return unchanged(s)
	}
	s.LinkLostAt = e.Now
	return changed(s)
}

func noteRegained(_ Rules, s State, _ Event) (State, []Effect, Outcome, error) {
	if s.LinkLostAt == 0 {
		return unchanged(s)
	}
	s.LinkLostAt = 0
	return changed(s)
}

func freeze(_ Rules, s State, e Event) (State, []Effect, Outcome, error) {
	if s.Frozen {
		return unchanged(s)
	}
	s.Frozen, s.FrozenAt = true, e.Now
	return changed(s, Effect{Kind: Freeze, Instance: s.Instance})
}

// thaw moves the clocks on by the time that they stood still.
func thaw(_ Rules, s State, e Event) (State, []Effect, Outcome, error) {
	if !s.Frozen {
		return unchanged(s)
	}
	if s.Deadline != 0 {
		s.Deadline = after(s.Deadline, max(e.Now-s.FrozenAt, 0))
	}
	if s.LinkLostAt != 0 {
		s.LinkLostAt = after(s.LinkLostAt, max(e.Now-max(s.FrozenAt, s.LinkLostAt), 0))
	}
	s.Frozen, s.FrozenAt = false, 0
	return changed(s, Effect{Kind: Thaw, Instance: s.Instance})
}

// The steps of a stop.

func needStop(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	if e.Timer && e.WorkAccepted {
		return becomeActive(r, s, e)
	}
	n := s.enter(StopNeeded)
	n.Stop = Stop{
		Target:        e.Target,
		Reason:        e.Reason,
		RequestedAt:   e.Now,
		NextAttemptAt: e.Now,
		LastError:     clip(e.Error),
		By:            clip(e.By),
		Why:           clip(e.Why),
	}
	return changed(n, s.cancelLaunch()...)
}

func attempt(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	n := s.enter(Stopping)
	n.Stop.Attempts++
	n.Stop.AttemptID = e.AttemptID
	n.Stop.AttemptStartedAt = e.Now
	n.Stop.AttemptDeadline = e.Deadline
	if e.Deadline == 0 {
		n.Stop.AttemptDeadline = after(e.Now, r.AttemptDeadline)
	}
	return changed(n, n.work())
}

func vacateStopped(_ Rules, s State, _ Event) (State, []Effect, Outcome, error) {
	n, effects := s.vacate(CauseStopped, s.Stop.By, s.Stop.Why)
	return changed(n, effects...)
}

func tryAgain(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	return changed(s.failed(r, e.Now, e.Error))
}

func expire(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	n := s.failed(r, e.Now, overdue(s))
	n.Stop.JoinBy = after(e.Now, r.JoinBound)
	return changed(n, n.cancelAttempt())
}

func quarantine(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	return changed(s.quarantined(r, e.Now))
}

// expireSpent is expire and quarantine in one: the last attempt ran out.
func expireSpent(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	n := s.quarantined(r, e.Now)
	n.Stop.LastError = overdue(s)
	n.Stop.JoinBy = after(e.Now, r.JoinBound)
	return changed(n, n.cancelAttempt())
}

// joined: the cancelled worker of the last attempt has returned after all. What
// it found is not used: its attempt is over, the next one will look itself.
func joined(_ Rules, s State, e Event) (State, []Effect, Outcome, error) {
	s.Stop.JoinBy = 0
	return changed(s.noting(e.Error))
}

// unstuck: as joined, in quarantine. If only the worker was the cause and
// attempts are left, stopping goes on.
func unstuck(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	s = s.noting(e.Error)
	if s.Stop.Stuck && s.Stop.Attempts < r.budget() {
		n := s.enter(StopNeeded)
		n.Stop.NextAttemptAt = after(e.Now, r.delay(s.Stop.Attempts))
		return changed(n)
	}
	s.Stop.JoinBy, s.Stop.Stuck = 0, false
	return changed(s)
}

func quarantineStuck(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	if s.Stop.Stuck {
		return unchanged(s)
	}
	n := s
	if s.Kind != Quarantined {
		n = s.quarantined(r, e.Now)
	}
	n.Stop.JoinBy, n.Stop.Stuck = 0, true
	n.Stop.LastError = clip(e.Error)
	if e.Error == "" {
		n.Stop.LastError = "the worker of attempt " + s.Stop.AttemptID + " has not returned, the kernel holds it"
	}
	return changed(n)
}

// The steps of quarantine and of the counter.

func vacateRechecked(_ Rules, s State, _ Event) (State, []Effect, Outcome, error) {
	n, effects := s.vacate(CauseRechecked, s.Stop.By, s.Stop.Why)
	return changed(n, effects...)
}

func recheckNow(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	n := s.rescheduled(r, e.Now)
	return changed(n, n.recheck())
}

func noteRecheck(r Rules, s State, e Event) (State, []Effect, Outcome, error) {
	n := s.rescheduled(r, e.Now).noting(e.Error)
	if n == s {
		return unchanged(s)
	}
	return changed(n)
}

func adopt(_ Rules, s State, e Event) (State, []Effect, Outcome, error) {
	n := s.enter(Active)
	n.Instance = e.Instance
	n.NextGeneration = max(s.NextGeneration, e.Instance.Generation+1)
	return changed(n, Effect{Kind: Verify, Instance: n.Instance, By: clip(e.By), Why: clip(e.Why)})
}

func vacateAbandoned(_ Rules, s State, e Event) (State, []Effect, Outcome, error) {
	n, effects := s.vacate(CauseAbandoned, clip(e.By), clip(e.Why))
	return changed(n, effects...)
}

func vacateEpoch(_ Rules, s State, _ Event) (State, []Effect, Outcome, error) {
	n, effects := s.vacate(CauseNewEpoch, s.Stop.By, s.Stop.Why)
	return changed(n, effects...)
}

func raiseFloor(_ Rules, s State, e Event) (State, []Effect, Outcome, error) {
	if e.Floor <= s.NextGeneration {
		return unchanged(s)
	}
	s.NextGeneration = e.Floor
	return changed(s)
}

// What the steps share.

// deadline is the deadline that e gives the state just entered. Set while the
// clocks stand still, it counts from when they stopped, so that thawing moves it
// to where it belongs.
func (s State) deadline(e Event, rule time.Duration) time.Duration {
	d := e.Deadline
	if d == 0 {
		if rule <= 0 {
			return 0
		}
		d = after(e.Now, rule)
	}
	if s.Frozen {
		d = max(d-max(e.Now-s.FrozenAt, 0), 1)
	}
	return d
}

func (s State) vacate(cause Cause, by, why string) (State, []Effect) {
	return s.enter(Vacant), []Effect{{
		Kind: Vacated, Instance: s.Instance, Target: s.Stop.Target,
		Reason: s.Stop.Reason, Cause: cause, By: by, Why: why,
	}}
}

func (s State) failed(r Rules, now time.Duration, err string) State {
	n := s.enter(StopNeeded)
	n.Stop.NextAttemptAt = after(now, r.delay(s.Stop.Attempts))
	return n.noting(err)
}

func (s State) quarantined(r Rules, now time.Duration) State {
	n := s.enter(Quarantined)
	n.Stop.ExhaustedAt = now
	n.Stop.NextRecheckAt = r.recheckAfter(now, now)
	return n
}

// rescheduled sets the next recheck. A lease that could not be read counts its
// window from the first recheck, the time of its quarantine is lost.
func (s State) rescheduled(r Rules, now time.Duration) State {
	if s.Stop.ExhaustedAt == 0 {
		s.Stop.ExhaustedAt = now
	}
	s.Stop.NextRecheckAt = r.recheckAfter(s.Stop.ExhaustedAt, now)
	return s
}

func (s State) work() Effect {
	return Effect{
		Kind: BeginAttemptWork, Instance: s.Instance, Target: s.Stop.Target,
		AttemptID: s.Stop.AttemptID, Deadline: s.Stop.AttemptDeadline, Reason: s.Stop.Reason,
		By: s.Stop.By, Why: s.Stop.Why,
	}
}

func (s State) cancelAttempt() Effect {
	return Effect{
		Kind: CancelAttempt, Instance: s.Instance, Target: s.Stop.Target,
		AttemptID: s.Stop.AttemptID, Deadline: s.Stop.JoinBy, Reason: s.Stop.Reason,
	}
}

func (s State) recheck() Effect {
	return Effect{
		Kind: Recheck, Instance: s.Instance, Target: s.Stop.Target,
		AttemptID: s.Stop.AttemptID, Reason: s.Stop.Reason,
	}
}

// cancelLaunch is the effect that a cold start owes when it ends early.
func (s State) cancelLaunch() []Effect {
	if s.Kind != Starting || s.Reuse {
		return nil
	}
	return []Effect{{Kind: CancelLaunch, Instance: s.Instance}}
}

// noting keeps the last error if there is no newer one.
func (s State) noting(err string) State {
	if err != "" {
		s.Stop.LastError = clip(err)
	}
	return s
}

func overdue(s State) string {
	return "attempt " + strconv.Itoa(s.Stop.Attempts) + " did not end by its deadline"
}

// clip keeps a text for people from bloating every later record of the lease.
func clip(text string) string {
	const most = 1024
	if len(text) <= most {
		return text
	}
	end := most
	for end > 0 && text[end]&0xC0 == 0x80 { // inside a UTF-8 sequence
		end--
	}
	return text[:end]
}
