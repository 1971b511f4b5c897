package spawn

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/daemon/internal/sys"
	"golang.org/x/sys/unix"
)

// TestMain makes this binary its own wrapper: with a role in the environment it is the started program.
func TestMain(m *testing.M) {
	if role := os.Getenv("SPAWN_TEST_ROLE"); role != "" {
		os.Exit(play(role))
	}
	os.Exit(m.Run())
}

// play is what a started program does: read the recipe as berth-wrap does, then whatever it says.
func play(role string) int {
	if role == "deaf" { // ignores the end of its pipe
		signal.Ignore(unix.SIGTERM)
		time.Sleep(time.Hour)
	}
	recipe, err := io.ReadAll(os.NewFile(3, "recipe"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	if len(recipe) == 0 {
		return 0
	}
	verb, arg, _ := strings.Cut(string(recipe), " ")
	switch verb {
	case "exit":
		code, _ := strconv.Atoi(arg)
		return code
	case "print":
		fmt.Print(arg)
		return 0
	case "kill":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "size":
		fmt.Print(len(recipe))
	case "sleep":
		time.Sleep(time.Hour)
	}
	return 0
}

// self is a request that starts this test binary in a role.
func self(t testing.TB, role string) Request {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Request{Path: exe, Args: []string{"wrap"}, Env: []string{"SPAWN_TEST_ROLE=" + role}}
}

func logFile(t testing.TB) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "wrap.log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// parked starts a wrapper that the end of the test aborts.
func parked(t testing.TB, req Request) *Parked {
	t.Helper()
	p, err := Start(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.PidFD < 0 {
			return
		}
		_ = unix.PidfdSendSignal(p.PidFD, unix.SIGKILL, nil, 0)
		if err := p.Abort(); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func watcher(t testing.TB) *Watcher {
	t.Helper()
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func next(t testing.TB, w *Watcher) Exit {
	t.Helper()
	select {
	case e := <-w.Events():
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("no exit within 20 s")
		return Exit{}
	}
}

func TestReleaseAndExit(t *testing.T) {
	t.Parallel()
	w := watcher(t)
	req := self(t, "wrap")
	req.Log = logFile(t)
	p := parked(t, req)
	if err := w.Add(p.PidFD, "s"); err != nil {
		t.Fatal(err)
	}
	if pr, _, err := sys.Observe(p.Identity); pr != sys.Alive || err != nil {
		t.Fatalf("parked: %v, %v", pr, err)
	}
	if err := p.Release(t.Context(), []byte("exit 7")); err != nil {
		t.Fatal(err)
	}
	if e := next(t, w); e.Key != "s" || e.Status != (Status{Ending: Exited, Code: 7}) {
		t.Fatalf("%+v", e)
	}
	if pr, _, err := sys.Observe(p.Identity); pr != sys.Absent || err != nil {
		t.Fatalf("not reaped: %v, %v", pr, err)
	}
}

func TestReleaseBigRecipe(t *testing.T) {
	t.Parallel()
	w := watcher(t)
	req := self(t, "wrap")
	req.Log = logFile(t)
	p := parked(t, req)
	if err := w.Add(p.PidFD, 1); err != nil {
		t.Fatal(err)
	}
	big := append([]byte("size "), bytes.Repeat([]byte("x"), 1<<20)...)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := p.Release(ctx, big); err != nil {
		t.Fatal(err)
	}
	next(t, w)
	if got, err := os.ReadFile(req.Log.Name()); string(got) != strconv.Itoa(len(big)) || err != nil {
		t.Fatalf("wrapper saw %q, %v", got, err)
	}
}

func TestAbortLeavesNothing(t *testing.T) {
	t.Parallel()
	req := self(t, "wrap")
	req.Log = logFile(t)
	p := parked(t, req)
	if err := p.Abort(); err != nil {
		t.Fatal(err)
	}
	if pr, _, err := sys.Observe(p.Identity); pr != sys.Absent || err != nil {
		t.Fatalf("%v, %v", pr, err)
	}
	if got, err := os.ReadFile(req.Log.Name()); len(got) != 0 || err != nil {
		t.Fatalf("it said %q, %v", got, err)
	}
}
