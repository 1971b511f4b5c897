package lease

import (
	"errors"
	"fmt"
	"time"
)

// ErrRules is returned by Validate for rules under which a lease could get
// stuck.
var ErrRules = errors.New("unusable lease rules")

// Rules are the numbers that a lease lives by. They may differ between
// sessions and change between events; deadlines that were already given stay.
type Rules struct {
	StartupDeadline time.Duration   // from Allocate or Reuse; 0 = none
	ReadyDeadline   time.Duration   // from Verified; 0 = none
	KeepWarm        time.Duration   // from Idle; 0 = none, warm until something else ends it
	StopAttempts    int             // how many before quarantine; at least 1
	AttemptDeadline time.Duration   // of one attempt; above 0
	AttemptDelays   []time.Duration // from the result of attempt n to the next; the last one repeats
	JoinBound       time.Duration   // how long a cancelled attempt's worker may take to return; above 0
	RecheckEvery    time.Duration   // in quarantine; 0 = no background rechecks
	RecheckWindow   time.Duration   // from the start of quarantine; none later
}

// The defaults, by the names they have in the configuration.
const (
	PreparationAttempt = 12 * time.Minute // the whole of one preparation
	startupMargin      = 60 * time.Second // between the end of the preparation and the verified wrapper
)

// DefaultRules returns the rules of a host that configures nothing. The slice
// is the caller's.
func DefaultRules() Rules {
	return Rules{
		StartupDeadline: StartupFor(PreparationAttempt),
		ReadyDeadline:   60 * time.Second,
		KeepWarm:        5 * time.Minute,
		StopAttempts:    5,
		AttemptDeadline: 45 * time.Second,
		AttemptDelays:   []time.Duration{5 * time.Second, 10 * time.Second, 10 * time.Second, 10 * time.Second},
		JoinBound:       10 * time.Second,
		RecheckEvery:    10 * time.Minute,
		RecheckWindow:   60 * time.Minute,
	}
}

// StartupFor returns the startup deadline that goes with a bound on the
// preparation: the deadline is computed, so that it can never be the shorter.
func StartupFor(preparation time.Duration) time.Duration {
	return after(preparation, startupMargin)
}

// Validate reports by ErrRules whether a lease under r could be stuck for ever
// or would never be stopped.
func (r Rules) Validate() error {
	switch {
	case r.StopAttempts < 1:
		return fmt.Errorf("checking stop attempts %d: %w", r.StopAttempts, ErrRules)
	case r.AttemptDeadline <= 0:
		return fmt.Errorf("checking attempt deadline %s: %w", r.AttemptDeadline, ErrRules)
	case r.JoinBound <= 0:
		return fmt.Errorf("checking join bound %s: %w", r.JoinBound, ErrRules)
	case r.StartupDeadline < 0 || r.ReadyDeadline < 0 || r.KeepWarm < 0 || r.RecheckEvery < 0 || r.RecheckWindow < 0:
		return fmt.Errorf("checking durations below zero: %w", ErrRules)
	}
	for _, d := range r.AttemptDelays {
		if d < 0 {
			return fmt.Errorf("checking attempt delay %s: %w", d, ErrRules)
		}
	}
	return nil
}

// budget is StopAttempts, at least 1.
func (r Rules) budget() int { return max(r.StopAttempts, 1) }

// delay is the pause after the result of attempt n, counted from 1. After the
// last attempt there is none: the lease is to be quarantined.
func (r Rules) delay(n int) time.Duration {
	if n < 1 || n >= r.budget() || len(r.AttemptDelays) == 0 {
		return 0
	}
	return r.AttemptDelays[min(n, len(r.AttemptDelays))-1]
}

// recheckAfter is the first point of the grid exhausted + k·RecheckEvery that
// lies after now and within the window, 0 if there is none. A grid, because
// counting from each result would lose rechecks to the time that they take.
func (r Rules) recheckAfter(exhausted, now time.Duration) time.Duration {
	if r.RecheckEvery <= 0 {
		return 0
	}
	steps := max(now-exhausted, 0)/r.RecheckEvery + 1
	if steps > r.RecheckWindow/r.RecheckEvery {
		return 0
	}
	return after(exhausted, steps*r.RecheckEvery)
}

// after is t+d, at most the largest duration: a deadline that overflowed would
// lie in the past.
func after(t, d time.Duration) time.Duration {
	const most = time.Duration(1<<63 - 1)
	if d > 0 && t > most-d {
		return most
	}
	return t + d
}
