package admit

import (
	"fmt"
	"time"
)

// Fact is an answer that may not have been had. The zero Fact is Unknown, so
// that a fact nobody looked for keeps a workspace.
type Fact uint8

// The answers.
const (
	Unknown Fact = iota
	Yes
	No
)

// String returns "unknown", "yes" or "no", else "fact(N)".
func (f Fact) String() string {
	switch f {
	case Unknown:
		return "unknown"
	case Yes:
		return "yes"
	case No:
		return "no"
	}
	return fmt.Sprintf("fact(%d)", uint8(f))
}

// Facts are what has to be known of a workspace before it may be reclaimed.
type Facts struct {
	// Vacant: the session's lease owes nothing.
	Vacant Fact
	// Alive: some witness sees a process of the session.
	Alive Fact
	// Pinned: somebody asked for it to be kept.
	Pinned Fact
	// Released says whether ReleasedFor is known: how long ago the journal says
	// the session was last released. Never from a file's time: anybody can set
	// that, and a build in a child directory does not.
	Released    Fact
	ReleasedFor time.Duration
	// Remakeable: the session's spec can make the workspace again.
	Remakeable Fact
	// Git: the workspace is a git tree. The facts below are asked of one only.
	Git         Fact
	Unpushed    Fact // commits that no remote has
	Uncommitted Fact // changes of tracked files
	Stashed     Fact
	Untracked   Fact // files that git does not know
	Ignored     Fact // files that git is told not to know: build trees, but also .env
}

// Policy says what may be given up.
type Policy struct {
	// MinAge is how long a session must have been released.
	MinAge time.Duration
	// Discard gives up everything that is in the workspace.
	Discard bool
	// DiscardIgnored gives up files that git ignores.
	DiscardIgnored bool
	// DiscardWithoutGit gives up trees that are not git's.
	DiscardWithoutGit bool
}

// DefaultPolicy returns the policy that gives up nothing of value: released for
// 20 minutes, and everything in the workspace can be made again.
func DefaultPolicy() Policy { return Policy{MinAge: 20 * time.Minute} }

// Stale reports whether the workspace may be reclaimed, and if not, every reason
// against it, in a fixed order, for people. A fact that is unknown is a reason.
func Stale(f Facts, p Policy) (stale bool, whyNot []string) {
	keep := func(fact, wanted Fact, known string) {
		switch fact {
		case wanted:
		case Yes, No:
			whyNot = append(whyNot, known)
		default:
			whyNot = append(whyNot, "not known: "+known)
		}
	}
	keep(f.Vacant, Yes, "the lease is not vacant")
	keep(f.Alive, No, "something of the session is alive")
	keep(f.Pinned, No, "it is pinned")
	keep(f.Released, Yes, "it was never released")
	if f.Released == Yes && f.ReleasedFor < p.MinAge {
		whyNot = append(whyNot, fmt.Sprintf("it was released %s ago, less than %s", f.ReleasedFor, p.MinAge))
	}
	if p.Discard {
		return len(whyNot) == 0, whyNot
	}
	keep(f.Remakeable, Yes, "its spec cannot make it again")
	if f.Git == No && p.DiscardWithoutGit {
		return len(whyNot) == 0, whyNot
	}
	keep(f.Git, Yes, "it is a tree without git")
	if f.Git != Yes {
		return false, whyNot
	}
	keep(f.Unpushed, No, "it has unpushed commits")
	keep(f.Uncommitted, No, "it has uncommitted changes")
	keep(f.Stashed, No, "it has stashed changes")
	keep(f.Untracked, No, "it has untracked files")
	if !p.DiscardIgnored {
		keep(f.Ignored, No, "it has ignored files")
	}
	return len(whyNot) == 0, whyNot
}

// Candidate is a workspace that Stale has cleared.
type Candidate struct {
	Session     string
	ReleasedFor time.Duration
}

// Oldest returns the index of the candidate to reclaim next, the one released
// longest ago, by session name among equals; -1 for none. One at a time: measure
// again after each, and stop as soon as there is room.
func Oldest(all []Candidate) int {
	oldest := -1
	for i, c := range all {
		if oldest < 0 || c.ReleasedFor > all[oldest].ReleasedFor ||
			c.ReleasedFor == all[oldest].ReleasedFor && c.Session < all[oldest].Session {
			oldest = i
		}
	}
	return oldest
}
