package lease

import (
	"errors"
	"fmt"
	"time"
)

// ErrMalformed is returned by Check, and by Reduce, for a state that no
// sequence of events leads to.
var ErrMalformed = errors.New("malformed lease")

// State is one session's lease. It is a plain comparable value.
type State struct {
	Kind Kind
	// NextGeneration is the lowest generation that Allocate may still give out.
	// It never falls. 0 = not known: nothing can be allocated before
	// FloorRaised has said what the evidence shows.
	NextGeneration uint64
	// Instance is the owned instance; in the cleaning kinds the one that was
	// last owned, zero if there was none.
	Instance Instance
	// Reuse: the start is one on a wrapper that was already there. Starting only.
	Reuse bool
	// Deadline ends Starting, Ready or Warm; 0 = none. It stands still while
	// Frozen.
	Deadline time.Duration
	// Frozen and FrozenAt: berth itself froze the session, and when.
	Frozen   bool
	FrozenAt time.Duration
	// LinkLostAt is when the wrapper's connection broke; 0 = it is held. A note
	// for liveness, moved on by the time spent frozen. No verdict by itself.
	LinkLostAt time.Duration
	// Stop is what is owed. The cleaning kinds only.
	Stop Stop
}

// Stop is a stop that is owed, under way, or given up on.
type Stop struct {
	Target        Target
	Reason        Reason
	RequestedAt   time.Duration
	NextAttemptAt time.Duration // StopNeeded: not before
	Attempts      int           // begun so far
	LastError     string        // of the last attempt, request or recheck; for people

	AttemptID        string        // of the running attempt, or the last one
	AttemptStartedAt time.Duration // Stopping only
	AttemptDeadline  time.Duration // Stopping only
	// JoinBy: the worker of AttemptID was cancelled and has not returned; by
	// then it must. No attempt begins before it has. 0 = no worker is out.
	JoinBy time.Duration
	// Stuck: that worker did not return in time, the kernel holds it.
	// Quarantined only.
	Stuck bool

	ExhaustedAt   time.Duration // Quarantined only; 0 = from a record that could not be read, no recheck yet
	NextRecheckAt time.Duration // Quarantined only; 0 = no more background rechecks

	By, Why string // who asked and why; for people
}

// New returns the lease of a session that never had an instance, on a host
// without a generation floor.
func New() State { return State{Kind: Vacant, NextGeneration: 1} }

// Unreadable returns the lease for a record that did not decode: nothing
// launches, nothing is signalled, and a first recheck is due at once. next is
// the lowest generation that the record's header leaves free, 0 if the header
// did not decode either.
func Unreadable(next uint64) State {
	return State{
		Kind:           Quarantined,
		NextGeneration: next,
		Stop: Stop{
			Reason:    ObservationFailed,
			LastError: "the lease record could not be read",
		},
	}
}

// Vacant reports whether nothing is owed.
func (s State) Vacant() bool { return s.Kind == Vacant }

// Owned reports whether the lease gives an instance the right to live.
func (s State) Owned() bool { return s.Kind.Owned() }

// Cleaning reports whether the lease still owes a verified absence.
func (s State) Cleaning() bool { return s.Kind.Cleaning() }

// WorkerOut reports whether the worker of a cancelled attempt has not returned.
func (s State) WorkerOut() bool { return s.Stop.JoinBy != 0 || s.Stop.Stuck }

// holdings says what a kind may hold besides NextGeneration.
type holdings struct {
	instance bool // must name a whole instance
	reuse    bool
	deadline bool
	notes    bool // Frozen, FrozenAt, LinkLostAt
	stop     bool // must have a Stop, may keep the instance
	attempt  bool // a running attempt
	join     bool // a cancelled worker
	recheck  bool // looking only, and a worker that is stuck
}

var kindHolds = [kindEnd]holdings{
	Vacant:      {},
	Starting:    {instance: true, notes: true, deadline: true, reuse: true},
	Ready:       {instance: true, notes: true, deadline: true},
	Active:      {instance: true, notes: true},
	Warm:        {instance: true, notes: true, deadline: true},
	StopNeeded:  {stop: true, join: true},
	Stopping:    {stop: true, attempt: true},
	Quarantined: {stop: true, join: true, recheck: true},
}

// enter moves s to kind k and drops whatever k may not hold, so that nothing of
// one state can leak into another: this is the only place where Kind is set.
func (s State) enter(k Kind) State {
	h := kindHolds[k]
	s.Kind = k
	if !h.instance && !h.stop {
		s.Instance = Instance{}
	}
	if !h.reuse {
		s.Reuse = false
	}
	if !h.deadline {
		s.Deadline = 0
	}
	if !h.notes {
		s.Frozen, s.FrozenAt, s.LinkLostAt = false, 0, 0
	}
	if !h.stop {
		s.Stop = Stop{}
	}
	if !h.attempt {
		s.Stop.AttemptStartedAt, s.Stop.AttemptDeadline = 0, 0
	}
	if !h.join {
		s.Stop.JoinBy = 0
	}
	if !h.recheck {
		s.Stop.ExhaustedAt, s.Stop.NextRecheckAt, s.Stop.Stuck = 0, 0, false
	}
	return s
}

// Check reports whether s is a state that Reduce can have made, by
// ErrMalformed. A record that decodes into anything else is to be treated as
// one that did not decode.
func (s State) Check() error {
	if !s.Kind.Valid() {
		return fmt.Errorf("checking kind %s: %w", s.Kind, ErrMalformed)
	}
	if s.enter(s.Kind) != s {
		return fmt.Errorf("checking what %s holds: %w", s.Kind, ErrMalformed)
	}
	if s.Deadline < 0 || s.FrozenAt < 0 || s.LinkLostAt < 0 || s.Frozen != (s.FrozenAt != 0) {
		return fmt.Errorf("checking the times of %s: %w", s.Kind, ErrMalformed)
	}
	if err := s.checkInstance(); err != nil {
		return err
	}
	if s.Kind.Cleaning() {
		return s.checkStop()
	}
	return nil
}

func (s State) checkInstance() error {
	i := s.Instance
	if kindHolds[s.Kind].instance && !i.Whole() {
		return fmt.Errorf("checking the instance of %s: %w", s.Kind, ErrMalformed)
	}
	if i.IsZero() {
		return nil
	}
	if !i.Whole() || i.Generation >= s.NextGeneration {
		return fmt.Errorf("checking instance %s below generation %d: %w", i, s.NextGeneration, ErrMalformed)
	}
	return nil
}

func (s State) checkStop() error {
	p := s.Stop
	bad := func(what string) error {
		return fmt.Errorf("checking the %s of %s: %w", what, s.Kind, ErrMalformed)
	}
	switch {
	case !p.Reason.Valid():
		return bad("reason")
	case !p.Target.Whole() && p.Target.Instance != s.Instance:
		return bad("target")
	case p.Attempts < 0 || (p.Attempts == 0) != (p.AttemptID == ""):
		return bad("attempts")
	case p.RequestedAt < 0 || p.NextAttemptAt < 0 || p.JoinBy < 0 || p.ExhaustedAt < 0 || p.NextRecheckAt < 0:
		return bad("times")
	case s.Kind == Stopping && (p.Attempts == 0 || p.AttemptStartedAt <= 0 || p.AttemptDeadline <= 0):
		return bad("attempt")
	case s.WorkerOut() && p.AttemptID == "":
		return bad("worker")
	case p.JoinBy != 0 && p.Stuck:
		return bad("worker")
	}
	return nil
}
