package engine

import (
	"time"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/daemon/internal/tally"
)

// Sums are what has happened since this daemon started.
type Sums struct {
	Starts      *tally.Counts // by "verified" and "failed"
	StartTimes  *tally.Times  // of verified ones, from the intent on disk
	Stops       *tally.Counts // by reason, those whose absence was proven
	StopTimes   *tally.Times  // of those, from the request; not over a new epoch
	Exits       *tally.Counts // ends of instances, by the kind of their exit
	Quarantines *tally.Counts // by the reason of the stop that was given up
}

func newSums() *Sums {
	var reasons []string
	for _, r := range lease.Reasons() {
		reasons = append(reasons, r.String())
	}
	return &Sums{
		Starts: tally.NewCounts("verified", "failed"),
		StartTimes: tally.NewTimes(10*time.Millisecond, 20*time.Millisecond, 50*time.Millisecond, 100*time.Millisecond, 200*time.Millisecond,
			500*time.Millisecond, time.Second, 5*time.Second, 15*time.Second, time.Minute, 5*time.Minute, 15*time.Minute),
		Stops: tally.NewCounts(reasons...),
		StopTimes: tally.NewTimes(5*time.Millisecond, 10*time.Millisecond, 20*time.Millisecond, 50*time.Millisecond, 100*time.Millisecond,
			500*time.Millisecond, time.Second, 5*time.Second, 10*time.Second, 15*time.Second, time.Minute, 5*time.Minute),
		Exits: tally.NewCounts("code", "signal", "oom", "unknown"), Quarantines: tally.NewCounts(reasons...),
	}
}

// Sums returns the running sums; they may be read at any time.
func (e *Engine) Sums() *Sums { return e.sums }

// count adds what a lease's step means to the sums, once it is durable.
func (t *tx) count(d *draft, before lease.State, ev *lease.Event) {
	sums, after, now := t.e.sums, d.state, t.now
	switch {
	case before.Kind == lease.Starting && !before.Reuse && ev.Kind == lease.Verified:
		took := now - d.lease.Wrapper.Since
		t.then(func() {
			sums.Starts.Add("verified")
			sums.StartTimes.Add(took)
		})
	case before.Kind == lease.Starting && !before.Reuse && !after.Owned():
		t.then(func() { sums.Starts.Add("failed") })
	}
	switch {
	case before.Cleaning() && after.Vacant() && ev.Kind != lease.Abandon: // nobody has seen the end of what an operator gives up
		t.then(func() {
			sums.Stops.Add(before.Stop.Reason.String())
			if ev.Kind != lease.NewEpoch { // it began on another clock
				sums.StopTimes.Add(now - before.Stop.RequestedAt)
			}
		})
	case after.Kind == lease.Quarantined && before.Kind != lease.Quarantined:
		t.then(func() { sums.Quarantines.Add(after.Stop.Reason.String()) })
	}
}
