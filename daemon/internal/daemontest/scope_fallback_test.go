package daemontest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/cgroupfs"
	"github.com/berthd/berth/systemd/scope"
	"golang.org/x/sys/unix"
)

// line is what is between the daemon and PID 1 in these tests: a socket in the
// place of PID 1's, which passes on what is said, both ways, unless it is cut.
type line struct {
	listener net.Listener
	real     *os.File // PID 1's socket, which has no path meanwhile
	open     chan struct{}
	mended   atomic.Pointer[chan struct{}] // closed = it passes on
	running  sync.WaitGroup
}

// tap puts a line there until the test ends.
func tap(t *testing.T) *line {
	t.Helper()
	fd, err := unix.Open(scope.Socket, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "private")
	l := &line{real: os.NewFile(uintptr(fd), scope.Socket), open: make(chan struct{})}
	if l.listener, err = net.Listen("unix", path); err != nil {
		t.Fatal(err)
	}
	l.mend()
	l.running.Go(l.accept) // ends with the listener
	if err := unix.Mount(path, scope.Socket, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(scope.Socket, 0); err != nil {
			t.Error(err)
		}
		close(l.open)
		l.listener.Close()
		l.running.Wait()
		l.real.Close()
	})
	return l
}

// cut makes PID 1 silent for all who are connected or will be.
func (l *line) cut() {
	wait := make(chan struct{})
	l.mended.Store(&wait)
}

// mend undoes cut; what was said meanwhile arrives now.
func (l *line) mend() {
	passes := make(chan struct{})
	close(passes)
	if old := l.mended.Swap(&passes); old != nil {
		select {
		case <-*old:
		default:
			close(*old)
		}
	}
}

func (l *line) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d", l.real.Fd()))
		if err != nil {
			near.Close()
			continue
		}
		l.running.Go(func() { l.pass(near, far) })
		l.running.Go(func() { l.pass(far, near) })
	}
}

// pass copies one way until either end closes, or the test ends.
func (l *line) pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	stop := make(chan struct{})
	defer close(stop)
	l.running.Go(func() { // ends with this function or the test
		select {
		case <-l.open:
			from.Close()
		case <-stop:
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-*l.mended.Load():
		case <-l.open:
			return
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// absent takes PID 1's socket away; the function that it returns brings it back.
func absent(t *testing.T) (undo func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "private")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	if err := unix.Mount(path, scope.Socket, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	undo = sync.OnceFunc(func() {
		if err := unix.Unmount(scope.Socket, 0); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(undo)
	return undo
}

// inSubtree checks that a session is in a plain leaf.
func (h *Host) inSubtree(t *testing.T, s rpc.StartReply) {
	t.Helper()
	at := cgroupOf(t, s.AgentPID)
	if want := filepath.Join("/", filepath.Base(h.CgroupBase()), cgroupfs.LeafName(s.Session, s.Generation), "work"); at != want {
		t.Errorf("the agent is in %s, not in %s", at, want)
	}
}

// TestScopeFallback: with a PID 1 that does not answer, or is not there, when
// the daemon starts, sessions run in plain leaves, and it is said; when it
// answers, those that run keep theirs and new ones get scopes.
func TestScopeFallback(t *testing.T) {
	for name, take := range map[string]func(*testing.T) func(){
		"silent": func(t *testing.T) func() {
			l := tap(t)
			l.cut()
			return l.mend
		},
		"absent": absent,
	} {
		t.Run(name, func(t *testing.T) {
			h := scoped(t, "auto")
			h.Stop()
			undo := take(t)
			h.Start()
			if kind, reason := h.leaves(t); kind != "subtree" || reason == "" {
				t.Errorf("leaves are %s: %s", kind, reason)
			}
			if code, out := h.ctl(t, "status"); code != 0 || !strings.Contains(out, "subtree: ") {
				t.Errorf("berthctl status: %d\n%s", code, out)
			}
			plain := h.mustStart(t, "plain", shell("exec sleep 1000"))
			h.inSubtree(t, plain)
			if n := strings.Count(h.Log(), "sessions get plain leaves instead of scopes"); n != 1 {
				t.Errorf("the log says it %d times:\n%s", n, h.Log())
			}
			undo()
			h.untilScopes(t)
			inScope := h.mustStart(t, "scope", shell("exec sleep 1000"))
			h.inScope(t, inScope)
			h.inSubtree(t, plain)
			h.Kill() // a new daemon finds both kinds
			h.Start()
			h.untilAdopted(t, plain)
			h.untilAdopted(t, inScope)
			h.mustStop(t, "plain")
			h.mustStop(t, "scope")
			h.inScope(t, h.mustStart(t, "plain", shell("exec sleep 1000")))
		})
	}
}

// TestScopeLost: PID 1 stops answering while the daemon runs. The start that
// finds out takes its time, and nothing else: the leaf is a fence without a
// scope. Sessions end and are deleted without PID 1's help.
func TestScopeLost(t *testing.T) {
	h := scoped(t, "auto")
	h.Stop()
	l := tap(t)
	h.Start()
	before := h.mustStart(t, "before", shell("exec sleep 1000"))
	h.inScope(t, before)
	l.cut()
	s := h.mustStart(t, "s", shell("exec sleep 1000"))
	if at := cgroupOf(t, s.AgentPID); at != "/berth.slice/"+cgroupfs.ScopeName("s", 1)+"/work" {
		t.Errorf("the agent is in %s", at)
	}
	if kind, reason := h.leaves(t); kind != "subtree" || !strings.Contains(reason, "does not answer") {
		t.Errorf("leaves are %s: %s", kind, reason)
	}
	started := time.Now()
	h.inSubtree(t, h.mustStart(t, "next", shell("exec sleep 1000")))
	if took := time.Since(started); took > 4*time.Second {
		t.Errorf("the next start took %s: it has waited for PID 1", took)
	}
	for _, id := range []string{"before", "s", "next"} {
		h.mustStop(t, id)
		h.mustDelete(t, id)
	}
	l.mend()
	h.untilScopes(t)
	h.inScope(t, h.mustStart(t, "after", shell("exec sleep 1000")))
}

// TestScopeOnly: where the configuration insists on scopes nothing is started
// without one.
func TestScopeOnly(t *testing.T) {
	h := scoped(t, "scope")
	h.Stop()
	undo := absent(t)
	h.Start()
	_, err := h.Client.Start(bounded(t), "s", rpc.StartRequest{Spec: shell("exec sleep 1000")})
	if e := refused(t, err, rpc.CodeDegraded); !e.Retryable {
		t.Errorf("the refusal is final: %v", e)
	}
	status, err := h.Client.Status(bounded(t))
	if err != nil || status.State != "degraded" || len(status.Problems) == 0 {
		t.Errorf("status is %+v, %v", status, err)
	}
	undo()
	h.untilScopes(t)
	h.inScope(t, h.mustStart(t, "s", shell("exec sleep 1000")))
}

// TestScopeKept: a daemon that is told to make no more scopes keeps those that
// there are, and one that is told to make some keeps plain leaves.
func TestScopeKept(t *testing.T) {
	h := scoped(t, "auto")
	one := h.mustStart(t, "one", shell("exec sleep 1000"))
	h.inScope(t, one)
	h.Kill()
	h.reconfigure(t, `leaves = "auto"`, `leaves = "subtree"`)
	h.Start()
	h.untilAdopted(t, one)
	two := h.mustStart(t, "two", shell("exec sleep 1000"))
	h.inSubtree(t, two)
	h.Kill()
	h.reconfigure(t, `leaves = "subtree"`, `leaves = "auto"`)
	h.Start()
	h.untilAdopted(t, one)
	h.untilAdopted(t, two)
	h.mustStop(t, "one")
	h.mustStop(t, "two")
	h.inScope(t, h.mustStart(t, "two", shell("exec sleep 1000")))
}

// reconfigure changes a line of the configuration.
func (h *Host) reconfigure(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(h.config)
	if err != nil || !strings.Contains(string(data), from) {
		t.Fatalf("the configuration has no %s: %v", from, err)
	}
	if err := os.WriteFile(h.config, []byte(strings.Replace(string(data), from, to, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestScopeOfAnother: the slice has one owner. A second daemon, and one that
// has lost its state, leave the sessions in it alone.
func TestScopeOfAnother(t *testing.T) {
	h := scoped(t, "auto")
	s := h.mustStart(t, "s", shell("exec sleep 1000"))
	h.inScope(t, s)
	other := New(t, Options{Leaves: "auto", Config: quickTables()})
	other.Start()
	if kind, reason := other.leaves(t); kind != "subtree" || !strings.Contains(reason, "another daemon") {
		t.Errorf("beside another daemon leaves are %s: %s", kind, reason)
	}
	other.inSubtree(t, other.mustStart(t, "s", shell("exec sleep 1000")))
	h.Stop()
	other.Stop()
	other.Start()
	if kind, reason := other.leaves(t); kind != "subtree" || !strings.Contains(reason, h.ID()) {
		t.Errorf("with another's sessions in the slice leaves are %s: %s", kind, reason)
	}
	other.mustStop(t, "s")
	h.Start()
	h.untilAdopted(t, s)
	h.mustStop(t, "s")
}

// TestScopeOrphan: a scope whose directory went before systemd saw it empty is
// not shown as running for ever.
func TestScopeOrphan(t *testing.T) {
	h := scoped(t, "auto")
	orphaned := false
	for range 20 { // systemd may be quicker
		s := h.mustStart(t, "s", shell("exec sleep 1000"))
		unit := h.inScope(t, s)
		h.Kill()
		orphan(t, filepath.Join(h.Slice(), unit))
		time.Sleep(100 * time.Millisecond) // what systemd is to notice it has by then; if not, the next line says so
		orphaned = property(t, unit, "ActiveState") == "active"
		h.Start()
		h.untilVacant(t, "s")
		if orphaned {
			break
		}
	}
	if !orphaned {
		t.Skip("systemd has seen the end of each of 20 scopes")
	}
	h.Until("the orphan is gone", patience, func() error {
		if units := loaded(t); units != "" {
			return fmt.Errorf("units are %s", units)
		}
		return nil
	})
}

// orphan kills what is in a leaf and removes it at once.
func orphan(t *testing.T, dir string) {
	t.Helper()
	if err := os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; {
		var err error
		for _, d := range []string{dir + "/wrap", dir + "/work", dir} {
			if err = unix.Rmdir(d); errors.Is(err, unix.ENOENT) {
				err = nil
			}
		}
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
