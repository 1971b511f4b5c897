package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
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
	return errOf(w.e.Stop(context.Background(), StopRequest{Caller: Caller{Session: session, Any: true}}))
}

func (w *world) remove(session string) error {
	return errOf(w.e.Delete(context.Background(), DeleteRequest{Caller: Caller{Session: session, Any: true}, Discard: true}))
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
