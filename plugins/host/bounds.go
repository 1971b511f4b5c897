package host

import "time"

// Bounds are the limits of a Host. A zero field takes its default.
type Bounds struct {
	// Start bounds one start: from exec to a checked Describe. A provider
	// answers in about 10 ms; the rest is for loaded hosts.
	Start time.Duration
	// Describe bounds the call that also tells whether a plugin still answers.
	Describe time.Duration
	// Prepare bounds one Prepare; it is the bound of a preparation attempt.
	Prepare time.Duration
	// Observe bounds one Observe, which has to be cheap.
	Observe time.Duration
	// Release bounds one Release. What it leaves is retried as a debt.
	Release time.Duration
	// Grace is what a plugin gets between losing its daemon's pipe and SIGKILL.
	Grace time.Duration
	// Kill bounds the wait for a killed process; longer means that the kernel
	// holds it.
	Kill time.Duration
	// Probe is the time between two questions whether a plugin still answers.
	// Two unanswered ones in a row end it.
	Probe time.Duration
	// BackoffMin and BackoffMax are the first and the longest delay before a
	// new start; it doubles in between.
	BackoffMin, BackoffMax time.Duration
	// Stable is how long a plugin must have lived for its past crashes to be
	// forgotten.
	Stable time.Duration
	// Circuit is the number of failures in a row that opens the circuit.
	Circuit int
	// Prepares and Others bound the calls of one provider that run at once:
	// Prepare, and Observe and Release each.
	Prepares, Others int
	// LogBytes is how large a plugin's log may grow; the one before it is kept.
	LogBytes int64
}

// withDefaults fills the zero fields.
func (b Bounds) withDefaults() Bounds {
	return Bounds{
		Start:      or(b.Start, 10*time.Second),
		Describe:   or(b.Describe, 5*time.Second),
		Prepare:    or(b.Prepare, 12*time.Minute),
		Observe:    or(b.Observe, 10*time.Second),
		Release:    or(b.Release, 2*time.Minute),
		Grace:      or(b.Grace, 2*time.Second),
		Kill:       or(b.Kill, 2*time.Second),
		Probe:      or(b.Probe, 15*time.Second),
		BackoffMin: or(b.BackoffMin, time.Second),
		BackoffMax: or(b.BackoffMax, 2*time.Minute),
		Stable:     or(b.Stable, time.Minute),
		Circuit:    or(b.Circuit, 5),
		Prepares:   or(b.Prepares, 4),
		Others:     or(b.Others, 8),
		LogBytes:   or(b.LogBytes, 4<<20),
	}
}

func or[N int | int64 | time.Duration](v, fallback N) N {
	if v > 0 {
		return v
	}
	return fallback
}

// delay returns how long to wait before the next start after failures ≥ 1
// starts or runs failed in a row: BackoffMin doubled each time up to
// BackoffMax, and BackoffMax at once when the circuit is open. Half of it is
// jitter; draw is in [0, 1).
func (b Bounds) delay(failures int, draw float64) time.Duration {
	d := b.BackoffMin
	for i := 1; i < failures && d < b.BackoffMax; i++ {
		d *= 2
	}
	if d > b.BackoffMax || b.open(failures) {
		d = b.BackoffMax
	}
	return d/2 + time.Duration(draw*float64(d/2))
}

// open reports whether failures in a row open the circuit.
func (b Bounds) open(failures int) bool { return failures >= b.Circuit }
