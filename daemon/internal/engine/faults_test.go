package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// inWorld runs f in a calm world with a clock of its own; a loop that does not
// rest never lets that clock move, so that the test does not end.
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.calm = true
		f(t, w)
	})
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) stop(session string) error {
	return w.e.Stop(context.Background(), StopRequest{Caller: Caller{Session: session, Any: true}})
}

func (w *world) remove(session string) error {
	return w.e.Delete(context.Background(), DeleteRequest{Caller: Caller{Session: session, Any: true}, Discard: true})
}

// await waits for a session's state, bounded by the test's own clock.
func (w *world) await(session string, bound time.Duration, done func(*View) bool) (*View, bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	v, gone, err := w.e.Await(ctx, session, done)
	if err != nil {
		w.t.Errorf("waiting for %q: %v, its state is %+v", session, err, v.State)
	}
	return v, gone
}

func wantCode(t *testing.T, what string, err error, code Code) {
	t.Helper()
	var r *Refusal
	if !errors.As(err, &r) || r.Code != code {
		t.Errorf("%s: %v, want %s", what, err, code)
	}
}

// A wrapper that says nothing while it starts is waited for until the startup
// deadline, also beyond the reconnect window, and the loop rests meanwhile.
func TestSilentStart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.mute, w.startup = true, 13*time.Minute
		kill := w.boot("epoch")
		begun := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		_, err := w.e.Start(ctx, StartRequest{
			Caller: Caller{Session: "x", Any: true}, Spec: spec("x"), Room: room, StateRoom: room, OwnerUID: 7,
		})
		wantCode(t, "a start without a hello", err, codeStartFailed)
		if took := time.Since(begun); took < w.startup || took > w.startup+time.Minute {
			t.Errorf("the start was given up after %s", took)
		}
		w.finish(kill)
	})
}

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

// What an effect has found out survives a disk on which not even the reserve is
// left: it is recorded once there is room again. case T45
func TestReserveSpent(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		kill := w.boot("epoch")
		for _, id := range []string{"stopped", "deleted", "running"} {
			if _, err := w.start(id, ""); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.stop("stopped"), w.remove("deleted")); err != nil {
			t.Fatal(err)
		}
		w.j.set(func() { w.j.spent = true })
		time.Sleep(10 * time.Minute)
		w.set(func() { // the death of a wrapper is news that cannot be recorded
			for key := range w.live {
				delete(w.live, key)
			}
		})
		time.Sleep(10 * time.Minute)
		wantCode(t, "a stop without room", w.stop("running"), codeFilesystemUnusable)
		w.j.set(func() { w.j.spent = false })
		w.await("stopped", time.Minute, func(v *View) bool { return v.State.Vacant() && len(v.Lease.Debts) == 0 })
		w.await("running", time.Minute, func(v *View) bool { return v.State.Vacant() && len(v.Lease.Debts) == 0 })
		if _, gone := w.await("deleted", time.Minute, func(*View) bool { return false }); !gone {
			t.Error("the deletion has not ended")
		}
		w.finish(kill)
	})
}

// A journal that has failed is no reason to spin, and who waits for something
// that can no longer be recorded is told.
func TestJournalFailsUnderWaiters(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.mute = true
		kill := w.boot("epoch")
		waiter := make(chan error, 1)
		go func() {
			_, err := w.start("x", "")
			waiter <- err
		}()
		time.Sleep(time.Second)
		w.j.set(func() { w.j.failed = errors.New("input/output error") })
		wantCode(t, "a stop", w.stop("x"), codeJournal)
		wantCode(t, "the start that was under way", <-waiter, codeJournal)
		time.Sleep(time.Hour) // the startup deadline is due and cannot be recorded
		w.finish(kill)
	})
}

// Many large requests at once are more than one append holds, and so is what
// one command causes for many sessions: neither ends the journal.
func TestLargeBatches(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.j.limit = 2<<20 - 4096
		kill := w.boot("epoch one")
		const n = 60
		answers := make(chan error, n)
		for i := range n { // all wait for the inventory, and then are one batch
			go func() {
				id := fmt.Sprintf("s%d", i)
				s := spec(id)
				s.Env = []string{"A=" + strings.Repeat("x", 60<<10)}
				s.Workspace = "/" + id + strings.Repeat("/directory", 6<<10)
				_, err := w.e.Start(context.Background(), StartRequest{
					Caller: Caller{Session: id, Any: true, Digest: id, Key: id}, Spec: s, Room: room, StateRoom: room, OwnerUID: 7,
				})
				answers <- err
			}()
		}
		for range n {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		kill()
		w.set(func() { clear(w.live) })
		kill = w.boot("epoch two")
		for i := range n {
			w.await(fmt.Sprintf("s%d", i), time.Minute, func(v *View) bool { return v.State.Vacant() })
		}
		if err := w.e.Err(); err != nil {
			t.Errorf("the journal has failed: %v", err)
		}
		huge := Caller{Session: "s1", Any: true, Key: strings.Repeat("k", 3<<20)}
		wantCode(t, "a request that no record holds", w.e.Stop(context.Background(), StopRequest{Caller: huge}), codeInvalid)
		if err := w.stop("s1"); err != nil {
			t.Errorf("stop after a refused one: %v", err)
		}
		w.finish(kill)
	})
}

// TestDivide: appends are cut between records, but never behind a
// specification, and nothing is lost.
func TestDivide(t *testing.T) {
	t.Parallel()
	half := make([]byte, appendMax/2)
	var entries []journal.Entry
	for range 5 {
		entries = append(entries,
			journal.Entry{Type: uint16(record.TypeSpec), Body: half}, journal.Entry{Type: uint16(record.TypeLease), Body: half})
	}
	parts, n := divide(entries), 0
	for _, part := range parts {
		n += len(part)
		if record.Type(part[len(part)-1].Type) == record.TypeSpec {
			t.Error("an append ends with a specification")
		}
	}
	if n != len(entries) || len(parts) != 5 {
		t.Errorf("%d entries in %d appends", n, len(parts))
	}
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

// One directory has one session, whatever lies above and below it.
func TestNestedWorkspaces(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		kill := w.boot("epoch")
		at := func(id, path string) error {
			s := spec(id)
			s.Workspace = path
			_, err := w.e.Start(context.Background(), StartRequest{
				Caller: Caller{Session: id, Any: true}, Spec: s, Room: room, StateRoom: room, OwnerUID: 7,
			})
			return err
		}
		if err := errors.Join(at("a", "/home/u/tree"), at("b", "/home/u/tree2"), at("c", "/home/u/other/x")); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/home/u/tree", "/home/u/tree/sub", "/home/u", "/", "/home/u/other/x/y/z"} {
			wantCode(t, path, at("d", path), codeWorkspaceInUse)
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

// An answer that is too long for the ledger is given all the same, and so is
// its repeat.
func TestLongAnswer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		kill := w.boot("epoch")
		s := spec("x")
		s.Workspace = "/" + strings.Repeat("<", resultMax)
		for range 2 {
			got, err := w.e.Start(context.Background(), StartRequest{
				Caller: Caller{Session: "x", Any: true, Key: "k", Digest: "d"}, Spec: s, Room: room, StateRoom: room, OwnerUID: 7,
			})
			if err != nil || got.Generation != 1 {
				t.Errorf("started %+v, %v", got, err)
			}
		}
		w.finish(kill)
	})
}

// A snapshot that fails is tried again after a pause, not at once.
func TestSnapshotFails(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.j.needs = true
		kill := w.boot("epoch")
		if _, err := w.start("x", ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		var tried int
		w.j.set(func() { tried = w.j.tried })
		if tried < 10 || tried > 100 {
			t.Errorf("%d tries in ten minutes", tried)
		}
		w.finish(kill)
	})
}

// A deletion that was asked for without discard and is held up goes on when the
// client agrees to lose what is there.
func TestDiscardLater(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.busy = true
		kill := w.boot("epoch")
		if _, err := w.start("x", ""); err != nil {
			t.Fatal(err)
		}
		ask := func(discard bool) {
			err := w.e.Delete(context.Background(), DeleteRequest{Caller: Caller{Session: "x", Any: true}, Discard: discard})
			if err != nil {
				t.Fatal(err)
			}
		}
		ask(false)
		ask(true)
		ask(false) // no way back
		if v, _ := w.e.View("x"); v.Lease.Deletion == nil || !v.Lease.Deletion.Discard {
			t.Errorf("the deletion is %+v", v.Lease.Deletion)
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

// An error that quotes a long request does not make long events: many are kept.
func TestLongDetail(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.refuse = strings.Repeat("x", 60<<10)
		kill := w.boot("epoch")
		_, err := w.start("x", "")
		wantCode(t, "the start", err, codeStartFailed)
		w.await("x", time.Minute, func(v *View) bool { return v.State.Vacant() })
		_ = w.e.Events(context.Background(), 0, false, func(ev Event) error {
			if len(ev.Detail) > detailMax {
				t.Errorf("event %s has %d bytes of detail", ev.Kind, len(ev.Detail))
			}
			return nil
		})
		w.finish(kill)
	})
}
