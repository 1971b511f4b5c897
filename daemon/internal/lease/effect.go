package lease

import (
	"fmt"
	"time"
)

// EffectKind is something that the engine must do outside, after the state
// that came with it is durable.
type EffectKind uint8

// The effects. The zero EffectKind is invalid. Each can be performed again with
// the result of once. The engine performs those of one event in order.
const (
	// Launch starts the wrapper of Instance in its leaf, once: a leaf is never
	// used twice, so a second Launch of a generation must do nothing. Deadline
	// bounds it. Answered by Verified, or RequestStop with StartupFailed.
	Launch EffectKind = iota + 1
	// Verify looks for Instance, pokes it and watches it. Nothing is started.
	// Answered by Verified, by OwnedAbsent, or by silence until Deadline.
	Verify
	// CancelLaunch cancels and joins the launch of Instance, if one runs in this
	// process. No attempt, and no other launch of the session, may begin before
	// it has been joined.
	CancelLaunch
	// BeginAttemptWork runs the stop ladder once against Target, bounded by
	// Deadline. The leaf may be frozen: thaw it. Its worker returns exactly one
	// of AttemptAbsent and AttemptNotConfirmed, however late, also when it was
	// cancelled.
	BeginAttemptWork
	// CancelAttempt cancels the worker of AttemptID. Its return is waited for
	// until Deadline; the state itself says so, no other timer is needed.
	CancelAttempt
	// Recheck observes Target once and touches nothing. Answered by
	// RecheckAbsent or RecheckDone with the same Instance and AttemptID.
	Recheck
	// Freeze stops the processes of Instance in place.
	Freeze
	// Thaw lets them run on.
	Thaw
	// Vacated settles what Instance had accepted, and gives up everything held
	// for it: watches, reservations, leaf, and the provider's sandbox as a debt
	// of its own. Instance is zero if the lease never named one. Cause says how
	// absence is known, Reason which stop led here (0 = none was asked for).
	Vacated
	effectEnd
)

var effectNames = [effectEnd]string{
	Launch:           "launch",
	Verify:           "verify",
	CancelLaunch:     "cancel_launch",
	BeginAttemptWork: "begin_attempt_work",
	CancelAttempt:    "cancel_attempt",
	Recheck:          "recheck",
	Freeze:           "freeze",
	Thaw:             "thaw",
	Vacated:          "vacated",
}

// String returns the effect's name, or "effect(N)" for a number outside the
// set.
func (k EffectKind) String() string {
	if k == 0 || k >= effectEnd {
		return fmt.Sprintf("effect(%d)", uint8(k))
	}
	return effectNames[k]
}

// Cause says how a lease came to be vacant.
type Cause uint8

// The causes. The zero Cause is invalid in Vacated and absent elsewhere.
const (
	CauseGone      Cause = iota + 1 // the instance ended on its own
	CauseStopped                    // a stop attempt verified absence
	CauseRechecked                  // an observation in quarantine verified absence
	CauseNewEpoch                   // the machine or its pid namespace is a new one
	CauseAbandoned                  // the operator says so
	causeEnd
)

var causeNames = [causeEnd]string{
	CauseGone:      "gone",
	CauseStopped:   "stopped",
	CauseRechecked: "rechecked",
	CauseNewEpoch:  "new_epoch",
	CauseAbandoned: "abandoned",
}

// String returns the cause's name, "none" for 0, or "cause(N)".
func (c Cause) String() string {
	switch {
	case c == 0:
		return "none"
	case c >= causeEnd:
		return fmt.Sprintf("cause(%d)", uint8(c))
	}
	return causeNames[c]
}

// Effect is one thing to do outside. Which fields are set follows from the
// kind.
type Effect struct {
	Kind      EffectKind
	Instance  Instance
	Target    Target
	AttemptID string
	Deadline  time.Duration // CLOCK_BOOTTIME; 0 = none
	Reason    Reason
	Cause     Cause
	By, Why   string // of a stop or a decision that a person made
}

// Outcome is what became of an event.
type Outcome uint8

// The outcomes. The zero Outcome is invalid.
const (
	// Changed: the returned state differs and must become durable.
	Changed Outcome = iota + 1
	// Unchanged: the event fits, and there is nothing to change.
	Unchanged
	// Stale: the event is about another instance, attempt or generation, or a
	// deadline that is not due. Count it.
	Stale
	// Refused: what was asked for must not happen; the error says why.
	Refused
	outcomeEnd
)

var outcomeNames = [outcomeEnd]string{
	Changed:   "changed",
	Unchanged: "unchanged",
	Stale:     "stale",
	Refused:   "refused",
}

// String returns the outcome's name, or "outcome(N)".
func (o Outcome) String() string {
	if o == 0 || o >= outcomeEnd {
		return fmt.Sprintf("outcome(%d)", uint8(o))
	}
	return outcomeNames[o]
}
