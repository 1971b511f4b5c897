package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

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
		wantCode(t, "a request that no record holds", errOf(w.e.Stop(context.Background(), StopRequest{Caller: huge})), codeInvalid)
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
