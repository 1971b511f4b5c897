package spawn

import (
	"bufio"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/daemon/internal/sys"
	"golang.org/x/sys/unix"
)

func TestSignalledStatus(t *testing.T) {
	t.Parallel()
	w := watcher(t)
	p := parked(t, self(t, "wrap"))
	if err := errors.Join(w.Add(p.PidFD, 1), p.Release(t.Context(), []byte("kill"))); err != nil {
		t.Fatal(err)
	}
	if e := next(t, w); e.Status != (Status{Ending: Signalled, Signal: unix.SIGKILL}) {
		t.Fatalf("%+v", e)
	}
}

// case T28: an exit before anybody watched is reported all the same.
func TestExitBeforeAdd(t *testing.T) {
	t.Parallel()
	w := watcher(t)
	p := parked(t, Request{Path: "/bin/false"})
	if !ended(p.PidFD, 10*time.Second) {
		t.Fatal("it does not end")
	}
	if err := w.Add(p.PidFD, "k"); err != nil {
		t.Fatal(err)
	}
	if e := next(t, w); e.Key != "k" || e.Status != (Status{Ending: Exited, Code: 1}) {
		t.Fatalf("%+v", e)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	w := watcher(t)
	p := parked(t, self(t, "wrap"))
	if err := w.Add(p.PidFD, "k"); err != nil {
		t.Fatal(err)
	}
	if err := w.Add(p.PidFD, "k"); !errors.Is(err, ErrWatched) {
		t.Fatal(err)
	}
	if err := w.Add(-1, "bad"); !errors.Is(err, unix.EBADF) {
		t.Fatal(err)
	}
	w.Remove("unknown")
	if n := w.Len(); n != 1 {
		t.Fatalf("%d watched", n)
	}
	if err := p.Release(t.Context(), []byte("exit 0")); err != nil {
		t.Fatal(err)
	}
	if e := next(t, w); e.Key != "k" {
		t.Fatalf("%+v", e)
	}
	if err := w.Add(p.PidFD, "k"); err != nil { // the key is free again; the process is long reaped
		t.Fatal(err)
	}
	want := Status{}
	if sys.HasExitInfo() {
		want = Status{Ending: Exited, Code: 0}
	}
	if e := next(t, w); e.Key != "k" || e.Status != want {
		t.Fatalf("%+v", e)
	}
}

// case T25: a removed child is not reported, and is reaped.
func TestRemoveStillReaps(t *testing.T) {
	t.Parallel()
	w := watcher(t)
	p := parked(t, self(t, "wrap"))
	if err := w.Add(p.PidFD, "k"); err != nil {
		t.Fatal(err)
	}
	w.Remove("k")
	other := parked(t, self(t, "wrap"))
	if err := w.Add(other.PidFD, "k"); err != nil { // the key is free at once
		t.Fatal(err)
	}
	if err := p.Release(t.Context(), []byte("exit 3")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "reaped", func() bool {
		pr, _, err := sys.Observe(p.Identity)
		return pr == sys.Absent && err == nil
	})
	if err := other.Release(t.Context(), []byte("exit 4")); err != nil {
		t.Fatal(err)
	}
	if e := next(t, w); e.Status.Code != 4 {
		t.Fatalf("%+v", e)
	}
	eventually(t, "nothing watched", func() bool { return w.Len() == 0 })
}

// grandchild starts a process whose parent is another one, a shell that does as told.
func grandchild(t *testing.T, script string) (parent *exec.Cmd, child sys.Identity, pidfd int) {
	t.Helper()
	c := run(t, "sh", "-c", script)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL); _ = c.Wait() })
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
	fd, err := sys.OpenVerified(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return c, id, fd
}

// A wrapper that an earlier daemon started is not our child: its status comes from the kernel's memory,
// once its parent has reaped it, which may take a moment.
func TestStatusOfNonChild(t *testing.T) {
	t.Parallel()
	if !sys.HasExitInfo() {
		t.Skip("needs a kernel that keeps exit statuses: PIDFD_GET_INFO")
	}
	w := watcher(t)
	w.grace = time.Hour
	parent, id, fd := grandchild(t, "sleep 600 >/dev/null & echo $!; wait; read x")
	if err := errors.Join(w.Add(fd, 1), parent.Process.Signal(unix.SIGSTOP), sys.SignalVerified(id, unix.SIGUSR2)); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-w.Events():
		t.Fatalf("not reaped yet: %+v", e)
	case <-time.After(50 * time.Millisecond):
	}
	if err := parent.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if e := next(t, w); e.Status != (Status{Ending: Signalled, Signal: unix.SIGUSR2}) {
		t.Fatalf("%+v", e)
	}
}

// case T25: a zombie that its parent never reaps is reported, as unknown, after a short wait.
func TestZombieOfAnother(t *testing.T) {
	t.Parallel()
	w := watcher(t)
	parent, id, fd := grandchild(t, "sleep 600 >/dev/null & echo $!; exec sleep 600 >/dev/null")
	eventually(t, "a parent that never waits", func() bool { // a shell does, between two commands
		st, err := sys.ReadStat(parent.Process.Pid)
		return err == nil && st.Comm == "sleep"
	})
	if err := w.Add(fd, 1); err != nil {
		t.Fatal(err)
	}
	if err := sys.SignalVerified(id, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := next(t, w); e.Status != (Status{}) || e.Status.String() != "unknown" {
		t.Fatalf("%+v", e)
	}
	if p, st, err := sys.Observe(id); p != sys.Zombie || st.PPID != parent.Process.Pid || err != nil {
		t.Fatalf("%v %+v %v", p, st, err)
	}
	if n := w.Len(); n != 0 {
		t.Fatalf("%d watched", n)
	}
}

// A removed process of somebody else is forgotten at once.
func TestRemoveNonChild(t *testing.T) {
	t.Parallel()
	w := watcher(t)
	_, _, fd := grandchild(t, "sleep 600 >/dev/null & echo $!; exec sleep 600 >/dev/null")
	if err := w.Add(fd, 1); err != nil {
		t.Fatal(err)
	}
	w.Remove(1)
	if n := w.Len(); n != 0 {
		t.Fatalf("%d watched", n)
	}
}

// case T26: reaping takes no exit code from os/exec, and os/exec none from us.
func TestReapingStealsNothing(t *testing.T) {
	t.Parallel()
	w := watcher(t)
	const each = 60
	var wg sync.WaitGroup
	wg.Go(func() {
		for range each {
			if err := exec.Command("/bin/true").Run(); err != nil {
				t.Errorf("os/exec: %v", err)
			}
		}
	})
	wg.Go(func() {
		for i := range each {
			p, err := Start(t.Context(), Request{Path: "/bin/false"})
			if err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(w.Add(p.PidFD, i), p.Close()); err != nil {
				t.Error(err)
			}
		}
	})
	seen := map[any]bool{}
	for range each {
		e := next(t, w)
		if seen[e.Key] || e.Status != (Status{Ending: Exited, Code: 1}) {
			t.Errorf("%+v, seen before: %v", e, seen[e.Key])
		}
		seen[e.Key] = true
	}
	wg.Wait()
}

// Nobody receives: exits are still reaped, Add and Close still return.
func TestSlowReceiver(t *testing.T) {
	t.Parallel()
	w := watcher(t)
	var ids []sys.Identity
	for i := range 20 {
		p := parked(t, self(t, "wrap"))
		ids = append(ids, p.Identity)
		if err := errors.Join(w.Add(p.PidFD, i), p.Release(t.Context(), []byte("exit 0"))); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all reaped", func() bool {
		for _, id := range ids {
			if p, _, err := sys.Observe(id); p != sys.Absent || err != nil {
				return false
			}
		}
		return true
	})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	p := parked(t, self(t, "wrap"))
	if err := w.Add(p.PidFD, "late"); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	w.Remove("late")
	for range w.Events() { // closed
	}
}

func TestAbortBesideWatcher(t *testing.T) {
	t.Parallel()
	w := watcher(t)
	for i := range 20 {
		p := parked(t, self(t, "wrap"))
		if err := errors.Join(w.Add(p.PidFD, i), p.Abort()); err != nil {
			t.Fatal(err)
		}
		if e := next(t, w); e.Key != i || sys.HasExitInfo() && e.Status != (Status{Ending: Exited}) {
			t.Fatalf("%+v", e)
		}
	}
}

// Every operation at once, for the race detector and for keys that are never lost.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	w := watcher(t)
	const workers, each = 4, 15
	var wg sync.WaitGroup
	for g := range workers {
		wg.Go(func() {
			for i := range each {
				p, err := Start(t.Context(), Request{Path: "/bin/true"})
				if err != nil {
					t.Error(err)
					return
				}
				key := [2]int{g, i}
				if err := w.Add(p.PidFD, key); err != nil {
					t.Error(err)
				}
				if i%3 == 0 {
					w.Remove(key)
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	got := map[any]bool{}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	for done := false; !done; {
		select {
		case e := <-w.Events():
			if got[e.Key] {
				t.Errorf("%v twice", e.Key)
			}
			got[e.Key] = true
		case <-finished:
			done = t.Failed() || w.Len() == 0 && len(got) >= workers*each*2/3
			time.Sleep(time.Millisecond)
		case <-time.After(20 * time.Second):
			t.Fatalf("%d watched, %d reported", w.Len(), len(got))
		}
	}
}

func TestStatusString(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]Status{
		"unknown": {}, "exit code 0": {Ending: Exited}, "exit code 255": statusOf(0xff00), "signal killed": statusOf(9), "signal aborted": statusOf(6 | 0x80),
	} {
		if got := s.String(); got != want {
			t.Errorf("%+v: %q", s, got)
		}
	}
	if s := statusOf(6 | 0x80); !s.Core {
		t.Errorf("%+v", s)
	}
}
