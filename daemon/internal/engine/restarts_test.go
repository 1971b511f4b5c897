package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// A start that is in one batch with the inventory, behind it, is let through.
// case T11
func TestStartWithInventory(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		kill := w.boot("epoch")
		time.Sleep(time.Minute) // its own inventory is in
		gate := make(chan struct{})
		w.e.post(func(t *tx) {
			t.then(func() { t.e.inventory = false })
			<-gate // meanwhile the next batch gathers
		})
		synctest.Wait()
		w.e.post(func(t *tx) { t.inventoried(Inventory{Generations: map[string]uint64{}}, nil) })
		done := make(chan error, 1)
		go func() {
			_, err := w.start("x", "")
			done <- err
		}()
		synctest.Wait()
		close(gate)
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.finish(kill)
	})
}

// After a reboot the boot clock begins again: debts and deletions that waited
// for a time on the old one do not wait for its uptime. case T47
func TestRebootRestartsClocks(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.busy = true
		kill := w.boot("epoch one")
		for _, id := range []string{"indebted", "deleted"} {
			if _, err := w.start(id, ""); err != nil {
				t.Fatal(err)
			}
			if err := w.stop(id); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.remove("deleted"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		kill()
		w.set(func() { w.busy, w.bootAt = false, time.Now().Add(-time.Minute) })
		kill = w.boot("epoch two")
		w.await("indebted", 5*time.Second, func(v *View) bool { return len(v.Lease.Debts) == 0 })
		if _, gone := w.await("deleted", 5*time.Second, func(*View) bool { return false }); !gone {
			t.Error("the deletion waits for the uptime of the old epoch")
		}
		w.finish(kill)
	})
}

// A start that waits for an adoption is answered when a stop comes between, and
// such a session does not keep the daemon reconciling.
func TestStopBeforeAdoption(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		kill := w.boot("epoch")
		if _, err := w.start("x", ""); err != nil {
			t.Fatal(err)
		}
		kill()
		w.set(func() { w.mute, w.tough = true, true })
		kill = w.boot("epoch")
		waiter := make(chan error, 1)
		go func() {
			_, err := w.start("x", "")
			waiter <- err
		}()
		time.Sleep(time.Second)
		if err := w.stop("x"); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-waiter:
			wantCode(t, "the start that waited", err, codeCleanupPending)
		case <-time.After(time.Second):
			t.Error("the start still waits")
		}
		w.await("x", time.Hour, func(v *View) bool { return v.State.Kind == lease.Quarantined })
		if !w.e.Snapshot().Settled {
			t.Error("a quarantined session keeps the daemon reconciling")
		}
		w.finish(kill)
	})
}

// A session of which only the specification has survived has no generation that
// may be given out: it is refused, and does not end the daemon. case T42
func TestOnlySpecification(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		if _, err := w.j.Append(journal.Ordinary, journal.Entry{
			Type: uint16(record.TypeSpec), Session: "x", Generation: 1, Body: spec("x").Append(nil),
		}); err != nil {
			t.Fatal(err)
		}
		kill := w.boot("epoch")
		v, _ := w.await("x", time.Minute, func(v *View) bool { return v.State.Vacant() })
		if v.Lease.Workspace != "/ws/x" {
			t.Errorf("its workspace is %q", v.Lease.Workspace)
		}
		_, err := w.start("x", "")
		wantCode(t, "its start", err, codeCleanupPending)
		if _, err := w.start("y", ""); err != nil {
			t.Errorf("another session: %v", err)
		}
		if err := w.remove("x"); err != nil {
			t.Fatal(err)
		}
		if _, gone := w.await("x", time.Minute, func(*View) bool { return false }); !gone {
			t.Error("its deletion has not ended")
		}
		w.finish(kill)
	})
}

// Where there are no leaves and the records are lost, a wrapper that lives is
// found by its marker before anything is launched beside it; one that its lease
// does not tell of is stopped. case E8, T02
func TestStrayWithoutLeaf(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.weak = true
		kill := w.boot("epoch")
		if _, err := w.start("x", ""); err != nil {
			t.Fatal(err)
		}
		kill()
		w.set(func() { w.mute = true })
		w.j.set(func() { w.j.records, w.j.last = nil, 0 })
		kill = w.boot("epoch")
		_, err := w.start("x", "")
		wantCode(t, "a start beside a wrapper that no lease tells of", err, codeCleanupPending)
		w.set(func() { clear(w.live) })
		v, _ := w.await("x", time.Hour, func(v *View) bool { return v.State.Vacant() && v.State.NextGeneration == 2 })
		if v.Lease.Workspace != "/ws/x" {
			t.Errorf("its workspace is %q", v.Lease.Workspace)
		}
		w.finish(kill)
	})
}
