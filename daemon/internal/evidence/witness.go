package evidence

import (
	"fmt"
	"time"
)

// Answer is what a witness says about the life of its subject.
type Answer uint8

// Answers. The zero Answer is Unknown, so that what was never asked is not taken for anything.
const (
	Unknown Answer = iota
	Absent
	Present
)

var answerNames = [...]string{Unknown: "unknown", Absent: "absent", Present: "present"}

// String returns the answer in lower case.
func (a Answer) String() string {
	if int(a) < len(answerNames) {
		return answerNames[a]
	}
	return "invalid"
}

// MarshalText makes the answer readable in JSON.
func (a Answer) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (a *Answer) UnmarshalText(b []byte) error {
	for i, n := range answerNames {
		if n == string(b) {
			*a = Answer(i)
			return nil
		}
	}
	return fmt.Errorf("parsing answer %q: not absent, present or unknown", b)
}

// Names of the witnesses.
const (
	Leaf     = "leaf"     // cgroup.events of the leaf: the kernel's word on all that runs in it
	Paths    = "paths"    // the further cgroups that the lease lists, of any hierarchy
	Pidfd    = "pidfd"    // the recorded wrapper process
	Lock     = "lock"     // the lock that a live wrapper holds on its generation's file
	Markers  = "markers"  // processes that carry the subject's marker outside of all leaves
	Link     = "link"     // the wrapper's connection, as the caller knows it
	Provider = "provider" // the provider's Observe, as the caller knows it
)

// Witness is one answer.
type Witness struct {
	Name   string        `json:"name"`
	Answer Answer        `json:"answer"`
	At     time.Duration `json:"at_ns"` // boottime just before it was asked
	Detail string        `json:"detail,omitempty"`

	// Stranger belongs to the lock alone: it is held, and everybody who holds it was found and proven not
	// to belong to the subject.
	Stranger bool `json:"stranger,omitempty"`
}

// worse says which of two answers of the same witness counts: life over doubt over absence.
func worse(a, b Witness) Witness {
	rank := [...]int{Absent: 0, Unknown: 1, Present: 2}
	if rank[b.Answer] > rank[a.Answer] || a.Answer == b.Answer && a.Stranger && !b.Stranger {
		return b
	}
	return a
}
