package spawn

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/daemon/internal/sys"
	"golang.org/x/sys/unix"
)

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
	if id, err := sys.IdentityOfPidfd(p.PidFD); id != p.Identity || err != nil {
		t.Fatalf("parked as %v, is %v, %v", p.Identity, id, err)
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

// A wrapper that does not read holds Release up for as long as its caller wants, and no longer.
func TestReleaseIsBounded(t *testing.T) {
	t.Parallel()
	p := parked(t, self(t, "deaf"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := p.Release(ctx, bytes.Repeat([]byte("x"), 1<<20)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestReleaseOfTheDead(t *testing.T) {
	t.Parallel()
	p := parked(t, self(t, "deaf"))
	if err := p.Release(t.Context(), nil); err == nil {
		t.Fatal("an empty recipe was taken")
	}
	if err := errors.Join(sys.SignalVerified(p.Identity, unix.SIGKILL), p.Abort()); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(t.Context(), []byte("exit 0")); err == nil {
		t.Fatal("released after the end")
	}
}

func TestAbortLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"wrap", "deaf"} {
		req := self(t, role)
		req.Log = logFile(t)
		p := parked(t, req)
		if err := errors.Join(p.Abort(), p.Abort()); err != nil {
			t.Fatal(err)
		}
		if pr, _, err := sys.Observe(p.Identity); pr != sys.Absent || err != nil {
			t.Fatalf("%v, %v", pr, err)
		}
		if got, err := os.ReadFile(req.Log.Name()); len(got) != 0 || err != nil {
			t.Fatalf("it said %q, %v", got, err)
		}
	}
}

// case T07, A14: a daemon that is killed between the clone and the go leaves no wrapper.
func TestParkedWrapperLeavesWithTheDaemon(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := run(t, exe)
	d.Env = []string{roleEnv + "=daemon"}
	out, err := d.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	id, err := sys.IdentityOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = d.Wait()
	eventually(t, "the wrapper leaves", func() bool {
		p, _, err := sys.Observe(id)
		return err == nil && p != sys.Alive
	})
}
