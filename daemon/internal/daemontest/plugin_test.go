package daemontest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// readBound is how fast reads answer whatever hangs.
const readBound = 50 * time.Millisecond

// quickReads makes every kind of read many times and checks the median of each:
// the machine may be busy with other things for a moment.
func (h *Host) quickReads(t *testing.T, session string) {
	t.Helper()
	ctx := bounded(t)
	for name, read := range map[string]func() error{
		"list":      func() error { _, err := h.Client.List(ctx); return err },
		"get":       func() error { _, err := h.Client.Get(ctx, session); return err },
		"status":    func() error { _, err := h.Client.Status(ctx); return err },
		"providers": func() error { _, err := h.Client.Providers(ctx); return err },
		"capacity":  func() error { _, err := h.Client.Capacity(ctx); return err },
		"events": func() error {
			for _, err := range h.Client.Events(ctx, rpc.EventsQuery{Session: session}) {
				if err != nil {
					return err
				}
			}
			return nil
		},
	} {
		var took []time.Duration
		for range 21 {
			began := time.Now()
			if err := read(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		if median := took[len(took)/2]; median > readBound {
			t.Errorf("%s took %s (median of %v)", name, median, took)
		}
	}
}

// TestReadsNeverWait: with a provider that hangs, a start that hangs in it, a
// stop that takes its time and a session whose wrapper is stopped, every read
// answers at once, and sessions that need nothing of these go on.
// case T40, A16, C11, T48
func TestReadsNeverWait(t *testing.T) {
	t.Parallel()
	h := New(t, Options{Config: quickStops + Sessions() + "grace = \"5s\"\n"})
	h.Start()
	plugin := h.pluginOf(t)
	bystander := h.mustStart(t, "bystander", shell("while read line; do echo got $line; done"))
	h.mustStart(t, "stopping", shell(stubborn))
	silent := h.mustStart(t, "silent", shell("exec sleep 1000"))
	h.halt(t, hold(t, silent.PID))
	h.halt(t, plugin)
	done := h.beginStart(t, "starting")
	if _, err := h.Client.Stop(bounded(t), "stopping", rpc.StopRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"starting", "stopping", "silent", "bystander"} {
		h.quickReads(t, id)
	}
	if s := h.mustGet(t, "starting"); s.State != "starting" {
		t.Errorf("the start does not hang: %+v", s)
	}
	h.untilAdopted(t, bystander)
	if _, err := h.Client.Send(bounded(t), "bystander", rpc.SendRequest{Data: []byte("x\n")}); err != nil {
		t.Error(err)
	}
	h.untilOutput(t, "bystander", "got x\n")
	h.mustStop(t, "bystander") // what the provider has to release is a debt, not the truth
	plugin.signal(t, unix.SIGCONT)
	if err := <-done; err != nil {
		t.Errorf("the start that had to wait: %v", err)
	}
	hold(t, silent.PID).signal(t, unix.SIGCONT)
}

// TestReadsChangeNothing: right after a restart, with a provider that does not
// answer and a wrapper that is stopped, no read writes, repairs or forgets
// anything, and what cannot be reached is not called gone. case A10, A9
func TestReadsChangeNothing(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	silent := h.mustStart(t, "silent", shell("exec sleep 1000"))
	live := h.mustStart(t, "live", shell("exec sleep 1000"))
	h.mustStart(t, "ended", shell("echo x; exit 3"))
	h.untilVacant(t, "ended")
	h.halt(t, hold(t, silent.PID))
	h.Kill()
	h.Start()
	h.untilAdopted(t, live)
	h.until(t, "silent", "is unknown", func(s rpc.Session) bool { return s.Adoption == "unknown" })
	h.halt(t, h.pluginOf(t))
	h.Until("what was owed is settled", patience, func() error {
		if e := h.eventsOf(t, "ended"); e[len(e)-1].Kind != "released" {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	before, files := h.status(t), tree(t, h.State+"/sessions")
	for range 5 {
		for _, id := range []string{"silent", "live", "ended", "never"} {
			h.readAll(t, id)
		}
	}
	after := h.status(t)
	if after.Journal.LastSeq != before.Journal.LastSeq {
		t.Errorf("the journal has grown from %d to %d", before.Journal.LastSeq, after.Journal.LastSeq)
	}
	sameTree(t, files, tree(t, h.State+"/sessions"))
	if s := h.mustGet(t, "silent"); s.State != "active" || s.PID != silent.PID || s.Adoption != "unknown" {
		t.Errorf("the silent one is %+v", s)
	}
	if _, e := h.kindsOf(t, "silent"); e.Verdict == "absent" {
		t.Errorf("explain says %+v", e)
	}
	hold(t, silent.PID).signal(t, unix.SIGCONT)
	h.untilAdopted(t, silent)
}

// readAll makes every kind of read, also of what is not there.
func (h *Host) readAll(t *testing.T, id string) {
	t.Helper()
	ctx := bounded(t)
	c := h.Client
	for name, read := range map[string]func() error{
		"list":      func() error { _, err := c.List(ctx); return err },
		"get":       func() error { _, err := c.Get(ctx, id); return err },
		"explain":   func() error { _, err := c.Explain(ctx, id); return err },
		"scan":      func() error { _, err := c.Scan(ctx); return err },
		"capacity":  func() error { _, err := c.Capacity(ctx); return err },
		"providers": func() error { _, err := c.Providers(ctx); return err },
		"status":    func() error { _, err := c.Status(ctx); return err },
		"version":   func() error { _, err := c.Version(ctx); return err },
		"openapi":   func() error { _, err := c.OpenAPI(ctx); return err },
		"logs": func() error {
			for _, err := range c.Logs(ctx, id, rpc.LogsQuery{}) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"events": func() error {
			for _, err := range c.Events(ctx, rpc.EventsQuery{Session: id}) {
				if err != nil {
					return err
				}
			}
			return nil
		},
	} {
		if err := read(); err != nil && rpc.CodeOf(err) != rpc.CodeNotFound {
			t.Errorf("%s of %s: %v", name, id, err)
		}
	}
}

// TestProviderKilled: running sessions do not notice; a start is delayed or
// refused with the reason, and works when the provider is back. case A16, T44
func TestProviderKilled(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	started := h.mustStart(t, "s", shell("while read line; do echo got $line; done"))
	old := h.pluginOf(t)
	old.signal(t, unix.SIGKILL)
	h.untilDead(t, old)
	var told bool
	h.Until("a start works again", patience, func() error {
		_, err := h.Client.Start(bounded(t), "next", rpc.StartRequest{Spec: shell("exec sleep 1000")})
		if err != nil {
			e := refused(t, err, rpc.CodeProvider, rpc.CodeCleanupPending)
			if !e.Retryable || e.Code == rpc.CodeProvider && e.Details["reason"] == nil {
				t.Errorf("%+v", e)
			}
			told = true
		}
		return err
	})
	t.Logf("a start was refused meanwhile: %v", told)
	if now := h.pluginOf(t); now.pid == old.pid {
		t.Error("the provider is the same process")
	}
	h.untilAdopted(t, started)
	if _, err := h.Client.Send(bounded(t), "s", rpc.SendRequest{Data: []byte("x\n")}); err != nil {
		t.Error(err)
	}
	h.untilOutput(t, "s", "got x\n")
}

// TestProviderStopped: a provider that does not answer is found out, ended and
// started again; the start that hung in it fails with the reason, and works
// afterwards. case A16, T38
func TestProviderStopped(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	started := h.mustStart(t, "s", shell("exec sleep 1000"))
	old := h.pluginOf(t)
	h.halt(t, old)
	done := h.beginStart(t, "next")
	e := refused(t, <-done, rpc.CodeProvider)
	if !e.Retryable || e.Details["reason"] == nil {
		t.Errorf("%+v", e)
	}
	h.untilDead(t, old)
	h.untilVacant(t, "next")
	h.Until("the same start works", patience, func() error {
		_, err := h.Client.Start(bounded(t), "next", rpc.StartRequest{Key: "start next", Spec: shell("exec sleep 1000")})
		return err
	})
	h.untilAdopted(t, started)
}

// TestProviderNeverDoubled: the daemon is killed, with a provider that is well
// and with one that is stopped and so cannot notice; the next daemon has one
// provider. case A17, A18
func TestProviderNeverDoubled(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	for i := range 4 {
		old := h.pluginOf(t)
		if i%2 == 1 {
			h.halt(t, old)
		}
		h.Kill()
		h.Start()
		h.pluginOf(t)
		h.untilDead(t, old)
		procs, err := h.Marked() // there are no sessions
		if err != nil || len(procs) != 1 {
			t.Errorf("round %d: providers %v, %v", i, procs, err)
		}
	}
}

// TestShutdownWithStoppedProvider: the daemon ends in its budget. case T38
func TestShutdownWithStoppedProvider(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	plugin := h.pluginOf(t)
	h.halt(t, plugin)
	done := h.beginStart(t, "s")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended, began := make(chan struct{}), time.Now()
	go func() { // ends with the daemon
		defer close(ended)
		h.Stop()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		t.Fatal("the daemon does not end")
	}
	t.Logf("the daemon ended in %s", time.Since(began).Round(time.Millisecond))
	if err := <-done; err == nil {
		t.Error("the start has succeeded without its provider")
	}
	h.untilDead(t, plugin)
	h.Start()
	s := h.untilVacant(t, "s")
	if s.NextGeneration != 2 || s.Exit == nil || s.Exit.Kind != "unknown" {
		t.Errorf("%s", fmt.Sprintf("%+v, exit %+v", s, s.Exit))
	}
}
