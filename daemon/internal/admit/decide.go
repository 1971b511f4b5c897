package admit

import (
	"fmt"
	"strings"
)

// Verdict is what is decided about a start.
type Verdict uint8

// The verdicts. The zero Verdict is invalid.
const (
	// Admit: there is room, reserve it.
	Admit Verdict = iota + 1
	// Rejected: there is not, CAPACITY_REJECTED; it may be tried again.
	Rejected
	// UnknownCapacity: nothing is known, CAPACITY_UNKNOWN; admit nothing and
	// delete nothing.
	UnknownCapacity
)

// String returns "admit", "rejected" or "unknown_capacity", else "verdict(N)".
func (v Verdict) String() string {
	switch v {
	case Admit:
		return "admit"
	case Rejected:
		return "rejected"
	case UnknownCapacity:
		return "unknown_capacity"
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Decision is a verdict with all the numbers that led to it. With
// UnknownCapacity the numbers from Mark on are zero.
type Decision struct {
	Verdict Verdict
	// Low: measured minus promised room is below the low mark, or has not yet
	// come back up to the exit mark. Stale workspaces are then to be reclaimed.
	// To be handed to the next decision on this file system. With
	// UnknownCapacity it is what it was.
	Low bool
	// Hard: what is really free is below the hard mark.
	Hard bool

	Room        Room
	Outstanding Reservation
	Request     Reservation

	Mark  Reservation // what must be left
	Left  Reservation // what would be left, 0 if it does not suffice at all
	Short Reservation // how much must become free before the request is admitted; zero with Admit

	// Err is set with UnknownCapacity and wraps ErrRoom or ErrMarks.
	Err error
}

// Decide says whether request fits beside what is outstanding. After admission
// measured − outstanding − request must be at least the low mark, in bytes and,
// where the file system counts them, in inodes. While low, nothing is admitted
// before measured − outstanding has come back up to the exit mark.
func Decide(room Room, outstanding, request Reservation, m Marks, wasLow bool) Decision {
	d := Decision{Verdict: UnknownCapacity, Low: wasLow, Room: room, Outstanding: outstanding, Request: request}
	if d.Err = m.Validate(); d.Err != nil {
		return d
	}
	if d.Err = room.Check(m.MaxAge); d.Err != nil {
		return d
	}
	d.Hard = room.FreeBytes < m.hard(room)
	low, stay := m.low(room), m.low(room)
	if wasLow {
		stay = m.exit(room)
	}
	bytes := weigh(room.FreeBytes, outstanding.Bytes, request.Bytes, low.Bytes, stay.Bytes)
	inodes := scale{}
	if room.TotalInodes != 0 {
		inodes = weigh(room.FreeInodes, outstanding.Inodes, request.Inodes, low.Inodes, stay.Inodes)
	}
	d.Low = bytes.low || inodes.low
	d.Mark = Reservation{bytes.mark, inodes.mark}
	d.Left = Reservation{bytes.left, inodes.left}
	d.Short = Reservation{bytes.short, inodes.short}
	d.Verdict = Admit
	if d.Short != (Reservation{}) {
		d.Verdict = Rejected
	}
	return d
}

// scale is the decision for one of bytes and inodes.
type scale struct {
	mark, left, short uint64
	low               bool
}

// weigh decides for one of bytes and inodes: low is what must be left, stay what
// must be unpromised for the file system not to be low.
func weigh(free, outstanding, request, low, stay uint64) scale {
	s := scale{
		mark:  low,
		left:  sub(sub(free, outstanding), request),
		short: missing(free, outstanding, request, low),
	}
	if lacks := missing(free, outstanding, stay); lacks > 0 {
		s.low, s.mark, s.short = true, stay, max(s.short, lacks)
	}
	return s
}

// missing is how much free lacks to meet all needs. It is above 0 whenever
// something lacks: a sum that overflows is met by nothing.
func missing(free uint64, needs ...uint64) uint64 {
	var lacks uint64
	for _, n := range needs {
		lacks = add(lacks, sub(n, free))
		free = sub(free, n)
	}
	return lacks
}

// Explain says the decision in one line for people.
func (d Decision) Explain() string {
	if d.Verdict == UnknownCapacity {
		return d.Err.Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s free of %s, %s promised, %s asked for, %s must be left",
		bytesText(d.Room.FreeBytes), bytesText(d.Room.TotalBytes), bytesText(d.Outstanding.Bytes),
		bytesText(d.Request.Bytes), bytesText(d.Mark.Bytes))
	if d.Room.TotalInodes != 0 {
		fmt.Fprintf(&b, "; %d inodes free of %d, %d promised, %d asked for, %d must be left",
			d.Room.FreeInodes, d.Room.TotalInodes, d.Outstanding.Inodes, d.Request.Inodes, d.Mark.Inodes)
	}
	switch {
	case d.Short.Bytes > 0 && d.Short.Inodes > 0:
		fmt.Fprintf(&b, "; short of %s and %d inodes", bytesText(d.Short.Bytes), d.Short.Inodes)
	case d.Short.Bytes > 0:
		fmt.Fprintf(&b, "; short of %s", bytesText(d.Short.Bytes))
	case d.Short.Inodes > 0:
		fmt.Fprintf(&b, "; short of %d inodes", d.Short.Inodes)
	}
	return b.String()
}

// Worse returns the decision that holds for a session that writes to both file
// systems: one unknown makes all unknown, one rejection rejects.
func Worse(a, b Decision) Decision {
	if b.Verdict > a.Verdict {
		return b
	}
	return a
}
