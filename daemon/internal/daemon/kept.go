package daemon

import (
	"context"
	"time"
)

const (
	// sweepKeptEvery is how often it is asked whether all is settled, sweepKeptAfter
	// when what came back is given up all the same.
	sweepKeptEvery = 250 * time.Millisecond
	sweepKeptAfter = time.Minute
)

// sweepKept has the service manager let go of what no lease names, once the
// wrappers of the daemon before are settled.
func (d *Daemon) sweepKept(ctx context.Context) {
	tick := time.NewTicker(sweepKeptEvery)
	defer tick.Stop()
	for end := time.Now().Add(sweepKeptAfter); !d.engine.Snapshot().Settled && time.Now().Before(end); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	used, removed := d.keeper.Sweep(d.named)
	if used+removed > 0 {
		d.log.Info("wrappers' descriptors came back from the service manager", "used", used, "removed", removed)
	}
}

// named reports whether a lease names that generation of the session.
func (d *Daemon) named(session string, generation uint64) bool {
	v, ok := d.engine.View(session)
	return ok && v.State.Instance.Generation == generation
}
