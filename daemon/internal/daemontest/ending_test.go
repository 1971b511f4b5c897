package daemontest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// TestDaemonDiesInStop: the daemon, and the wrapper, are killed between a stop
// and its end; the next daemon ends it, by the same request. case T32, C4, C12
func TestDaemonDiesInStop(t *testing.T) {
	t.Parallel()
	h := New(t, Options{Config: quickStops + Sessions() + "grace = \"2s\"\n"})
	h.Start()
	begun := time.Now()
	var all []process
	for i := range 4 {
		id := fmt.Sprintf("s%d", i)
		s := h.mustStart(t, id, shell(stubborn))
		all = append(all, hold(t, s.PID), hold(t, s.AgentPID))
		if _, err := h.Client.Stop(bounded(t), id, rpc.StopRequest{Key: "stop " + id, Why: "the test says so"}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		h.Kill()
		h.Start()
	}
	h.Kill()
	for i := 0; i < len(all)/2; i += 2 { // the wrappers of half of them
		if all[i].alive() {
			all[i].signal(t, unix.SIGKILL)
		}
	}
	h.Start()
	for i := range 4 {
		id := fmt.Sprintf("s%d", i)
		s := h.untilVacant(t, id)
		if s.Exit.Reason != "operator" || s.Exit.Generation != 1 || s.NextGeneration != 2 {
			t.Errorf("%s: %+v, exit %+v", id, s, s.Exit)
		}
		if _, err := h.Client.Stop(bounded(t), id, rpc.StopRequest{Key: "stop " + id, Why: "the test says so"}); err != nil {
			t.Errorf("the same stop again: %v", err)
		}
	}
	for _, p := range all {
		if p.alive() {
			t.Errorf("process %d is left", p.pid)
		}
	}
	t.Logf("took %s", time.Since(begun))
}

// TestStopTwice: a stop of what is being stopped, or has been, is no error, and
// there is one exit. case C12, T32
func TestStopTwice(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	h.mustStart(t, "s", shell(stubborn))
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if r, err := h.Client.Stop(bounded(t), "s", rpc.StopRequest{Wait: true}); err != nil || r.Session.State != "vacant" {
				t.Errorf("%+v, %v", r.Session, err)
			}
		})
	}
	wg.Wait()
	before := h.mustGet(t, "s")
	h.mustStop(t, "s")
	after := h.mustGet(t, "s")
	if before.Exit == nil || after.Exit == nil || *before.Exit != *after.Exit || after.NextGeneration != 2 {
		t.Errorf("before %+v, after %+v", before.Exit, after.Exit)
	}
	_, err := h.Client.Stop(bounded(t), "nobody", rpc.StopRequest{})
	refused(t, err, rpc.CodeNotFound)
}

// pluginOf is the host's one provider process.
func (h *Host) pluginOf(t *testing.T) process {
	t.Helper()
	var pid int
	h.Until("the provider is ready", patience, func() error {
		r, err := h.Client.Providers(bounded(t))
		if err == nil && (len(r.Providers) != 1 || r.Providers[0].PID == 0) {
			err = fmt.Errorf("%+v", r)
		}
		if err == nil {
			pid = r.Providers[0].PID
		}
		return err
	})
	return hold(t, pid)
}

// beginStart asks for a start that hangs in the provider, which is stopped, and
// returns the channel on which its end comes.
func (h *Host) beginStart(t *testing.T, id string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { // ends with the start
		_, err := h.Client.Start(t.Context(), id, rpc.StartRequest{Key: "start " + id, Spec: shell("exec sleep 1000")})
		done <- err
	}()
	h.until(t, id, "is starting", func(s rpc.Session) bool { return s.State == "starting" })
	return done
}

// TestDeleteInEveryState: a delete is accepted whatever the session is doing,
// and finishes; from then on nothing starts it. case C1, B7, B8, T03, B5
func TestDeleteInEveryState(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	states := h.everyState(t)
	for id, bring := range states {
		bring(id)
		if tomb := h.mustDelete(t, id); tomb.Reason != "explicit" {
			t.Errorf("%s: tombstone %+v", id, tomb)
		}
	}
	for _, restarted := range []bool{false, true} {
		if restarted {
			h.Kill()
			h.Start()
		}
		for id := range states {
			_, err := h.Client.Start(bounded(t), id, rpc.StartRequest{Spec: shell("exec sleep 1000")})
			refused(t, err, rpc.CodeSessionDeleted)
			_, err = h.Client.Get(bounded(t), id)
			refused(t, err, rpc.CodeSessionDeleted)
			if _, err := os.Stat(h.State + "/workspaces/" + id); !os.IsNotExist(err) {
				t.Errorf("%s: its workspace: %v", id, err)
			}
		}
	}
}

// everyState returns, by the name of a state, what brings a session there and
// then asks for its deletion.
func (h *Host) everyState(t *testing.T) map[string]func(id string) {
	return map[string]func(id string){
		"starting": func(id string) {
			plugin := h.pluginOf(t)
			h.halt(t, plugin)
			defer plugin.signal(t, unix.SIGCONT)
			done := h.beginStart(t, id)
			h.deleteNow(t, id)
			refused(t, <-done, rpc.CodeStartFailed, rpc.CodeDeleting, rpc.CodeSessionDeleted)
		},
		"active": func(id string) {
			h.mustStart(t, id, shell(stubborn))
			h.deleteNow(t, id)
		},
		"stopping": func(id string) {
			h.mustStart(t, id, shell(stubborn))
			if _, err := h.Client.Stop(bounded(t), id, rpc.StopRequest{}); err != nil {
				t.Fatal(err)
			}
			h.deleteNow(t, id)
		},
		"vacant": func(id string) {
			h.mustStart(t, id, shell("exit 0"))
			h.untilVacant(t, id)
			h.deleteNow(t, id)
		},
		"never_started": func(id string) {
			_, err := h.Client.Start(bounded(t), id, rpc.StartRequest{Spec: &rpc.SessionSpec{Command: []string{"/no/such/program"}}})
			refused(t, err, rpc.CodeStartFailed)
			h.deleteNow(t, id)
		},
		"deleting": func(id string) {
			h.mustStart(t, id, shell(stubborn))
			h.deleteNow(t, id)
			if _, err := h.Client.Delete(bounded(t), id, rpc.DeleteRequest{Discard: true}); err != nil {
				refused(t, err, rpc.CodeSessionDeleted)
			}
		},
		"quarantined": func(id string) {
			h.mustStart(t, id, shell("exit 0"))
			h.untilVacant(t, id)
			h.Kill()
			h.doctor(t, id, func(l *leaseRecord) { l.State = "a state of the future" })
			h.Start()
			h.deleteNow(t, id)
		},
	}
}

// deleteNow asks for a deletion and checks that the session is fenced from the
// moment of the answer.
func (h *Host) deleteNow(t *testing.T, id string) {
	t.Helper()
	if _, err := h.Client.Delete(bounded(t), id, rpc.DeleteRequest{Discard: true, Key: "delete " + id}); err != nil {
		t.Fatalf("deleting %s: %v", id, err)
	}
	gone := []rpc.Code{rpc.CodeDeleting, rpc.CodeSessionDeleted}
	_, err := h.Client.Start(bounded(t), id, rpc.StartRequest{Spec: shell("exec sleep 1000")})
	refused(t, err, gone...)
	_, err = h.Client.Stop(bounded(t), id, rpc.StopRequest{})
	refused(t, err, gone...)
	_, err = h.Client.Get(bounded(t), id)
	refused(t, err, gone...)
	if _, err := h.Client.Explain(bounded(t), id); err != nil {
		t.Errorf("explaining %s: %v", id, err)
	}
}

// TestDeleteDuringStarts: starts and deletions of the same ids at one time, and
// the daemon is killed in between: no acknowledged deletion is lost, and no
// start that was under way brings a session back. case B7, A7, T51
func TestDeleteDuringStarts(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	sampler := h.sample(t)
	const n = 10
	deleted := make([]bool, n)
	for round := range 3 {
		var wg sync.WaitGroup
		for i := range n {
			id := fmt.Sprintf("s%d", i)
			wg.Go(func() { _, _ = h.Client.Start(t.Context(), id, rpc.StartRequest{Spec: shell(stubborn)}) }) // as it comes
			if i%3 != round {
				continue
			}
			wg.Go(func() {
				_, err := h.Client.Delete(t.Context(), id, rpc.DeleteRequest{Discard: true, Key: id})
				deleted[i] = deleted[i] || err == nil
			})
		}
		if round == 1 {
			h.Until("some are starting", patience, func() error {
				s, err := h.Client.Status(bounded(t))
				if err == nil && s.Sessions["starting"]+s.Sessions["active"] == 0 {
					err = errors.New("none is")
				}
				return err
			})
			h.Kill()
		}
		wg.Wait()
		if round == 1 {
			h.Start()
		}
		for i := range n {
			if !deleted[i] {
				continue
			}
			_, err := h.Client.Start(bounded(t), fmt.Sprintf("s%d", i), rpc.StartRequest{Spec: shell(stubborn)})
			refused(t, err, rpc.CodeDeleting, rpc.CodeSessionDeleted)
		}
	}
	for i := range n {
		if deleted[i] {
			h.mustDelete(t, fmt.Sprintf("s%d", i))
		}
	}
	sampler()
}

// TestStopDuringStart: a stop of a session that is starting ends the start, who
// waits for it is told, and what was under way is gone. case C1, T08, T09
func TestStopDuringStart(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	plugin := h.pluginOf(t)
	h.halt(t, plugin)
	done := h.beginStart(t, "s")
	if _, err := h.Client.Stop(bounded(t), "s", rpc.StopRequest{}); err != nil {
		t.Fatal(err)
	}
	if e := refused(t, <-done, rpc.CodeStartFailed); !e.Retryable {
		t.Errorf("%+v", e)
	}
	h.untilVacant(t, "s")
	plugin.signal(t, unix.SIGCONT)
	// The refusal was retryable, so the key is free and the start works now.
	var again rpc.StartReply
	h.Until("the same start again", patience, func() (err error) {
		again, err = h.Client.Start(bounded(t), "s", rpc.StartRequest{Key: "start s", Spec: shell("exec sleep 1000")})
		return err
	})
	if again.Generation != 2 {
		t.Errorf("%+v", again)
	}
	if s := h.mustGet(t, "s"); s.Exit == nil || s.Exit.Kind != "unknown" || s.Exit.Generation != 1 {
		t.Errorf("what never ran has ended as %+v", s.Exit)
	}
}
