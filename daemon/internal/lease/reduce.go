package lease

import (
	"errors"
	"fmt"
)

// What Reduce refuses with, beside ErrMalformed. Match them with errors.Is.
var (
	ErrEvent             = errors.New("unknown event")
	ErrNoTime            = errors.New("the event has no time")
	ErrOwned             = errors.New("the session has an instance")
	ErrCleanupPending    = errors.New("the session is being cleaned up")
	ErrNotQuarantined    = errors.New("the lease is not quarantined")
	ErrNoInstance        = errors.New("the instance lacks its id or its generation")
	ErrAbsenceUnverified = errors.New("absence is not verified")
	ErrGenerationUnknown = errors.New("the generation counter is not known")
	ErrGenerationUsed    = errors.New("the generation may have been used before")
	ErrNoGenerationLeft  = errors.New("no generation is left above it")
	ErrDeadlinePassed    = errors.New("the deadline has passed already")
	ErrReason            = errors.New("the reason is not one of the closed set")
	ErrTarget            = errors.New("the reason does not go with this target")
	ErrBudgetSpent       = errors.New("the stop attempts are spent")
	ErrAttemptID         = errors.New("the attempt id is missing or was used before")
	ErrWorkerOut         = errors.New("the worker of the last stop attempt has not returned")
	ErrNotExactlyOne     = errors.New("not exactly one wrapper, matching id and generation, was observed")
	ErrNoDecision        = errors.New("the decision lacks who made it or why")
	ErrNoFloor           = errors.New("the generation floor is zero")
)

// Reduce is what becomes of lease s through event e. It is total: every state
// and every event has an answer, and no input makes it panic.
//
// The effects are to be performed after the returned state is durable, in
// order. They come with Changed, and with Unchanged only for RecheckForced. The
// slice is nil when there are none, and is the caller's. For any outcome but
// Changed the returned state is s.
//
// The error is nil except with Refused, and then wraps one of the errors of
// this package.
func (r Rules) Reduce(s State, e Event) (State, []Effect, Outcome, error) {
	return r.reduce(s, e, omission{})
}

// omission names one guard that reduce leaves out; the zero omission leaves out
// none. It exists so that tests can take each guard away and see a test fail.
type omission struct {
	kind  Kind
	event EventKind
	guard string
}

func (r Rules) reduce(s State, e Event, without omission) (State, []Effect, Outcome, error) {
	if err := checkInput(s, e); err != nil {
		return s, nil, Refused, fmt.Errorf("reducing %s in %s: %w", e.Kind, s.Kind, err)
	}
	c := table[s.Kind][e.Kind]
	for _, g := range c.guards {
		if without == (omission{s.Kind, e.Kind, g.name}) {
			continue
		}
		if outcome, err := g.check(r, s, e); outcome != 0 {
			if err != nil {
				err = fmt.Errorf("reducing %s in %s: %w", e.Kind, s.Kind, err)
			}
			return s, nil, outcome, err
		}
	}
	next, effects, outcome, err := c.step(r, s, e)
	if err != nil {
		err = fmt.Errorf("reducing %s in %s: %w", e.Kind, s.Kind, err)
	}
	return next, effects, outcome, err
}

// checkInput refuses what no cell of the table is written for.
func checkInput(s State, e Event) error {
	if !e.Kind.Valid() {
		return ErrEvent
	}
	if e.Now <= 0 {
		return ErrNoTime
	}
	return s.Check()
}
