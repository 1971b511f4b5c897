package spawn

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/daemon/internal/sys"
	"golang.org/x/sys/unix"
)

// case T58, T66: whatever is open here, and however it was opened, the wrapper has 0 to 3 alone.
func TestNothingIsInherited(t *testing.T) {
	t.Parallel()
	null, err := unix.Open(os.DevNull, unix.O_RDONLY, 0) // no O_CLOEXEC
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	high, err := unix.FcntlInt(uintptr(null), unix.F_DUPFD, 700)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(high)
	log := logFile(t)
	const script = `ls -l /proc/$$/fd; :` // the shell itself opens nothing for this
	p := parked(t, Request{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Log: log})
	w := watcher(t)
	if err := w.Add(p.PidFD, 1); err != nil {
		t.Fatal(err)
	}
	if e := next(t, w); e.Status != (Status{Ending: Exited}) {
		t.Fatalf("%+v", e)
	}
	got, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string // "total 0", then one a descriptor
	for line := range strings.Lines(string(got)) {
		f := strings.Fields(line)
		if n := len(f); n > 3 && f[n-2] == "->" {
			lines = append(lines, f[n-3]+" "+f[n-1])
		}
	}
	if len(lines) != 4 || lines[0] != "0 /dev/null" || lines[1] != "1 "+log.Name() ||
		lines[2] != "2 "+log.Name() || !strings.HasPrefix(lines[3], "3 pipe:") {
		t.Errorf("%q", lines)
	}
}

func TestWhatTheWrapperIsBornWith(t *testing.T) {
	t.Parallel()
	req := self(t, "status")
	req.Log = logFile(t)
	req.OOMScoreAdj = 300
	p := parkedWithBlockedSignals(t, req)
	if len(p.Warnings) != 0 {
		t.Errorf("%q", p.Warnings)
	}
	w := watcher(t)
	if err := w.Add(p.PidFD, 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its report", func() bool {
		b, err := os.ReadFile(req.Log.Name())
		return err == nil && bytes.Contains(b, []byte("Env:"))
	})
	b, err := os.ReadFile(req.Log.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nSigBlk:\t0000000000000000\n", "\nSid:\ttrue\n", "\nDir:\t/\n", "\nEnv:\t2\n"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q in %s", want, b)
		}
	}
	if score, err := os.ReadFile("/proc/" + strconv.Itoa(p.Identity.PID) + "/oom_score_adj"); string(score) != "300\n" || err != nil {
		t.Errorf("score %q, %v", score, err)
	}
	if err := p.Abort(); err != nil {
		t.Fatal(err)
	}
}

// parkedWithBlockedSignals starts from a thread whose mask blocks everything.
func parkedWithBlockedSignals(t *testing.T, req Request) *Parked {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, old, after unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		t.Fatal(err)
	}
	p := parked(t, req)
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &old, &after); err != nil {
		t.Fatal(err)
	}
	if after.Val[0]&(1<<(unix.SIGUSR1-1)) == 0 {
		t.Error("the caller's mask was not restored")
	}
	return p
}

// case T57: a score that may not be had is a warning.
func TestOOMScoreIsBestEffort(t *testing.T) {
	t.Parallel()
	req := self(t, "wrap")
	req.OOMScoreAdj = -1000
	p := parked(t, req)
	got, err := os.ReadFile("/proc/" + strconv.Itoa(p.Identity.PID) + "/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	if (string(got) == "-1000\n") == (len(p.Warnings) != 0) {
		t.Errorf("score %q, warnings %q", got, p.Warnings)
	}
}

func TestBornInItsLeaf(t *testing.T) {
	t.Parallel()
	l := leaf(t)
	dir, err := l.OpenWrap()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	req := self(t, "wrap")
	req.Cgroup, req.Log = dir, logFile(t)
	p := parked(t, req)
	if pids, err := l.Procs(); !slices.Equal(pids, []int{p.Identity.PID}) || err != nil {
		t.Fatalf("%v, %v", pids, err)
	}
	w := watcher(t)
	if err := errors.Join(w.Add(p.PidFD, 1), p.Release(t.Context(), []byte("cgroup"))); err != nil {
		t.Fatal(err)
	}
	next(t, w)
	if got, err := os.ReadFile(req.Log.Name()); !strings.Contains(string(got), "/berth-s-g1/wrap\n") || err != nil {
		t.Fatalf("%s, %v", got, err)
	}
}

// A leaf that was killed once kills what is cloned into it; the runtime calls that a success.
func TestKilledBeforeExec(t *testing.T) {
	t.Parallel()
	l := leaf(t)
	dir, err := l.OpenWrap()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := l.Kill(); err != nil {
		t.Fatal(err)
	}
	req := self(t, "wrap")
	req.Cgroup = dir
	for range 50 {
		p, err := Start(t.Context(), req)
		if err == nil {
			dead := ended(p.PidFD, 100*time.Millisecond)
			bury(t, p)
			if dead {
				t.Fatal("killed before exec, and taken for started")
			}
			t.Skip("this kernel forgets a cgroup.kill")
		}
		if !errors.Is(err, ErrKilledBeforeExec) {
			t.Fatal(err)
		}
	}
}

func TestStartErrorsLeaveNothing(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/nonexistent\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := leaf(t)
	dir, err := gone.OpenWrap()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := gone.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for want, req := range map[error]Request{
		fs.ErrNotExist:   {Path: "/nonexistent/berth-wrap"},
		fs.ErrPermission: {Path: text},
		ErrNoLeaf:        {Path: "/bin/true", Cgroup: dir},
		ErrNotFile:       {Path: "/bin/true", Log: w},
	} {
		if p, err := Start(t.Context(), req); !errors.Is(err, want) {
			t.Errorf("want %v: %v, %v", want, p, err)
		}
	}
	if _, err := Start(t.Context(), Request{Path: "/bin/true", Dir: "/nonexistent"}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// case T65: a program that is being written is waited for, for a while.
func TestTextBusy(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	req := self(t, "wrap")
	req.Path = filepath.Join(t.TempDir(), "wrap")
	f, err := os.OpenFile(req.Path, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	if p, err := Start(t.Context(), req); !errors.Is(err, unix.ETXTBSY) {
		t.Fatalf("%v, %v", p, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if p, err := Start(short, req); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, %v", p, err)
	}
	if p, err := Start(short, req); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, unix.ETXTBSY) {
		t.Fatalf("tried for an ended context: %v, %v", p, err)
	}
	time.AfterFunc(5*time.Millisecond, func() { f.Close() })
	parked(t, req)
}

// case T27: a wrapper does not die with the thread that started it.
func TestOutlivesItsThread(t *testing.T) {
	t.Parallel()
	var started []*Parked
	for range 8 {
		done := make(chan *Parked)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			p, err := Start(t.Context(), self(t, "wrap"))
			if err != nil {
				t.Error(err)
			}
			done <- p
		}()
		if p := <-done; p != nil {
			started = append(started, p)
			defer bury(t, p)
		}
	}
	for range 50 {
		for _, p := range started {
			if err := syscall.Kill(p.Identity.PID, 0); err != nil {
				t.Fatal(err)
			}
			if pr, _, err := sys.Observe(p.Identity); pr != sys.Alive || err != nil {
				t.Fatalf("%v, %v", pr, err)
			}
		}
		time.Sleep(time.Millisecond) // gives a death signal, which is asynchronous, its chance
	}
}
