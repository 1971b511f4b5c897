package engine

import (
	"strings"
	"time"

	"github.com/berthd/berth/statefs/record"
)

// age is how long the host has been running since berth came to it. What is to
// be kept for days is measured by it and not by the time of day, which somebody
// may set, nor by the boot clock, which begins anew.
func (e *Engine) age(now time.Duration) time.Duration { return e.ageBase + now - e.ageFrom }

// continueAge goes on from the age that is on disk. In the boot in which it was
// written, the time without a daemon counts; of an earlier one nobody knows how
// long it went on, so that at most one period of the sweep is not counted.
func (e *Engine) continueAge(h *record.Host) {
	now := e.opts.Now()
	e.ageBase, e.ageFrom = h.Age, now
	before, _, _ := strings.Cut(h.Epoch, ":")
	boot, _, _ := strings.Cut(e.opts.Epoch, ":")
	if before == boot && h.AgeAt > 0 && now > h.AgeAt {
		e.ageBase += now - h.AgeAt
	}
}

// retention is how long a session is kept after its last activity; 0 = for ever.
func (e *Engine) retention(spec *record.Spec) time.Duration {
	switch {
	case spec == nil: // what it was meant to be is not known
		return 0
	case spec.Retention < 0:
		return 0
	case spec.Retention > 0:
		return spec.Retention
	}
	return e.opts.Settings.Retention
}

// expiresAt is when a session has been without activity for as long as it is
// kept, on the boot clock; false when it never is. One that owns an instance is
// active, one that cannot be proven to have none is not touched.
func (e *Engine) expiresAt(s *session) (time.Duration, bool) {
	keep := e.retention(s.spec)
	if keep == 0 || !s.state.Vacant() || s.lease.Deletion != nil || s.lease.Unreadable != "" {
		return 0, false
	}
	return s.lease.ActiveAge + keep - e.ageBase + e.ageFrom, true
}

// retire begins the deletion of a session that has been kept for long enough. It
// is a deletion like any other; work that is found in the workspace is saved.
func (t *tx) retire(d *draft) {
	at, expires := t.e.expiresAt(d.s)
	if !expires || t.now < at || d.s.state != d.state || d.lease.Deletion != nil {
		return
	}
	t.intend(d, &DeleteRequest{Caller: Caller{By: "berthd"}, Salvage: true}, "retention_expired")
}
