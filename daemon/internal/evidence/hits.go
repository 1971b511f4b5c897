package evidence

import (
	"fmt"
	"slices"
	"time"

	"github.com/berthd/berth/daemon/internal/discover"
)

// hits are the processes of a scan that have to do with a subject.
type hits struct {
	members, escaped, forged, legacy, others, zombies []discover.Proc
	opaque                                            []discover.Opaque
}

// leafFinder returns which leaf of our tree a path in the v2 hierarchy lies in; ok is false outside of
// all of them.
type leafFinder func(cgroup string) (leaf string, ok bool)

// sort says of each process of a scan what it is to the subject. It is pure.
//
// A process in a leaf belongs to that leaf, whatever its marker says: in another one's it is forged.
// Outside of all leaves a marker counts only under a uid that the subject's processes can have.
func (s *Subject) sort(r discover.Result, leafOf leafFinder, sessionOf func(leaf string) string) hits {
	var h hits
	for _, p := range r.Procs {
		leaf, inLeaf := leafOf(p.Cgroup)
		own := inLeaf && s.ownLeaf(leaf, sessionOf)
		if p.Zombie {
			if own {
				h.zombies = append(h.zombies, p)
			}
			continue
		}
		claims := s.claimedBy(p)
		ours := p.UID == s.OwnerUID || p.UID == s.DaemonUID
		switch {
		case own:
			h.members = append(h.members, p)
		case claims == noClaim:
		case inLeaf, !ours:
			h.forged = append(h.forged, p)
		case claims == claimsOther:
			h.others = append(h.others, p)
		case claims == claimsLegacy && (!s.whole() || p.UID != s.OwnerUID): // a name alone is too little against another user
			h.legacy = append(h.legacy, p)
		case claims == claimsLegacy:
			h.legacy = append(h.legacy, p)
			h.escaped = append(h.escaped, p)
		case s.fenced():
			h.escaped = append(h.escaped, p)
		default:
			h.members = append(h.members, p)
		}
	}
	h.opaque = s.doubtful(r.Opaque, leafOf)
	return h
}

type claim uint8

const (
	noClaim      claim = iota
	claimsUs           // the instance, or any instance when the subject is the session
	claimsOther        // another instance of the session
	claimsLegacy       // the session without an instance
)

func (s *Subject) claimedBy(p discover.Proc) claim {
	switch {
	case p.Session != s.Session:
		return noClaim
	case p.Kind == discover.Legacy:
		return claimsLegacy
	case p.Kind != discover.Member || p.Host != s.HostID:
		return noClaim
	case s.whole() || p.Instance == s.Instance && (s.Generation == 0 || p.Generation == s.Generation):
		return claimsUs
	}
	return claimsOther
}

func (s *Subject) ownLeaf(leaf string, sessionOf func(string) string) bool {
	if s.whole() && s.leafName() == "" {
		return sessionOf(leaf) == s.Session
	}
	return leaf == s.leafName()
}

// doubtful are the processes that could not be judged and may be the subject's: neither in another's
// leaf, nor of a uid that it cannot have, nor older than it, nor the first process of the namespace, which
// nobody has started.
func (s *Subject) doubtful(all []discover.Opaque, leafOf leafFinder) []discover.Opaque {
	var may []discover.Opaque
	for _, o := range all {
		if leaf, ok := leafOf(o.Cgroup); o.PID == 1 || ok && leaf != s.leafName() {
			continue
		}
		if o.UID != discover.UnknownUID && o.UID != s.OwnerUID && o.UID != s.DaemonUID {
			continue
		}
		if o.StartTicks != 0 && startedBefore(o.StartTicks, s.Since) {
			continue
		}
		may = append(may, o)
	}
	return may
}

// startedBefore compares a start time in clock ticks, 1/100 s on every port of Linux, with a boottime. A
// tick is rounded down, so a whole one is left between them.
func startedBefore(ticks uint64, since time.Duration) bool {
	const tick = 10 * time.Millisecond
	return time.Duration(ticks+1)*tick < since
}

// markers is the witness that a scan's hits add up to.
func (s *Subject) markers(h hits, r discover.Result) Witness {
	w := Witness{Name: Markers, Answer: Absent, At: r.At}
	counting := h.escaped
	if !s.fenced() {
		counting = slices.Concat(h.members, h.escaped)
	}
	switch {
	case len(counting) > 0:
		w.Answer = Present
		w.Detail = fmt.Sprintf("%d processes, the first is %d (%s)", len(counting), counting[0].PID, counting[0].Comm)
	case len(h.opaque) > 0:
		w.Answer = Unknown
		o := h.opaque[0]
		w.Detail = fmt.Sprintf("%d processes cannot be judged, the first is %d (%s): %v", len(h.opaque), o.PID, o.Comm, o.Reason)
	case r.Quiet:
		w.Detail = fmt.Sprintf("none among %d processes, and none was made meanwhile", r.Scanned)
	default:
		w.Detail = fmt.Sprintf("none among %d processes", r.Scanned)
	}
	return w
}
