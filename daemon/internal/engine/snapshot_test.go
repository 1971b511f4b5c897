package engine

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// TestJournalStaysBounded works on a real journal with small files until it has
// been compacted several times, and compares what a restart replays with what
// was published before. The journal's size follows what is live, not what has
// happened.
func TestJournalStaysBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.calm, w.onDisk = true, true
		loaded := NewLoaded()
		j, recovery, err := journal.Open(dir, journal.Options{SegmentBytes: 64 << 10}, loaded.Replay)
		if err != nil {
			t.Fatal(err)
		}
		loaded.Recovered(recovery)
		kill := w.run("epoch", j, loaded)
		for i := range 400 {
			id := fmt.Sprintf("s%d", i)
			if _, err := w.start(id, "key-"+id); err != nil {
				t.Fatal(err)
			}
			if i%4 != 0 { // a quarter of them stays
				if err := errOf(w.e.Delete(context.Background(), DeleteRequest{Caller: Caller{Session: id, Any: true, By: "test"}})); err != nil {
					t.Fatal(err)
				}
				if _, gone, err := w.e.Await(context.Background(), id, func(*View) bool { return false }); !gone || err != nil {
					t.Fatal(err)
				}
			}
		}
		synctest.Wait() // a snapshot under way ends
		before, stats := w.e.Snapshot(), j.Stats()
		kill()
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		if stats.Snapshots < 2 {
			t.Errorf("%d snapshots for %d bytes of records", stats.Snapshots, stats.Bytes)
		}

		again := NewLoaded()
		j, recovery, err = journal.Open(dir, journal.Options{SegmentBytes: 64 << 10}, again.Replay)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		again.Recovered(recovery)
		if len(recovery.Damages) > 0 || recovery.Ambiguous {
			t.Errorf("recovery found %+v", recovery)
		}
		if recovery.SnapshotSeq == 0 || uint64(recovery.Records) >= recovery.LastSeq {
			t.Errorf("a restart replays %d records of %d", recovery.Records, recovery.LastSeq)
		}
		compare(t, before, again)
		w.mu.Lock()
		w.live = map[WrapperKey]*fake{}
		w.mu.Unlock()
		time.Sleep(time.Minute)
	})
}

// compare compares a published state with what was replayed.
func compare(t *testing.T, before *Snapshot, l *Loaded) {
	t.Helper()
	if before.Sessions.Len() != len(l.sessions) || before.Tombstones.Len() != len(l.tombs) || before.operations.Len() != len(l.ops) {
		t.Errorf("published %d sessions, %d tombstones, %d operations; replayed %d, %d, %d", before.Sessions.Len(),
			before.Tombstones.Len(), before.operations.Len(), len(l.sessions), len(l.tombs), len(l.ops))
	}
	each(before.Sessions, func(v *View) {
		s := l.sessions[v.Lease.Session]
		switch {
		case s == nil:
			t.Errorf("session %q is lost", v.Lease.Session)
		case s.state != v.State || !reflect.DeepEqual(*s.spec, *v.Spec):
			t.Errorf("session %q: %+v was published, %+v replayed", v.Lease.Session, v.State, s.state)
		case s.lease.Wrapper.TokenHash != v.Lease.Wrapper.TokenHash:
			t.Errorf("session %q has lost its token", v.Lease.Session)
		}
	})
	each(before.Tombstones, func(tomb *record.Tombstone) {
		if got := l.tombs[tomb.Session]; got == nil || got.LastGeneration != tomb.LastGeneration {
			t.Errorf("tombstone of %q: %+v, replayed %+v", tomb.Session, tomb, got)
		}
	})
	each(before.operations, func(op *record.Operation) {
		if got := l.ops[opKey{op.UID, op.Kind, op.Key}]; got == nil || !got.Done || string(got.Result) != string(op.Result) {
			t.Errorf("operation %q: %+v, replayed %+v", op.Key, op, got)
		}
	})
}

func each[V any](tree *iradix.Tree[V], f func(V)) {
	tree.Root().Walk(func(_ []byte, v V) bool {
		f(v)
		return false
	})
}
