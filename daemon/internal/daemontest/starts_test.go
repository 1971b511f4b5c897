package daemontest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/client"
)

// TestOneWrapper: 50 starts of one id at one time, over five clients, make one
// wrapper of one generation and have one answer, with a key and without, also
// while the daemon still replays its journal. case T11, B2, B1, T08
func TestOneWrapper(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	sampler := h.sample(t)
	for _, id := range []string{"keyed", "plain", "replaying"} {
		if id == "replaying" {
			h.Kill()
			h.StartAsync()
		}
		req := rpc.StartRequest{Spec: shell("sleep 1000")}
		if id == "keyed" {
			req.Key = "the one start"
		}
		replies := h.storm(t, 50, 5, id, req)
		for _, r := range replies {
			if r != replies[0] || r.PID == 0 || r.Generation != 1 {
				t.Errorf("%s: answered %+v and %+v", id, replies[0], r)
			}
		}
		s := h.until(t, id, "is active", func(s rpc.Session) bool { return s.State == "active" })
		if s.NextGeneration != 2 || s.PID != replies[0].PID {
			t.Errorf("%s is %+v after %+v", id, s, replies[0])
		}
	}
	// The same again finds the one; another specification is told what differs.
	for _, id := range []string{"keyed", "plain"} {
		before := h.mustGet(t, id)
		again, err := h.Client.Start(bounded(t), id, rpc.StartRequest{Spec: shell("sleep 1000")})
		if err != nil || again.PID != before.PID || again.Generation != 1 {
			t.Errorf("%s again: %+v, %v", id, again, err)
		}
		_, err = h.Client.Start(bounded(t), id, rpc.StartRequest{Spec: shell("sleep 1001")})
		if e := refused(t, err, rpc.CodeSpecConflict); e.Details["difference"] == nil {
			t.Errorf("%s: the conflict does not show the difference: %+v", id, e)
		}
	}
	sampler()
}

// storm sends n equal starts over several clients at once; each is repeated
// while the daemon cannot be reached.
func (h *Host) storm(t *testing.T, n, clients int, id string, req rpc.StartRequest) []rpc.StartReply {
	t.Helper()
	ctx := bounded(t)
	replies := make([]rpc.StartReply, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for c := range clients {
		own := client.New(h.Run + "/berth.sock")
		defer own.Close()
		for i := c; i < n; i += clients {
			wg.Go(func() {
				for {
					var gone *client.UnreachableError
					replies[i], errs[i] = own.Start(ctx, id, req)
					if !errors.As(errs[i], &gone) || ctx.Err() != nil {
						return
					}
				}
			})
		}
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%v\n%s", err, h.Log())
	}
	return replies
}

// sample watches the invariants where there are leaves to see them in; the
// function that it returns reports what was seen.
func (h *Host) sample(t *testing.T) func() {
	t.Helper()
	if h.CgroupBase() == "" {
		return func() {}
	}
	s := h.Sample()
	return func() {
		t.Helper()
		samples, faults := s.Stop()
		for _, f := range faults {
			t.Error(f)
		}
		if samples == 0 {
			t.Error("nothing was sampled")
		}
	}
}

// TestReconnects: 100 clients that come, start the same session, look at it and
// go leave one wrapper with one child. case B3
func TestReconnects(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	first := h.mustStart(t, "s", shell("exec sleep 1000"))
	for i := range 100 {
		c := client.New(h.Run + "/berth.sock")
		r, err := c.Start(bounded(t), "s", rpc.StartRequest{Key: fmt.Sprint(i % 7), Spec: shell("exec sleep 1000")})
		if err != nil || r != first {
			t.Fatalf("start %d: %+v, %v; the first was %+v", i, r, err, first)
		}
		c.Close()
	}
	procs, err := h.Marked()
	if err != nil {
		t.Fatal(err)
	}
	if want := 3; len(procs) != want { // wrapper, agent, plugin
		t.Errorf("%d processes %v carry the host's marker, want %d", len(procs), procs, want)
	}
}

// TestKeys: a key belongs to one request; another one under it is refused and
// changes nothing. case "a duplicate key with another body"
func TestKeys(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	first, err := h.Client.Start(bounded(t), "a", rpc.StartRequest{Key: "k", Spec: shell("sleep 1000")})
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Client.Start(bounded(t), "b", rpc.StartRequest{Key: "k", Spec: shell("sleep 1000")})
	refused(t, err, rpc.CodeOperationConflict)
	_, err = h.Client.Get(bounded(t), "b")
	refused(t, err, rpc.CodeNotFound)
	_, err = h.Client.Start(bounded(t), "a", rpc.StartRequest{Key: "k", Spec: shell("sleep 1001")})
	refused(t, err, rpc.CodeOperationConflict)
	h.Kill()
	h.Start()
	h.untilAdopted(t, first)
	_, err = h.Client.Start(bounded(t), "b", rpc.StartRequest{Key: "k", Spec: shell("sleep 1000")})
	if e := refused(t, err, rpc.CodeOperationConflict); fmt.Sprint(e.Details["conflicts"]) != "3" {
		t.Errorf("the row counts %v conflicts, want 3", e.Details["conflicts"])
	}
	// A completed row answers again, also when the session has ended since.
	h.mustStop(t, "a")
	again, err := h.Client.Start(bounded(t), "a", rpc.StartRequest{Key: "k", Spec: shell("sleep 1000")})
	if err != nil || again != first {
		t.Errorf("the completed operation answers %+v, %v; it was %+v", again, err, first)
	}
	if s := h.mustGet(t, "a"); s.State != "vacant" || s.NextGeneration != 2 {
		t.Errorf("a replayed answer has started something: %+v", s)
	}
}
