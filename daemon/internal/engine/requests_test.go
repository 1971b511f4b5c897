package engine

import (
	"context"
	"errors"
	"testing"
	"time"
)

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
			err := errOf(w.e.Delete(context.Background(), DeleteRequest{Caller: Caller{Session: "x", Any: true}, Discard: discard}))
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
