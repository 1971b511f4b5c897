package engine

import (
	"context"
	"time"

	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/statefs/record"
)

// LaunchPlan is all that a launch needs; every value is already on disk but the
// token, of which the lease holds the hash.
type LaunchPlan struct {
	Key   WrapperKey
	Lease record.Lease
	Spec  record.Spec
	Token string
	// FirstUse says that berth has not made the session's workspace before; a
	// workspace that was made before and is missing refuses the start.
	FirstUse bool
	// Stepped puts the end of one step of filling the workspace on disk. The next
	// one, and the go of the wrapper, wait for it.
	Stepped func(ctx context.Context, r StepResult) error
}

// StepResult is how one step of filling a workspace has ended. The steps, in their
// order, follow from the specification.
type StepResult struct {
	// Step is workspace, copy, clone, checkout or setup, of which it is the
	// Number-th, from 1.
	Step   string
	Number int
	// Failure is one of a closed set of words, empty when all went well; Code and
	// Signal are of the program's end.
	Failure      string
	Code, Signal int
	Took         time.Duration
	// Last: nothing comes after it.
	Last bool
	// From is the session that had the workspace before, where another is named.
	From string
}

// StopPlan is one stop attempt.
type StopPlan struct {
	AttemptID string
	Subject   evidence.Subject
	// Whole says that everything of the session is to go, not one instance.
	Whole  bool
	Grace  time.Duration
	Reason string
	By     string
	Link   Link // nil when down
	// Linked returns the connection of the moment, nil when it is down.
	Linked func() Link
}

// StopResult is what a stop attempt has seen at its end.
type StopResult struct {
	// Absent is true only on proof.
	Absent bool
	Report evidence.Report
	// Err says why absence could not be proven.
	Err error
}

// DeletePlan is one step of a deletion.
type DeletePlan struct {
	Session string
	Step    string
	Lease   record.Lease
	Subject evidence.Subject
}

// DeleteResult is what a step has done.
type DeleteResult struct {
	// Saved is the path of what was saved from the workspace, if anything was.
	Saved string
	// Report is the evidence of absence that the step has re-checked.
	Report evidence.Report
}

// ReclaimPlan is a workspace to give up.
type ReclaimPlan struct {
	Lease   record.Lease
	Subject evidence.Subject
}

// ReclaimResult is what has become of it.
type ReclaimResult struct {
	// Kept says why it was not given up after all; empty = it is gone.
	Kept string
	// Evidence is what was found in it, in words; Bytes and Inodes are what it took,
	// as far as that is known.
	Evidence      string
	Bytes, Inodes uint64
}

// Inventory is what exists on the host under berth's names.
type Inventory struct {
	// Leaves are the leaves in the daemon's cgroup tree.
	Leaves []LeafSeen
	// Strays are processes with the marker of a session, asked for where no
	// leaves can tell.
	Strays []StraySeen
	// Generations is the highest generation directory of each session.
	Generations map[string]uint64
}

// LeafSeen is one leaf found at start.
type LeafSeen struct {
	Session    string
	Generation uint64
	Path       string
	Populated  bool
}

// StraySeen is a process that a marker scan has found at start.
type StraySeen struct {
	Session string
	PID     int
	UID     uint32
}

// The steps of a deletion, in order.
const (
	stepStop    = "stop"    // until absence is proven
	stepRelease = "release" // until no provider owes a release
	stepTrash   = "trash"   // workspace and session directory are renamed away
	stepPurge   = "purge"   // what was renamed is erased
)
