package scope

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/statefs/cgroupfs"
	"github.com/berthd/berth/systemd/systemdtest"
)

// testSlice is not the daemon's.
const testSlice = "scopetest.slice"

// manager1 is PID 1 of a box.
func manager1(t *testing.T) (*Manager, *cgroupfs.Tree) {
	t.Helper()
	systemdtest.Inside(t)
	m := New(Socket)
	t.Cleanup(m.Close)
	slice, err := m.StartSlice(t.Context(), testSlice)
	if err != nil {
		t.Fatal(err)
	}
	dir, procPath, ok := cgroupfs.ManagedSlice(testSlice)
	if !ok || slice.ControlGroup != procPath || slice.Version < 200 {
		t.Fatalf("the slice is %+v, and %q", slice, procPath)
	}
	tree, err := cgroupfs.OpenSlice(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return m, tree
}

// parked is a process in the cgroup of a scope that is not made yet.
func parked(t *testing.T, tree *cgroupfs.Tree, name string) (*cgroupfs.Leaf, *exec.Cmd) {
	t.Helper()
	leaf, err := tree.Make(name)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := leaf.OpenEntry()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	c := exec.Command("sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
		leaf.AwaitRemoval(t.Context())
	})
	return leaf, c
}

func unit(leaf *cgroupfs.Leaf, c *exec.Cmd) Unit {
	return Unit{
		Name: leaf.Name(), Slice: testSlice, Description: "a test", PID: c.Process.Pid,
		StopTimeout: 3 * time.Second, Tasks: 100, MemoryBytes: 1 << 30, CPUPercent: 150,
	}
}

func show(t *testing.T, name string, properties ...string) string {
	t.Helper()
	var out []byte
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) { // the poll's period
		var err error
		if out, err = exec.Command("systemctl", "show", name, "-p", strings.Join(properties, ",")).Output(); err == nil {
			break
		}
		if time.Now().After(end) { // until then PID 1 may be executing itself anew
			t.Fatal(err)
		}
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

// TestAdopt: the scope is made around the process, which stays where it is, and
// has what was asked for.
func TestAdopt(t *testing.T) {
	m, tree := manager1(t)
	leaf, c := parked(t, tree, cgroupfs.ScopeName("adopt", 1))
	if err := m.Adopt(t.Context(), unit(leaf, c)); err != nil {
		t.Fatal(err)
	}
	if at, err := tree.PathOf(c.Process.Pid); at != leaf.Path() || err != nil {
		t.Errorf("the process is in %q, %v", at, err)
	}
	if managed, err := leaf.Managed(); !managed || err != nil {
		t.Errorf("the leaf is not managed: %v", err)
	}
	got := show(t, leaf.Name(), "ActiveState", "CPUQuotaPerSecUSec", "CollectMode", "Delegate", "Description", "MemoryMax", "Slice", "TasksMax", "TimeoutStopUSec")
	want := "ActiveState=active CPUQuotaPerSecUSec=1.500000s CollectMode=inactive-or-failed Delegate=yes Description=a test " +
		"MemoryMax=1073741824 Slice=" + testSlice + " TasksMax=100 TimeoutStopUSec=3s"
	if got != want {
		t.Errorf("the scope is\n%s\nnot\n%s", got, want)
	}
	if err := leaf.Settle(c.Process.Pid); err != nil {
		t.Error(err)
	}
}

// TestAdoptRefused: what systemd refuses is told from silence.
func TestAdoptRefused(t *testing.T) {
	m, tree := manager1(t)
	leaf, c := parked(t, tree, cgroupfs.ScopeName("refused", 1))
	for what, change := range map[string]func(*Unit){
		"no such process": func(u *Unit) { u.PID = 1 << 22 },
		"a bad name":      func(u *Unit) { u.Name = "no good.scope" },
		"a bad slice":     func(u *Unit) { u.Slice = "no good" },
		"a service":       func(u *Unit) { u.Name = "scopetest-refused.service" },
	} {
		u := unit(leaf, c)
		change(&u)
		if err := m.Adopt(t.Context(), u); !errors.Is(err, ErrRefused) || errors.Is(err, ErrSilent) {
			t.Errorf("%s: %v", what, err)
		}
	}
	u := unit(leaf, c)
	u.PID = 0 // the caller, for systemd
	if err := m.Adopt(t.Context(), u); err == nil {
		t.Error("a scope was made around the test")
	}
	if err := m.Adopt(t.Context(), unit(leaf, c)); err != nil {
		t.Errorf("after all that: %v", err)
	}
	if err := m.Adopt(t.Context(), unit(leaf, c)); !errors.Is(err, ErrRefused) {
		t.Errorf("twice: %v", err)
	}
}

// TestAdoptMany: more callers than may ask at once.
func TestAdoptMany(t *testing.T) {
	m, tree := manager1(t)
	var wg sync.WaitGroup
	for g := range uint64(40) {
		leaf, c := parked(t, tree, cgroupfs.ScopeName("many", g+1))
		wg.Go(func() {
			if err := m.Adopt(t.Context(), unit(leaf, c)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	running, err := m.Running(t.Context(), "berth-many-*.scope")
	if err != nil || len(running) != 40 {
		t.Errorf("%d are running, %v", len(running), err)
	}
}

// TestReexec: PID 1 executes itself anew while scopes are made, which ends the
// connection: each is made once.
func TestReexec(t *testing.T) {
	m, tree := manager1(t)
	done := make(chan int, 1)
	go func() { // waited for below
		worked := 0
		for range 3 {
			if exec.Command("systemctl", "daemon-reexec").Run() == nil { // it may be cut off itself
				worked++
			}
		}
		done <- worked
	}()
	for g := uint64(1); ; g++ {
		leaf, c := parked(t, tree, cgroupfs.ScopeName("reexec", g))
		if err := m.Adopt(t.Context(), unit(leaf, c)); err != nil {
			t.Errorf("scope %d: %v", g, err)
		}
		if got := show(t, leaf.Name(), "ActiveState"); got != "ActiveState=active" {
			t.Errorf("scope %d: %s", g, got)
		}
		select {
		case worked := <-done:
			if worked == 0 {
				t.Error("PID 1 was never executed anew")
			}
			return
		default:
		}
	}
}

// TestStop: a scope that systemd did not see end, since somebody removed its
// directory, is listed and can be stopped; one that is not there is no error.
func TestStop(t *testing.T) {
	m, tree := manager1(t)
	leaf, c := parked(t, tree, cgroupfs.ScopeName("stop", 1))
	if err := m.Adopt(t.Context(), unit(leaf, c)); err != nil {
		t.Fatal(err)
	}
	if err := m.Stop(t.Context(), leaf.Name()); err != nil {
		t.Error(err)
	}
	if got, err := m.Running(t.Context(), "berth-stop-*"); err != nil || len(got) > 0 {
		t.Errorf("running are %q, %v", got, err)
	}
	if err := m.Stop(t.Context(), "scopetest-never.scope"); err != nil {
		t.Error(err)
	}
}

// TestSilent: a PID 1 that takes connections and answers nothing holds nobody
// up for longer than the bound, however many ask.
func TestSilent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "private")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var held sync.WaitGroup
	held.Go(func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	})
	t.Cleanup(func() {
		l.Close()
		held.Wait()
	})
	m := New(path)
	t.Cleanup(m.Close)
	started := time.Now()
	var wg sync.WaitGroup
	for range 3 * callsAtOnce {
		wg.Go(func() {
			if err := m.Adopt(t.Context(), Unit{Name: "a.scope", PID: os.Getpid()}); !errors.Is(err, ErrSilent) {
				t.Errorf("got %v", err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(started); took > 2*callBound {
		t.Errorf("it took %s", took)
	}
}

// TestAbsent: nobody listens.
func TestAbsent(t *testing.T) {
	t.Parallel()
	m := New(filepath.Join(t.TempDir(), "private"))
	t.Cleanup(m.Close)
	if err := m.Adopt(t.Context(), Unit{Name: "a.scope", PID: 1}); err == nil || errors.Is(err, ErrRefused) || errors.Is(err, ErrSilent) {
		t.Errorf("got %v", err)
	}
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]int{"252.38-1~deb12u1": 252, "257": 257, "v255-rc1": 255, "": 0, "devel": 0} {
		if got := parseVersion(s); got != want {
			t.Errorf("%q is %d", s, got)
		}
	}
}

// TestOOMPolicy: only a systemd that knows it for scopes is told.
func TestOOMPolicy(t *testing.T) {
	t.Parallel()
	for version, want := range map[int]bool{0: false, 252: false, 253: true, 257: true} {
		u := Unit{}
		has := slices.ContainsFunc(u.properties(version), func(p property) bool { return p.Name == "OOMPolicy" })
		if has != want {
			t.Errorf("version %d: %v", version, has)
		}
	}
}
