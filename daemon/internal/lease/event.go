package lease

import (
	"fmt"
	"time"
)

// EventKind is what happened, or what somebody asks for.
type EventKind uint8

// The events. The zero EventKind is invalid. Beside each: the fields of Event
// that it reads, beyond Kind and Now.
const (
	Allocate            EventKind = iota + 1 // Instance, AbsenceVerified, Deadline
	Verified                                 // Instance, Deadline: the wrapper is the one that was launched
	Accepted                                 // Instance: a message was accepted
	Idle                                     // Instance, Deadline: the batch is drained, or a hot delivery failed before acceptance
	Reuse                                    // Instance, Observed, Deadline
	OwnedAbsent                              // Instance, and for a cold start AbsenceVerified
	RequestStop                              // Target, Reason, Error, By, Why, Timer, WorkAccepted
	BeginAttempt                             // AttemptID, Deadline
	AttemptAbsent                            // AttemptID: the attempt verified absence; its worker has returned
	AttemptNotConfirmed                      // AttemptID, Error: it did not; its worker has returned
	AttemptExpired                           // AttemptID
	Exhaust                                  //
	RecheckAbsent                            // Instance, AttemptID (both as in the Recheck effect)
	RecheckDone                              // Instance, AttemptID, Error: still there, or unknown
	NewEpoch                                 // the local processes of the old epoch are dead
	LinkLost                                 // Instance: the wrapper's connection broke
	LinkRegained                             // Instance
	Frozen                                   // Instance: berth freezes the session
	Thawed                                   // Instance
	Adopt                                    // Instance, By, Why, Observed
	Abandon                                  // By, Why
	WorkerStuck                              // AttemptID, Error: the kernel holds the cancelled attempt's worker
	RecheckDue                               // a background recheck is due
	RecheckForced                            // an explicit request for one observation now
	FloorRaised                              // Floor: all evidence is in, and forbids lower generations
	eventEnd
)

var eventNames = [eventEnd]string{
	Allocate:            "allocate",
	Verified:            "verified",
	Accepted:            "accepted",
	Idle:                "idle",
	Reuse:               "reuse",
	OwnedAbsent:         "owned_absent",
	RequestStop:         "request_stop",
	BeginAttempt:        "begin_attempt",
	AttemptAbsent:       "attempt_absent",
	AttemptNotConfirmed: "attempt_not_confirmed",
	AttemptExpired:      "attempt_expired",
	Exhaust:             "exhaust",
	RecheckAbsent:       "recheck_absent",
	RecheckDone:         "recheck_done",
	NewEpoch:            "new_epoch",
	LinkLost:            "link_lost",
	LinkRegained:        "link_regained",
	Frozen:              "frozen",
	Thawed:              "thawed",
	Adopt:               "adopt",
	Abandon:             "abandon",
	WorkerStuck:         "worker_stuck",
	RecheckDue:          "recheck_due",
	RecheckForced:       "recheck_forced",
	FloorRaised:         "floor_raised",
}

// EventKinds returns every valid event kind in its fixed order; the slice is
// the caller's.
func EventKinds() []EventKind {
	all := make([]EventKind, 0, eventEnd-1)
	for k := Allocate; k < eventEnd; k++ {
		all = append(all, k)
	}
	return all
}

// Valid reports whether k is one of the event kinds.
func (k EventKind) Valid() bool { return k > 0 && k < eventEnd }

// String returns the event's name, or "event(N)" for a number outside the set.
func (k EventKind) String() string {
	if !k.Valid() {
		return fmt.Sprintf("event(%d)", uint8(k))
	}
	return eventNames[k]
}

// Event is one thing that happened to one session. Which fields a kind reads
// is written beside the kind; the others are ignored.
type Event struct {
	Kind EventKind
	Now  time.Duration // CLOCK_BOOTTIME; must be above 0

	Instance  Instance      // the instance that the event is about
	Deadline  time.Duration // CLOCK_BOOTTIME of the deadline that the new state gets; 0 = Now plus the rule's
	Target    Target        // of a stop
	Reason    Reason        // of a stop
	AttemptID string        // of a stop attempt; never used twice in a session
	Error     string        // for people; cut at 1 KiB
	By, Why   string        // who decided and why; for people; cut at 1 KiB
	Floor     uint64        // the lowest generation that may still be given out, above all that leaves, locks, markers and tombstones show

	// Observed lists every wrapper of the session that was seen, in any order.
	// Reuse demands exactly one, equal to Instance. Adopt refuses any other.
	Observed []Instance
	// AbsenceVerified says that a complete observation proved that nothing of
	// the session lives, and that it began after the last launch of the session
	// had returned or was joined: a look before the spawn proves nothing.
	AbsenceVerified bool
	// Timer marks a stop that a deadline of the state asked for, as made by
	// Due. Reduce asks the state again whether that deadline has passed.
	Timer bool
	// WorkAccepted, filled by the caller into a stop made by Due, says that the
	// instance has accepted work which is not settled: the write of Accepted
	// was lost, and is made up for instead of stopping.
	WorkAccepted bool
}
