package evidence

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/daemon/internal/discover/discovertest"
	"github.com/berthd/berth/daemon/internal/sys"
)

// A process that has nothing to do with the session locks its file.
func TestLockOfAStranger(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("locked", 1)
	l := p.start(discovertest.Role{Args: []string{"ofd", p.s.LockPath}, Env: []string{"PATH=/bin"}}, "")
	want(t, "quick does not look for holders", p.quick(), Unknown, "lock: present")
	r := p.full()
	want(t, "full", r, Absent, "populated 0")
	if w := witness(r, Lock); !w.Stranger || w.Answer != Present || !slices.Equal(pids(r.Forged), []int{l.PID}) {
		t.Errorf("lock %+v, forged %v", w, pids(r.Forged))
	}
	weak := p.s
	weak.Weak = true
	want(t, "without a leaf it may be ours", h.Full(t.Context(), weak), Unknown, "lock: present")
	weak.Since = sys.Now() + time.Second
	want(t, "unless it is older", h.Full(t.Context(), weak), Absent, "no leaf; markers: ")
	weak.Since, weak.OwnerUID, weak.DaemonUID = 0, nobody-1, nobody-2
	want(t, "or of another uid", h.Full(t.Context(), weak), Absent, "no leaf; markers: ")
	l.Stop()
	want(t, "afterwards", p.quick(), Absent, "populated 0")
}

// The same lock in the hands of one who carries the marker outside of the leaf is no stranger's.
func TestLockOfAnEscaped(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("escaped", 1)
	w := p.start(discovertest.Role{Args: []string{"ofd", p.s.LockPath}, Env: p.env()}, "")
	r := p.full()
	want(t, "escaped wrapper", r, Unknown, "lock: present")
	if !r.Alive || !slices.Equal(pids(r.Escaped), []int{w.PID}) || len(r.Forged) != 0 {
		t.Errorf("%+v", r)
	}
	// Even as the recorded wrapper it is no exact match: its leaf does not hold it.
	p.record(w.PID)
	p.agent("hold")
	r = p.full()
	want(t, "wrapper outside, agent inside", r, Unknown, "")
	if w := witness(r, Pidfd); w.Answer != Unknown || !strings.Contains(w.Detail, "outside of its leaf") {
		t.Errorf("pidfd: %+v", w)
	}
}

// A live wrapper whose lock somebody else holds.
func TestWrapperWithoutItsLock(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("robbed", 1)
	w := p.start(discovertest.Role{Args: []string{"hold"}, Env: p.env()}, "wrap")
	p.record(w.PID)
	want(t, "no lock", p.full(), Unknown, "leaf: present")
	l := p.start(discovertest.Role{Args: []string{"ofd", p.s.LockPath}, Env: []string{"PATH=/bin"}}, "")
	r := p.full()
	want(t, "a stranger's lock", r, Unknown, "leaf: present")
	if !witness(r, Lock).Stranger || !slices.Equal(pids(r.Forged), []int{l.PID}) {
		t.Errorf("%+v", r)
	}
}

// case T73: a missing directory is not an absence unless it is missing from where it was.
func TestLockFileThatIsMissing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("missing", 1)
	if err := os.Remove(p.s.LockPath); err != nil {
		t.Fatal(err)
	}
	want(t, "no file", p.quick(), Absent, "")
	if err := os.RemoveAll(filepath.Dir(p.s.LockPath)); err != nil {
		t.Fatal(err)
	}
	want(t, "no directory", p.quick(), Absent, "")
	outside := p.s
	outside.LockPath = "/nonexistent/lock"
	want(t, "somewhere else", h.Quick(t.Context(), outside), Unknown, "lock: unknown")
	outside.LockPath = p.h.stateDir + "/../lock"
	want(t, "above", h.Quick(t.Context(), outside), Unknown, "lock: unknown")
	if err := os.MkdirAll(filepath.Dir(p.s.LockPath), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("elsewhere", p.s.LockPath); err != nil {
		t.Fatal(err)
	}
	want(t, "a link", p.quick(), Unknown, "lock: unknown")
	if err := os.Remove(p.s.LockPath); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(p.s.LockPath, 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, "a fifo", p.quick(), Unknown, "not a regular file")
	if err := os.RemoveAll(h.stateDir); err != nil {
		t.Fatal(err)
	}
	want(t, "no state directory", p.quick(), Unknown, "was removed")
}
