package admit

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Room is one reading of a file system, as statfs(2) gives it to an
// unprivileged user: FreeBytes = f_bavail × f_frsize, FreeInodes = f_favail.
type Room struct {
	FreeBytes, TotalBytes   uint64
	FreeInodes, TotalInodes uint64 // TotalInodes 0 = the file system does not count inodes (btrfs)
	// Age is how long ago the reading was taken.
	Age time.Duration
	// Known is false if it could not be taken; the rest is then ignored.
	Known bool
}

// ErrRoom is returned by Check for a reading that nothing can be concluded from.
var ErrRoom = errors.New("the room is not known")

// Check reports by ErrRoom that r says nothing about what is free: not taken,
// too old (maxAge; 0 = any age will do), without a size, or contradicting
// itself.
func (r Room) Check(maxAge time.Duration) error {
	switch {
	case !r.Known:
		return fmt.Errorf("measuring failed: %w", ErrRoom)
	case r.Age < 0:
		return fmt.Errorf("the reading is of the future (%s): %w", r.Age, ErrRoom)
	case maxAge > 0 && r.Age > maxAge:
		return fmt.Errorf("the reading is %s old, more than %s: %w", r.Age, maxAge, ErrRoom)
	case r.TotalBytes == 0:
		return fmt.Errorf("the file system gives no size: %w", ErrRoom)
	case r.FreeBytes > r.TotalBytes:
		return fmt.Errorf("more bytes free (%d) than there are (%d): %w", r.FreeBytes, r.TotalBytes, ErrRoom)
	case r.FreeInodes > r.TotalInodes:
		return fmt.Errorf("more inodes free (%d) than there are (%d): %w", r.FreeInodes, r.TotalInodes, ErrRoom)
	}
	return nil
}

// Reservation is room that is promised and may not have been written yet.
type Reservation struct {
	Bytes, Inodes uint64
}

// Default is what a session reserves if nothing else is configured: 1 GiB and
// 20,000 inodes.
func Default() Reservation { return Reservation{Bytes: 1 << 30, Inodes: 20_000} }

// Add is r and o together; a sum beyond the largest number is that number.
func (r Reservation) Add(o Reservation) Reservation {
	return Reservation{Bytes: add(r.Bytes, o.Bytes), Inodes: add(r.Inodes, o.Inodes)}
}

// Shrink is what of r is still to come once the workspace uses used: what has
// been written is missing from the free room already, and must not be counted
// twice. Never below zero.
func (r Reservation) Shrink(used Reservation) Reservation {
	return Reservation{Bytes: sub(r.Bytes, used.Bytes), Inodes: sub(r.Inodes, used.Inodes)}
}

func add(a, b uint64) uint64 {
	if a+b < a {
		return ^uint64(0)
	}
	return a + b
}

func sub(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}

// bytesText says n for people: "1.5 GiB".
func bytesText(n uint64) string {
	const step = 1024
	if n < step {
		return strconv.FormatUint(n, 10) + " B"
	}
	f, unit := float64(n)/step, 0
	for f >= step && unit < 5 {
		f /= step
		unit++
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + " " + [...]string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}[unit]
}
