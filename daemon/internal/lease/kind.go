package lease

import (
	"errors"
	"fmt"
)

// Kind is the state that a lease is in. The numbers may change between
// versions; what is written to disk is the name.
type Kind uint8

// The kinds. The zero Kind is invalid. Starting, Ready, Active and Warm are
// owned: an instance may be alive. StopNeeded, Stopping and Quarantined are
// cleaning: an instance, or anything in the session, may be alive and must go.
const (
	Vacant      Kind = iota + 1 // nothing is owed
	Starting                    // the intent is on disk, the wrapper may or may not exist
	Ready                       // verified wrapper, no message accepted yet
	Active                      // a message was accepted
	Warm                        // idle after a clean batch
	StopNeeded                  // a stop is owed, no attempt is running
	Stopping                    // one attempt to stop is running
	Quarantined                 // the attempts are spent: observe only
	kindEnd
)

// ErrUnknownName is returned by the Parse functions for a name outside the
// closed set.
var ErrUnknownName = errors.New("unknown name")

var kindNames = [kindEnd]string{
	Vacant:      "vacant",
	Starting:    "starting",
	Ready:       "ready",
	Active:      "active",
	Warm:        "warm",
	StopNeeded:  "stop_needed",
	Stopping:    "stopping",
	Quarantined: "quarantined",
}

// Kinds returns every valid kind in its fixed order; the slice is the caller's.
func Kinds() []Kind {
	all := make([]Kind, 0, kindEnd-1)
	for k := Vacant; k < kindEnd; k++ {
		all = append(all, k)
	}
	return all
}

// Valid reports whether k is one of the kinds.
func (k Kind) Valid() bool { return k > 0 && k < kindEnd }

// Owned reports whether a lease of kind k gives its instance the right to live.
func (k Kind) Owned() bool { return k >= Starting && k <= Warm }

// Cleaning reports whether a lease of kind k still owes a verified absence.
func (k Kind) Cleaning() bool { return k >= StopNeeded && k <= Quarantined }

// String returns the name used in records, replies and logs, or "kind(N)" for
// a number outside the set.
func (k Kind) String() string {
	if !k.Valid() {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// ParseKind is the inverse of String for valid kinds; any other name is
// ErrUnknownName.
func ParseKind(name string) (Kind, error) {
	for k := Vacant; k < kindEnd; k++ {
		if kindNames[k] == name {
			return k, nil
		}
	}
	return 0, fmt.Errorf("parsing lease kind %q: %w", name, ErrUnknownName)
}
