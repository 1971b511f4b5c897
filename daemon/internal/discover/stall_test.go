package discover

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/daemon/internal/discover/discovertest"
)

func TestScanEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newScanner(t, Options{}).Scan(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// release lets a reader go that is blocked on a fifo.
func release(t *testing.T, fifo string) {
	t.Helper()
	if err := os.WriteFile(fifo, environ("A=1"), 0); err != nil {
		t.Fatal(err)
	}
}

// A read that blocks in the kernel costs its process a stall, the scan nothing else. A fifo stands for
// the process: opening it blocks.
func TestBlockedReadIsLeftBehind(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for pid := range 20 {
		fake(t, root, pid+1, "S", environ(ours("s"+strconv.Itoa(pid+1))...))
	}
	fifo := filepath.Join(root, "7", "environ")
	if err := os.Remove(fifo); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	s := newScanner(t, Options{Root: root, Stall: 100 * time.Millisecond})
	check := func(res Result) {
		t.Helper()
		if o, ok := opaque(res, 7); !ok || o.Reason != Stalled || o.UID != 1000 || o.StartTicks != 4711 || o.Cgroup != "/x" {
			t.Errorf("%+v", res.Opaque)
		}
		if len(res.Procs) != 19 || len(res.Opaque) != 1 || res.Scanned != 20 {
			t.Errorf("%d found of %d", len(res.Procs), res.Scanned)
		}
	}
	check(scan(t, s))
	check(scan(t, s))
	if n := s.anyStalled.Load(); n != 1 {
		t.Errorf("the second scan tried again while the first was blocked: %d readers are", n)
	}
	if _, err := s.Look(t.Context(), 7); !errors.Is(err, ErrOpaque) {
		t.Errorf("look: %v", err)
	}
	// When the kernel lets go, it is read again.
	release(t, fifo)
	discovertest.Eventually(t, "the reader that was left behind has ended", func() bool { return !s.isStalled(7) })
	if err := os.Remove(fifo); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(fifo, environ(ours("s7")...), 0o644); err != nil {
		t.Fatal(err)
	}
	if res := scan(t, s); len(res.Procs) != 20 || len(res.Opaque) != 0 {
		t.Errorf("afterwards %d found, opaque %+v", len(res.Procs), res.Opaque)
	}
}

// Even what should not block may: then nothing is known of the process but its pid.
func TestBlockedFacts(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for pid := range 20 {
		fake(t, root, pid+1, "S", environ(ours("s"+strconv.Itoa(pid+1))...))
	}
	files := []string{filepath.Join(root, "7", "environ"), filepath.Join(root, "7", "status")}
	for _, f := range files {
		if err := errors.Join(os.Remove(f), unix.Mkfifo(f, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	s := newScanner(t, Options{Root: root, Stall: 20 * time.Millisecond})
	res := scan(t, s)
	if o, ok := opaque(res, 7); !ok || o != (Opaque{PID: 7, UID: UnknownUID, Reason: Stalled}) || len(res.Procs) != 19 || res.Scanned != 20 {
		t.Errorf("%+v", res)
	}
	for _, f := range files {
		release(t, f)
	}
	discovertest.Eventually(t, "both readers have ended", func() bool { return !s.isStalled(7) })
}

func TestCancelOfABlockedScan(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	fake(t, root, 7, "S", nil)
	fifo := filepath.Join(root, "7", "environ")
	if err := errors.Join(os.Remove(fifo), unix.Mkfifo(fifo, 0o644)); err != nil {
		t.Fatal(err)
	}
	s := newScanner(t, Options{Root: root, Stall: time.Minute})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := s.Scan(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("scan: %v", err)
	}
	if _, err := s.Look(ctx, 7); err == nil {
		t.Error("look of a blocked process")
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	release(t, fifo)
	discovertest.Eventually(t, "the reader has ended", func() bool {
		f, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil { // the look's own reader, which on a slow machine comes after the scan's
			_, _ = f.Write(environ("A=1"))
			f.Close()
		}
		return !s.isStalled(7)
	})
}

func TestTooManyStalls(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for pid := range maxStalled + 1 {
		fake(t, root, pid+1, "S", nil)
		fifo := filepath.Join(root, strconv.Itoa(pid+1), "environ")
		if err := errors.Join(os.Remove(fifo), unix.Mkfifo(fifo, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	s := newScanner(t, Options{Root: root, Stall: 10 * time.Millisecond})
	if _, err := s.Scan(t.Context()); !errors.Is(err, ErrStalled) {
		t.Errorf("scan: %v", err)
	}
	if _, err := s.Look(t.Context(), 100); !errors.Is(err, ErrStalled) {
		t.Errorf("look: %v", err)
	}
	for pid := range maxStalled + 1 {
		fifo := filepath.Join(root, strconv.Itoa(pid+1), "environ")
		if s.isStalled(pid + 1) {
			release(t, fifo)
		}
	}
	discovertest.Eventually(t, "all readers have ended", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.stalled) == 0
	})
}
