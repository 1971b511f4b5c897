package sandboxtest

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/plugins/host"
)

// Plugin runs c's program behind a host for as long as the test lasts, and
// returns it as a Subject without a Request. change, when not nil, adjusts the host's
// options first.
func Plugin(t *testing.T, c host.Config, change func(*host.Options)) Subject {
	t.Helper()
	h := Host(t, c, change)
	p, err := h.Provider(t.Context(), c.Kind)
	if err != nil {
		t.Fatal(err)
	}
	return Subject{Provider: p, Crash: func(t *testing.T) { crash(t, h) }}
}

// Host runs c's program behind a host for as long as the test lasts.
func Host(t testing.TB, c host.Config, change func(*host.Options)) *host.Host {
	t.Helper()
	// Not t.TempDir: its path is too long for a socket.
	dir, err := os.MkdirTemp("", "st")
	if err != nil {
		t.Fatal(err)
	}
	o := host.Options{
		Providers: []host.Config{c}, SocketDir: dir, HostID: "sandboxtest",
		Bounds: host.Bounds{
			Start: patience, Describe: patience / 2,
			BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond, Circuit: 1000,
		},
	}
	if change != nil {
		change(&o)
	}
	h, err := host.New(o)
	if err != nil {
		t.Fatal(err)
	}
	h.Start(context.Background())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			t.Errorf("closing the host: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return h
}

// crash kills the plugin's process, once it runs.
func crash(t *testing.T, h *host.Host) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		s := h.Status()[0]
		if s.State != host.Ready {
			continue
		}
		if err := unix.Kill(s.PID, unix.SIGKILL); err != nil && err != unix.ESRCH {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("the plugin does not run: %+v", h.Status())
}
