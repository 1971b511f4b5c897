package admit

import (
	"errors"
	"fmt"
	"time"
)

// Marks are the limits of one file system. A mark of bytes is the larger of its
// number and its percentage of the size; the inode marks likewise.
type Marks struct {
	// Nothing is admitted that would leave less than this.
	LowBytes        uint64
	LowPercent      float64 // of the bytes, 0 to 100
	LowInodes       uint64
	LowInodePercent float64 // of the inodes, 0 to 100

	// Once low, a file system stays low until this is left.
	ExitLowBytes        uint64
	ExitLowPercent      float64
	ExitLowInodes       uint64
	ExitLowInodePercent float64

	// Below this, what is really free is so little that the fastest writer is to
	// be frozen; 0 and 0 = never.
	HardBytes   uint64
	HardPercent float64

	// AbsoluteOnly ignores all percentages: state and log directories are small,
	// and their needs do not grow with the disk.
	AbsoluteOnly bool
	// MaxAge is how old a reading may be; 0 = any age will do.
	MaxAge time.Duration
}

// ErrMarks is returned by Validate for marks that contradict each other.
var ErrMarks = errors.New("unusable marks")

// DefaultMarks returns the marks of a workspace root: low below 2 GiB or 5 % of
// the bytes, whichever is more, or 5 % of the inodes.
func DefaultMarks() Marks {
	return Marks{
		LowBytes: 2 << 30, LowPercent: 5, LowInodePercent: 5,
		ExitLowBytes: 3 << 30, ExitLowPercent: 7, ExitLowInodePercent: 7,
		MaxAge: 30 * time.Second,
	}
}

// RootMarks returns the marks of a state or log root: 64 MiB and 1,024 inodes,
// however large the disk is.
func RootMarks() Marks {
	return Marks{
		LowBytes: 64 << 20, LowInodes: 1024,
		ExitLowBytes: 96 << 20, ExitLowInodes: 1536,
		AbsoluteOnly: true,
		MaxAge:       30 * time.Second,
	}
}

// Validate reports by ErrMarks a percentage outside 0 to 100, an exit mark below
// its low mark, or a hard mark above it.
func (m Marks) Validate() error {
	for _, p := range []float64{m.LowPercent, m.LowInodePercent, m.ExitLowPercent, m.ExitLowInodePercent, m.HardPercent} {
		if !(p >= 0 && p <= 100) { // also for what is not a number
			return fmt.Errorf("checking percentage %v: %w", p, ErrMarks)
		}
	}
	switch {
	case m.MaxAge < 0:
		return fmt.Errorf("checking age %s: %w", m.MaxAge, ErrMarks)
	case m.ExitLowBytes < m.LowBytes || m.ExitLowPercent < m.LowPercent:
		return fmt.Errorf("checking the bytes that end the low state, below the low mark: %w", ErrMarks)
	case m.ExitLowInodes < m.LowInodes || m.ExitLowInodePercent < m.LowInodePercent:
		return fmt.Errorf("checking the inodes that end the low state, below the low mark: %w", ErrMarks)
	case m.HardBytes > m.LowBytes || m.HardPercent > m.LowPercent:
		return fmt.Errorf("checking the hard mark, above the low mark: %w", ErrMarks)
	}
	return nil
}

func (m Marks) low(r Room) Reservation {
	return Reservation{
		Bytes:  m.mark(m.LowBytes, m.LowPercent, r.TotalBytes),
		Inodes: m.mark(m.LowInodes, m.LowInodePercent, r.TotalInodes),
	}
}

func (m Marks) exit(r Room) Reservation {
	return Reservation{
		Bytes:  m.mark(m.ExitLowBytes, m.ExitLowPercent, r.TotalBytes),
		Inodes: m.mark(m.ExitLowInodes, m.ExitLowInodePercent, r.TotalInodes),
	}
}

func (m Marks) hard(r Room) uint64 { return m.mark(m.HardBytes, m.HardPercent, r.TotalBytes) }

func (m Marks) mark(least uint64, percent float64, total uint64) uint64 {
	if m.AbsoluteOnly {
		return least
	}
	return max(least, share(percent, total))
}

// share is percent of total, rounded down to about 16 digits, never more than
// total.
func share(percent float64, total uint64) uint64 {
	f := float64(total) * percent / 100
	if percent >= 100 || f >= float64(total) {
		return total
	}
	return uint64(f)
}
