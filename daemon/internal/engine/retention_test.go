package engine

import (
	"context"
	"testing"
	"time"

	"github.com/berthd/berth/statefs/record"
)

// A session is deleted when it has been without activity for as long as it is
// kept, counted over restarts of the daemon and of the host by the time during
// which the host ran; one that runs, or is kept for ever, is not.
func TestRetention(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		kill := w.boot("boot:1")
		start := func(id string, keep time.Duration) {
			s := spec(id)
			s.Retention = keep
			_, err := w.e.Start(context.Background(), StartRequest{Caller: keyed(id, "start "+id), Spec: s, Room: room, StateRoom: room, OwnerUID: 7})
			if err != nil {
				t.Fatal(err)
			}
		}
		start("runs", time.Hour)
		start("kept", -1)
		start("old", time.Hour)
		for _, id := range []string{"kept", "old"} {
			if err := w.stop(id); err != nil {
				t.Fatal(err)
			}
			w.await(id, time.Minute, func(v *View) bool { return v.State.Vacant() && len(v.Lease.Debts) == 0 })
		}
		time.Sleep(40 * time.Minute)
		kill()
		kill = w.boot("boot:1")
		if _, ok := w.e.View("old"); !ok {
			t.Fatal("it was deleted early")
		}
		if _, gone := w.await("old", 30*time.Minute, func(*View) bool { return false }); !gone {
			t.Error("it is not deleted after an hour")
		}
		tomb, _ := w.e.Snapshot().Tombstones.Get([]byte("old"))
		if tomb == nil || tomb.Reason != "retention_expired" || tomb.By != "berthd" || tomb.Age < time.Hour {
			t.Errorf("the tombstone: %+v", tomb)
		}
		for _, id := range []string{"runs", "kept"} {
			if v, ok := w.e.View(id); !ok || v.Lease.Deletion != nil {
				t.Errorf("%s is deleted", id)
			}
		}
		w.finish(kill)
	})
}

// The host's age goes on from what is on disk: with the time in between in the
// same boot, without it in another, and never back.
func TestAge(t *testing.T) {
	now := 10 * time.Hour
	e := &Engine{opts: Options{Epoch: "boot:1", Now: func() time.Duration { return now }}}
	for _, c := range []struct {
		host record.Host
		want time.Duration
	}{
		{record.Host{}, 0},
		{record.Host{Epoch: "boot:1", Age: 100 * time.Hour, AgeAt: 7 * time.Hour}, 103 * time.Hour},
		{record.Host{Epoch: "other:1", Age: 100 * time.Hour, AgeAt: 7 * time.Hour}, 100 * time.Hour},
		{record.Host{Epoch: "boot:1", Age: 100 * time.Hour, AgeAt: 70 * time.Hour}, 100 * time.Hour},
	} {
		e.continueAge(&c.host)
		if got := e.age(now); got != c.want {
			t.Errorf("%+v: %s, want %s", c.host, got, c.want)
		}
	}
}
