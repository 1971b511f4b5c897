package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/berthd/berth/statefs/record"
)

// errOf is the error of a call whose answer does not matter.
func errOf[T any](_ T, err error) error { return err }

func keyed(session, key string) Caller {
	return Caller{Session: session, Any: true, UID: 7, Key: key, Digest: "digest of " + session}
}

// A stop and a deletion are answered once, when they have come to their end, and
// a repeat gets the same bytes from the next daemon.
func TestAnswersAreRecorded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		kill := w.boot("epoch")
		if _, err := w.start("x", ""); err != nil {
			t.Fatal(err)
		}
		stop := StopRequest{Caller: keyed("x", "k")}
		if answer, err := w.e.Stop(context.Background(), stop); err != nil || answer != nil {
			t.Fatalf("the first answer: %s, %v", answer, err)
		}
		if op := w.e.Operation(&stop.Caller, opStop); op == nil || op.Done {
			t.Errorf("a stop that is under way: %+v", op)
		}
		w.await("x", time.Minute, func(v *View) bool { return v.State.Vacant() && len(v.Lease.Debts) == 0 })
		first, err := w.e.Stop(context.Background(), stop)
		if err != nil || len(first) == 0 {
			t.Fatalf("the recorded answer: %s, %v", first, err)
		}
		if _, err := w.start("x", ""); err != nil { // a repeat must not stop this one
			t.Fatal(err)
		}
		kill()
		kill = w.boot("epoch")
		again, err := w.e.Stop(context.Background(), stop)
		if err != nil || string(again) != string(first) {
			t.Errorf("repeated: %s, %v, want %s", again, err, first)
		}
		if v, _ := w.e.View("x"); v.State.Vacant() || v.State.Cleaning() {
			t.Errorf("the repeat stopped a new instance: %s", v.State.Kind)
		}
		other := stop
		other.Digest = "another"
		_, err = w.e.Stop(context.Background(), other)
		wantCode(t, "another request with the key", err, codeOperationConflict)
		w.finish(kill)
	})
}

// An open row whose session's record is lost is pending for two minutes, and
// then taken over.
func TestOrphanedOperation(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		kill := w.boot("epoch")
		tx := w.e.begin()
		row := &record.Operation{UID: 7, Kind: opStart, Key: "k", Session: "lost", Digest: "d"}
		wantCode(t, "at once", tx.orphaned(row, nil), codeReconcilePending)
		if err := tx.orphaned(row, []opKey{{7, opStart, "k"}}); err != nil {
			t.Errorf("one that is under way: %v", err)
		}
		time.Sleep(takeoverAfter)
		if err := w.e.begin().orphaned(row, nil); err != nil {
			t.Errorf("after two minutes: %v", err)
		}
		w.finish(kill)
	})
}

// What one user may have kept is bounded, another is not concerned, and an end
// is never refused.
func TestQuota(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		kill := w.boot("epoch")
		start := func(id, key string, uid uint32) error {
			c := keyed(id, key)
			c.UID = uid
			_, err := w.e.Start(context.Background(), StartRequest{Caller: c, Spec: spec(id), Room: room, StateRoom: room, OwnerUID: uid})
			return err
		}
		const limit = 3
		settings := w.e.opts.Settings
		settings.OperationsMax, settings.TombstonesMax = limit, 1
		if err := w.e.Reconfigure(context.Background(), w.e.opts.Rules, settings); err != nil {
			t.Fatal(err)
		}
		for i := range limit {
			if err := start(fmt.Sprint("s", i), fmt.Sprint("k", i), 7); err != nil {
				t.Fatal(err)
			}
		}
		wantCode(t, "one more", start("more", "more", 7), codeQuota)
		if err := errors.Join(start("other", "k", 8), start("more", "", 7), start("s0", "k0", 7)); err != nil {
			t.Error(err)
		}
		if _, err := w.e.Delete(context.Background(), DeleteRequest{Caller: keyed("s0", "d"), Discard: true}); err != nil {
			t.Errorf("a deletion: %v", err)
		}
		if _, gone := w.await("s0", time.Minute, func(*View) bool { return false }); !gone {
			t.Error("it is not deleted")
		}
		wantCode(t, "a new session", start("new", "", 7), codeQuota)
		w.finish(kill)
	})
}
