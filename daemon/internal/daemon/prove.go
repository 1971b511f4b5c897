package daemon

import (
	"context"
	"os"
	"time"

	"github.com/berthd/berth/daemon/internal/discover"
)

// prove shows that markers of other processes can be read, without which the
// daemon refuses deletes and says so, and looks for wrappers of older software.
func (d *Daemon) prove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, selfTestBound)
	defer cancel()
	if err := d.scanner.SelfTest(ctx); err != nil {
		if ctx.Err() == nil {
			d.log.Error("other processes' environments cannot be read: deletes are refused", "error", err)
			d.api.SetDegraded(err)
		}
		return
	}
	select { // a scan of everything does not compete with the adoption
	case <-time.After(legacyDelay):
	case <-ctx.Done():
		return
	}
	seen, err := d.scanner.Scan(ctx)
	if err != nil {
		return // only the wrappers of older software are not looked for
	}
	legacy := map[string]bool{}
	for _, p := range seen.Procs {
		if p.Kind == discover.Legacy && p.Session != "" && p.PID != os.Getpid() {
			legacy[p.Session] = true
		}
	}
	if len(legacy) > 0 { // no names: they are whatever somebody has put into an environment
		d.log.Warn("wrappers of older software run, see berthctl scan; a stop of the session ends them", "sessions", len(legacy))
	}
	d.host.NoteLegacy(legacy)
}

// sweepTrash erases what earlier deletions have left: a power cut after a purge
// may bring a tree back under a name that no lease knows. What a lease does know
// is erased by its own deletion, for which finding it gone is success.
func (d *Daemon) sweepTrash(ctx context.Context) {
	if err := d.dir.Trash().Empty(ctx); err != nil && ctx.Err() == nil {
		d.log.Warn("the trash could not be emptied; the next start tries again", "error", err)
	}
}

// ageSalvages removes what was saved from workspaces long enough ago. Only hours
// in which the daemon ran are counted.
func (d *Daemon) ageSalvages(ctx context.Context, keep time.Duration) {
	tick := time.NewTicker(salvageEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		gone, err := d.dir.Salvages().Age(int(keep / salvageEvery))
		if err != nil {
			d.log.Warn("what was saved from workspaces cannot be looked through; tried again in an hour", "error", err)
		}
		for _, name := range gone {
			d.log.Info("removed what was saved from a workspace", "salvage", name, "kept", keep)
		}
	}
}

// salvageEvery is how often salvages are made older.
const salvageEvery = time.Hour
