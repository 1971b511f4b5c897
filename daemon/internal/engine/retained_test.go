package engine

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/berthd/berth/statefs/record"
)

// retained are the facts of a deletion that outlive the purge of the files: of
// its intent, of what providers owe, and of the tombstone. Each is looked at in
// every record from the intent to the tombstone.
var retained = map[string]func(l *record.Lease) bool{
	"intent: reason":  func(l *record.Lease) bool { return l.Deletion.Reason == "explicit" },
	"intent: by":      func(l *record.Lease) bool { return l.Deletion.By == "somebody" },
	"intent: when":    func(l *record.Lease) bool { return !l.Deletion.Wall.IsZero() },
	"intent: discard": func(l *record.Lease) bool { return l.Deletion.Discard },
	"intent: salvage": func(l *record.Lease) bool { return !l.Deletion.Salvage },
	"intent: step":    func(l *record.Lease) bool { return l.Deletion.Step != "" },
	"owner":           func(l *record.Lease) bool { return l.UID == 7 },
	"generation":      func(l *record.Lease) bool { return l.NextGeneration == 2 },
	"workspace":       func(l *record.Lease) bool { return l.Workspace == "/ws/x" },
	"name in the trash": func(l *record.Lease) bool {
		return (l.Deletion.Trash == "x-2") == (l.Deletion.Step == stepTrash || l.Deletion.Step == stepPurge)
	},
	"plan entries": func(l *record.Lease) bool { // until the provider has confirmed, and then nothing is deleted before
		return len(l.Debts) == 1 && l.Debts[0].Provider == "process" && l.Debts[0].Handle != "" ||
			l.State != "vacant" || l.Event == "released" || l.Deletion.Step == stepTrash || l.Deletion.Step == stepPurge
	},
}

// kept are the facts that the tombstone has.
var kept = map[string]func(tomb *record.Tombstone) bool{
	"last generation": func(tomb *record.Tombstone) bool { return tomb.LastGeneration == 1 },
	"owner":           func(tomb *record.Tombstone) bool { return tomb.UID == 7 },
	"reason":          func(tomb *record.Tombstone) bool { return tomb.Reason == "explicit" },
	"by":              func(tomb *record.Tombstone) bool { return tomb.By == "somebody" },
	"when":            func(tomb *record.Tombstone) bool { return !tomb.Wall.IsZero() },
	"evidence":        func(tomb *record.Tombstone) bool { return len(tomb.Evidence) > 0 },
}

// A purge deletes files and nothing of what is known of the deletion, wherever
// the daemon is killed in it.
func TestPurgeKeeps(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		kill := w.boot("epoch")
		if _, err := w.start("x", "k"); err != nil {
			t.Fatal(err)
		}
		w.set(func() { w.busy = true })
		req := DeleteRequest{Caller: keyed("x", "d"), Discard: true}
		req.By = "somebody"
		if _, err := w.e.Delete(context.Background(), req); err != nil {
			t.Fatal(err)
		}
		w.await("x", time.Minute, func(v *View) bool {
			return v.Lease.Deletion.Step == stepRelease && v.Lease.Debts[0].Attempts > 0
		})
		kill()
		w.set(func() { w.busy = false })
		kill = w.boot("epoch")
		if _, gone := w.await("x", 10*time.Minute, func(*View) bool { return false }); !gone {
			t.Fatal("it is not deleted")
		}
		seen := w.deletionRecords(t, "x")
		if !slices.Equal(seen, []string{stepStop, stepRelease, stepTrash, stepPurge}) {
			t.Errorf("the steps on disk are %v", seen)
		}
		kill()
		kill = w.boot("epoch") // and the next daemon knows all of it
		tomb, ok := w.e.Snapshot().Tombstones.Get([]byte("x"))
		if !ok {
			t.Fatal("there is no tombstone")
		}
		for name, holds := range kept {
			if !holds(tomb) {
				t.Errorf("the tombstone's %s: %+v", name, tomb)
			}
		}
		if op := w.e.Operation(&req.Caller, opDelete); op == nil || !op.Done || len(op.Result) == 0 {
			t.Errorf("the operation that asked for it: %+v", op)
		}
		w.finish(kill)
	})
}

// deletionRecords checks what is retained in each lease record since the intent,
// and returns the steps that they show.
func (w *world) deletionRecords(t *testing.T, session string) (steps []string) {
	t.Helper()
	w.j.mu.Lock()
	defer w.j.mu.Unlock()
	for _, r := range w.j.records {
		if r.Session != session || record.Type(r.Type) != record.TypeLease {
			continue
		}
		l, err := record.DecodeLease(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		if l.Deletion == nil {
			if len(steps) > 0 {
				t.Errorf("record %d (%s) has no intent any more", r.Seq, l.Event)
			}
			continue
		}
		if step := l.Deletion.Step; len(steps) == 0 || steps[len(steps)-1] != step {
			steps = append(steps, step)
		}
		for name, holds := range retained {
			if !holds(&l) {
				t.Errorf("record %d (%s): %s: %+v %+v", r.Seq, l.Event, name, l.Deletion, l.Debts)
			}
		}
	}
	return steps
}
