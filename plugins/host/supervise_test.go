package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/plugins/sandbox"
)

// kill ends the plugin of kind, by the pid that the host reports.
func kill(t *testing.T, h *Host, sig unix.Signal) int {
	t.Helper()
	pid := h.Status()[0].PID
	if pid == 0 {
		t.Fatalf("no plugin runs: %+v", h.Status())
	}
	if err := unix.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
	if sig == unix.SIGSTOP { // takes effect a little later
		eventually(t, "it has stopped", func() error {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err == nil && !strings.Contains(string(b), "State:\tT") {
				err = errors.New("it runs")
			}
			return err
		})
	}
	return pid
}

func TestKilledPluginComesBack(t *testing.T) {
	t.Parallel()
	h := start(t, options(t, "serve"))
	p := provider(t, h, "test")
	for n := range 5 {
		old := kill(t, h, unix.SIGKILL)
		eventually(t, "it runs again", func() error {
			if s := h.Status()[0]; s.State != Ready || s.PID == old || s.Restarts != n+1 {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		if s := h.Status()[0]; !strings.Contains(s.LastError, "killed") {
			t.Errorf("last error %q", s.LastError)
		}
		if _, err := p.Prepare(t.Context(), ask("ok")); err != nil {
			t.Errorf("after a crash: %v", err)
		}
	}
}

// A plugin that dies in any call fails that call, with a reason that says what
// is known, and no other.
func TestCrashInEveryCall(t *testing.T) {
	t.Parallel()
	h := start(t, options(t, "serve"))
	p := provider(t, h, "test")
	calls := map[string]func() error{
		"prepare": func() error { _, err := p.Prepare(t.Context(), ask("crash")); return err },
		"panic":   func() error { _, err := p.Prepare(t.Context(), ask("panic")); return err },
		"observe": func() error { _, err := p.Observe(t.Context(), "crash"); return err },
		"release": func() error { _, err := p.Release(t.Context(), "crash"); return err },
	}
	want := map[string]sandbox.Reason{
		"prepare": sandbox.CreationUnsettled, "panic": sandbox.CreationUnsettled,
		"observe": sandbox.RuntimeNotRunning, "release": sandbox.RuntimeNotRunning,
	}
	for name, crash := range calls {
		provider(t, h, "test")
		before := h.Status()[0].Restarts
		err := crash()
		if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Reason != want[name] || !e.Retryable {
			t.Errorf("%s: got %#v, want %s", name, err, want[name])
		}
		eventually(t, "it runs again", func() error {
			if s := h.Status()[0]; s.State != Ready || s.Restarts != before+1 {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		if name == "panic" && !strings.Contains(h.Status()[0].LastError, "panic: deliberate") {
			t.Errorf("the panic is not told: %q", h.Status()[0].LastError)
		}
	}
}

func TestCircuit(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "broken")
	write(t, broken, "", 0o600)
	o := options(t, "exit-while "+broken)
	o.Bounds.Circuit, o.Bounds.BackoffMax = 3, 300*time.Millisecond
	h := start(t, o)
	eventually(t, "the circuit opens", func() error {
		if s := h.Status()[0]; s.State != CircuitOpen || s.Restarts < 2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	_, err := h.Provider(t.Context(), "test")
	if err == nil || !strings.Contains(err.Error(), "circuit_open") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("refusal: %v", err)
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	provider(t, h, "test")
	// It has not proven itself yet: one more failure opens the circuit again.
	kill(t, h, unix.SIGKILL)
	eventually(t, "the circuit is open again", func() error {
		if s := h.Status()[0]; s.State != CircuitOpen {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	provider(t, h, "test")
}

func TestStableRunForgetsCrashes(t *testing.T) {
	t.Parallel()
	o := options(t, "serve")
	o.Bounds.Circuit, o.Bounds.Stable = 2, time.Nanosecond
	h := start(t, o)
	for range 4 {
		provider(t, h, "test")
		kill(t, h, unix.SIGKILL)
		eventually(t, "the crash is noticed", func() error {
			switch s := h.Status()[0]; {
			case s.State == CircuitOpen:
				t.Fatal("the circuit opened")
			case s.PID != 0:
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
	}
}

// A stopped plugin is a silent one: calls end by their bound, the supervisor
// notices and starts another.
func TestStoppedPluginIsReplaced(t *testing.T) {
	t.Parallel()
	o := options(t, "serve")
	o.Bounds.Observe, o.Bounds.Describe = 2*time.Second, time.Second
	h := start(t, o)
	p := provider(t, h, "test")
	old := kill(t, h, unix.SIGSTOP)
	began := time.Now()
	_, err := p.Observe(t.Context(), "h")
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Reason != sandbox.InfrastructureFailed || time.Since(began) > 10*time.Second {
		t.Errorf("a call to a stopped plugin: %v after %s", err, time.Since(began))
	}
	eventually(t, "it is replaced", func() error {
		if s := h.Status()[0]; s.State != Ready || s.PID == old {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if s := h.Status()[0]; !strings.Contains(s.LastError, "does not answer") || alive(old) {
		t.Errorf("status %+v, old one alive: %t", s, alive(old))
	}
	if _, err := p.Observe(t.Context(), "h"); err != nil {
		t.Errorf("after the replacement: %v", err)
	}
}

// One hung plugin, and one hung kind of call, hold up nobody else.
func TestHungCallsHoldUpNobody(t *testing.T) {
	t.Parallel()
	o := options(t, "serve", "serve")
	o.Bounds.Prepares = 2
	h := start(t, o)
	p, other := provider(t, h, "test"), provider(t, h, "test1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var hung sync.WaitGroup
	for _, what := range []string{"hang", "deaf"} {
		hung.Go(func() {
			_, err := p.Prepare(ctx, ask(what))
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v, want a cancelled call", what, err)
			}
			if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Reason != sandbox.CreationUnsettled {
				t.Errorf("%s: got %v, want creation_unsettled", what, err)
			}
		})
	}
	eventually(t, "both slots are taken", func() error {
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := p.Prepare(short, ask("ok"))
		if err == nil || !strings.Contains(err.Error(), "busy with 2 other calls") || !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	if _, err := p.Observe(t.Context(), "h"); err != nil {
		t.Errorf("observe beside hung prepares: %v", err)
	}
	if _, err := p.Release(t.Context(), "h"); err != nil {
		t.Errorf("release beside hung prepares: %v", err)
	}
	if _, err := other.Prepare(t.Context(), ask("ok")); err != nil {
		t.Errorf("prepare on the other provider: %v", err)
	}
	cancel()
	hung.Wait()
	eventually(t, "the plugin has seen the cancellation", func() error {
		o, err := p.Observe(t.Context(), "h")
		if err == nil && o.Detail != "1" {
			err = fmt.Errorf("%s cancelled", o.Detail)
		}
		return err
	})
	if s := h.Status()[0]; s.Restarts != 0 {
		t.Errorf("hung calls cost a restart: %+v", s)
	}
}

func TestCallsEndByTheirBound(t *testing.T) {
	t.Parallel()
	o := options(t, "serve")
	o.Bounds.Prepare, o.Bounds.Observe, o.Bounds.Release = 30*time.Millisecond, 30*time.Millisecond, 30*time.Millisecond
	p := provider(t, start(t, o), "test")
	_, err := p.Prepare(t.Context(), ask("deaf"))
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Reason != sandbox.CreationUnsettled || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("prepare: %v", err)
	}
	if _, err := p.Observe(t.Context(), "deaf"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("observe: %v", err)
	}
	if _, err := p.Release(t.Context(), "deaf"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("release: %v", err)
	}
}

// case T38: closing is bounded whatever the plugin does.
func TestClose(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode string
		trap func(*testing.T, *Host) func() // brings the plugin into a state; the result waits for what it began
	}{
		"idle":       {"serve", nil},
		"stopped":    {"serve", func(t *testing.T, h *Host) func() { kill(t, h, unix.SIGSTOP); return nil }},
		"deaf call":  {"serve", deafCall},
		"stubborn":   {"stubborn", nil},
		"descendant": {"descendant", nil},
		"mute":       {"mute", nil},
		"garbage":    {"garbage", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(t, c.mode)
			o.Bounds.Grace = 300 * time.Millisecond
			h, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			h.Start(context.Background())
			if c.mode != "mute" && c.mode != "garbage" {
				provider(t, h, "test")
			}
			pid := h.Status()[0].PID
			var wait func()
			if c.trap != nil {
				wait = c.trap(t, h)
			}
			closeWithin(t, h, pid, 20*time.Second)
			if wait != nil {
				wait()
			}
		})
	}
}

// deafCall begins a call that does not notice its cancellation.
func deafCall(t *testing.T, h *Host) func() {
	p := provider(t, h, "test")
	var call sync.WaitGroup
	call.Go(func() {
		_, err := p.Prepare(context.Background(), ask("deaf"))
		if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Reason != sandbox.CreationUnsettled || errors.Is(err, context.Canceled) {
			t.Errorf("call during Close: %v", err)
		}
	})
	eventually(t, "the call is under way", func() error {
		if len(h.supervisors[0].slots[prepare]) == 0 {
			return errors.New("no slot taken")
		}
		return nil
	})
	return call.Wait
}

func closeWithin(t *testing.T, h *Host, pid int, bound time.Duration) {
	t.Helper()
	began := time.Now()
	stop(t, h)
	if took := time.Since(began); took > bound {
		t.Errorf("closing took %s", took)
	}
	if pid != 0 && alive(pid) {
		t.Errorf("plugin %d lives", pid)
	}
	if s := h.Status()[0]; s.State != Stopped || s.PID != 0 {
		t.Errorf("status: %+v", s)
	}
	if e := refused(t, h, "test"); !strings.Contains(e.Message, "has been stopped") {
		t.Errorf("after Close: %#v", e)
	}
	stop(t, h) // again is harmless
}

func TestCloseWithoutTime(t *testing.T) {
	t.Parallel()
	o := options(t, "stubborn")
	o.Bounds.Grace = time.Hour
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	h.Start(context.Background())
	provider(t, h, "test")
	pid := h.Status()[0].PID
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Close(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), `"test"`) {
		t.Errorf("got %v", err)
	}
	eventually(t, "it is gone all the same", func() error {
		if alive(pid) {
			return errors.New("alive")
		}
		return nil
	})
	stop(t, h) // waits for the rest
}
