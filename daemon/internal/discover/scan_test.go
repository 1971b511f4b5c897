package discover

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/berthd/berth/daemon/internal/discover/discovertest"
	"github.com/berthd/berth/daemon/internal/sys"
)

func newScanner(tb testing.TB, opt Options) *Scanner {
	tb.Helper()
	opt.HostID = testHost
	s, err := NewScanner(opt)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func scan(tb testing.TB, s *Scanner) Result {
	tb.Helper()
	res, err := s.Scan(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return res
}

func find(r Result, pid int) (Proc, bool) {
	i := slices.IndexFunc(r.Procs, func(p Proc) bool { return p.PID == pid })
	if i < 0 {
		return Proc{}, false
	}
	return r.Procs[i], true
}

func opaque(r Result, pid int) (Opaque, bool) {
	i := slices.IndexFunc(r.Opaque, func(o Opaque) bool { return o.PID == pid })
	if i < 0 {
		return Opaque{}, false
	}
	return r.Opaque[i], true
}

func TestScanFindsAMember(t *testing.T) {
	t.Parallel()
	a := discovertest.Start(t, discovertest.Role{Args: []string{"hold"}, Env: append([]string{"PATH=/bin"}, ours("member")...)})
	before := sys.Now()
	res := scan(t, newScanner(t, Options{}))
	p, ok := find(res, a.PID)
	if !ok {
		t.Fatalf("process %d not found in %+v", a.PID, res)
	}
	id, err := sys.IdentityOf(a.PID)
	if err != nil {
		t.Fatal(err)
	}
	want := Proc{
		PID: a.PID, PPID: os.Getpid(), StartTicks: id.StartTicks, UID: uint32(os.Geteuid()), Comm: "actor", Kind: Member,
		Host: testHost, Session: "member", Instance: testInstance, Generation: 7, Cgroup: p.Cgroup, State: p.State,
	}
	if p != want {
		t.Errorf("got  %+v\nwant %+v", p, want)
	}
	if res.At < before || res.Took <= 0 || res.Scanned < 2 {
		t.Errorf("counts: %+v", res)
	}
	if looked, err := newScanner(t, Options{}).Look(t.Context(), a.PID); err != nil || looked.Session != "member" {
		t.Errorf("look: %+v %v", looked, err)
	}
}

// case T19
func TestErasedMarkerIsNoHit(t *testing.T) {
	t.Parallel()
	a := discovertest.Start(t, discovertest.Role{Args: []string{"erase"}, Env: ours("erased")})
	res := scan(t, newScanner(t, Options{}))
	if p, ok := find(res, a.PID); ok {
		t.Errorf("found %+v", p)
	}
	if o, ok := opaque(res, a.PID); ok {
		t.Errorf("reading it back is no error, but %+v", o)
	}
}

func TestUnmappedEnvironmentIsOpaque(t *testing.T) {
	t.Parallel()
	a := discovertest.Start(t, discovertest.Role{Args: []string{"unmap"}, Env: append([]string{"FILL=" + strings.Repeat("x", 3*os.Getpagesize())}, ours("unmapped")...)})
	res := scan(t, newScanner(t, Options{}))
	if _, ok := opaque(res, a.PID); !ok {
		p, found := find(res, a.PID)
		t.Errorf("not opaque: %v %+v", found, p)
	}
}

// case T20: in 1,000 scans of a process that does nothing but execute itself, it is found or doubtful,
// never merely not there.
func TestReexecIsNeverMissed(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"reexec", "reexec-thread"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			a := discovertest.Start(t, discovertest.Role{Args: []string{role}, Env: ours(role)})
			s := newScanner(t, Options{})
			var doubts []Opaque
			for range 1000 {
				res := scan(t, s)
				if _, ok := find(res, a.PID); ok {
					continue
				}
				o, ok := opaque(res, a.PID)
				if !ok {
					t.Fatalf("neither found nor in doubt after %d scans in doubt: %+v", len(doubts), res)
				}
				doubts = append(doubts, o)
			}
			t.Logf("%d of 1000 scans were in doubt: %+v", len(doubts), doubts)
		})
	}
}

// case T22
func TestChildWithoutEnvironment(t *testing.T) {
	t.Parallel()
	a := discovertest.Start(t, discovertest.Role{Args: []string{"family"}, Env: ours("family")})
	s := newScanner(t, Options{})
	discovertest.Eventually(t, "both children are there", func() bool {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(a.PID) + "/task/" + strconv.Itoa(a.PID) + "/children")
		if err != nil {
			t.Fatal(err)
		}
		marked, bare := 0, 0
		for _, f := range strings.Fields(string(b)) {
			pid, _ := strconv.Atoi(f)
			p, err := s.Look(t.Context(), pid)
			switch {
			case err != nil:
				return false
			case p.Session == "family":
				marked++
			case p.Kind == Unmarked && p.StartTicks > 0:
				bare++
			}
		}
		return marked == 1 && bare == 1
	})
	res := scan(t, s)
	if n := len(slices.DeleteFunc(res.Procs, func(p Proc) bool { return p.Session != "family" })); n != 2 {
		t.Errorf("%d processes carry the marker, want parent and one child", n)
	}
}

// A process goes on after its first thread has exited, and /proc/PID says zombie.
func TestFirstThreadGone(t *testing.T) {
	t.Parallel()
	a := discovertest.Start(t, discovertest.Role{Args: []string{"headless"}, Env: ours("headless")})
	s := newScanner(t, Options{})
	discovertest.Eventually(t, "the first thread has exited", func() bool {
		st, err := sys.ReadStat(a.PID)
		return err == nil && st.State == 'Z'
	})
	p, ok := find(scan(t, s), a.PID)
	if !ok || p.Zombie || p.Kind != Member || p.UID != uint32(os.Geteuid()) {
		t.Errorf("found %v: %+v", ok, p)
	}
}

// case T25
func TestZombiesAreCounted(t *testing.T) {
	t.Parallel()
	a := discovertest.Start(t, discovertest.Role{Args: []string{"zombie"}, Env: ours("zombie")})
	res := scan(t, newScanner(t, Options{}))
	if _, ok := find(res, a.PID); !ok {
		t.Error("the parent was not found")
	}
	if p, ok := find(res, a.N); ok {
		t.Errorf("the zombie was found without a tree to be in: %+v", p)
	}
	if res.Zombies == 0 {
		t.Error("no zombie was counted")
	}
	if os.Geteuid() != 0 {
		return
	}
	// With the root of the hierarchy for a tree it is ours.
	p, ok := find(scan(t, newScanner(t, Options{CgroupBases: []string{"/"}})), a.N)
	if ok && (!p.Zombie || p.Kind != Remains || p.PPID != a.PID || p.Session != "") {
		t.Errorf("zombie: %+v", p)
	}
}

// case T25: a process in a user namespace is seen, under the uid that it has outside of it.
func TestMemberInAUserNamespace(t *testing.T) {
	t.Parallel()
	needRoot(t)
	a := discovertest.Start(t, discovertest.Role{Args: []string{"hold"}, Env: ours("userns"), Attr: func(attr *syscall.SysProcAttr) {
		attr.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: selfTestUID, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: selfTestUID, Size: 1}}
		attr.Credential = &syscall.Credential{NoSetGroups: true}
	}})
	p, ok := find(scan(t, newScanner(t, Options{})), a.PID)
	if !ok || p.Kind != Member || p.UID != selfTestUID {
		t.Errorf("found %v: %+v", ok, p)
	}
}

func TestHugeEnvironment(t *testing.T) {
	t.Parallel()
	var env []string
	for i := range 12 { // of execve's 128 KiB each
		env = append(env, "X"+strconv.Itoa(i)+"="+strings.Repeat("x", 120<<10))
	}
	a := discovertest.Start(t, discovertest.Role{Args: []string{"hold"}, Env: append(env, ours("huge")...)})
	if _, ok := find(scan(t, newScanner(t, Options{})), a.PID); !ok {
		t.Error("not found behind 1.4 MiB")
	}
}

func TestEnvironmentBeyondTheBoundIsOpaque(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	fake(t, root, 5, "S", slices.Concat(environ("A="+strings.Repeat("x", 3<<20)), environ(ours("behind")...)))
	fake(t, root, 6, "S", slices.Concat(environ(ours("before")...), environ("A="+strings.Repeat("x", 3<<20))))
	fake(t, root, 7, "S", environ("A="+strings.Repeat("x", maxEnviron-3)))
	res := scan(t, newScanner(t, Options{Root: root}))
	if o, ok := opaque(res, 5); !ok || o.Reason != TooBig || o.UID != 1000 || o.StartTicks != 4711 || o.Comm != "fake" {
		t.Errorf("5: %+v", o)
	}
	if p, ok := find(res, 6); !ok || p.Session != "before" {
		t.Errorf("6: %+v", p)
	}
	if len(res.Procs) != 1 || len(res.Opaque) != 2 || res.Scanned != 3 {
		t.Errorf("%+v", res)
	}
}

// fake adds a process to a proc file system made of files.
func fake(tb testing.TB, root string, pid int, state string, env []byte) {
	tb.Helper()
	dir := filepath.Join(root, strconv.Itoa(pid))
	if err := os.Mkdir(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	tail := " 1 1 1 0 -1 4194560 5 0 0 0 0 0 0 0 20 0 1 0 4711 0 0"
	for name, content := range map[string][]byte{
		"environ": env,
		"stat":    []byte(strconv.Itoa(pid) + " (fake) " + state + tail + "\n"),
		"status":  []byte("Name:\tfake\nUid:\t1000\t1000\t1000\t1000\n"),
		"cgroup":  []byte("0::/x\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
}

func TestEmptyEnvironmentIsDoubtful(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	fake(t, root, 5, "S", nil)
	fake(t, root, 6, "Z", nil)
	res := scan(t, newScanner(t, Options{Root: root}))
	if o, ok := opaque(res, 5); !ok || o.Reason != Empty || res.Empty != 1 {
		t.Errorf("%+v", res)
	}
	if res.Zombies != 1 || res.Scanned != 2 {
		t.Errorf("%+v", res)
	}
}

// What a process costs in a steady state must not be memory.
func TestNoAllocationPerProcess(t *testing.T) {
	perScan := func(n int) float64 {
		root := t.TempDir()
		for pid := range n {
			fake(t, root, pid+1, "S", environ("PATH=/bin", "HOME=/", "BERTH_OTHER=1"))
		}
		fake(t, root, 100000, "Z", nil)
		s := newScanner(t, Options{Root: root, LegacyRules: []LegacyRule{{Name: "old", Env: "OLD_SESSION"}, {Name: "flag", ArgvFlag: "--session"}}})
		return testing.AllocsPerRun(20, func() {
			if res := scan(t, s); res.Scanned != n+1 || len(res.Procs)+len(res.Opaque) != 0 {
				t.Fatalf("%+v", res)
			}
		})
	}
	few, many := perScan(10), perScan(1000)
	if many-few > 5 { // the ticker and the scheduler have some of their own
		t.Errorf("%v allocations for 10 processes, %v for 1000", few, many)
	}
}

func TestScanOfNothing(t *testing.T) {
	t.Parallel()
	s := newScanner(t, Options{Root: filepath.Join(t.TempDir(), "missing")})
	if _, err := s.Scan(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestLook(t *testing.T) {
	t.Parallel()
	s := newScanner(t, Options{})
	p, err := s.Look(t.Context(), os.Getpid())
	if err != nil || p.PID != os.Getpid() || p.StartTicks == 0 || p.UID != uint32(os.Geteuid()) {
		t.Errorf("self: %+v %v", p, err)
	}
	if _, err := s.Look(t.Context(), 1<<22+1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nobody: %v", err)
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	a := discovertest.Start(t, discovertest.Role{Args: []string{"hold"}, Env: ours("shared")})
	s := newScanner(t, Options{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				res, err := s.Scan(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if _, ok := find(res, a.PID); !ok {
					t.Error("not found")
				}
				if _, err := s.Look(t.Context(), a.PID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// An ordinary user's scan: others are out of scope, its own that hide are in doubt.
func TestScanAsAnotherUser(t *testing.T) {
	t.Parallel()
	needRoot(t)
	mine := discovertest.Start(t, discovertest.Role{Args: []string{"hold"}, Env: ours("nobody"), UID: selfTestUID})
	hidden := discovertest.Start(t, discovertest.Role{Args: []string{"undumpable"}, Env: ours("nobody"), UID: selfTestUID})
	roots := discovertest.Start(t, discovertest.Role{Args: []string{"hold"}, Env: ours("nobody")})
	out, err := as(t, "scan-nobody", nil)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var res Result
	if err := json.Unmarshal([]byte(out), &res); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if p, ok := find(res, mine.PID); !ok || p.UID != selfTestUID {
		t.Errorf("its own was not found: %s", out)
	}
	if o, ok := opaque(res, hidden.PID); !ok || o.Reason != Unreadable || o.UID != selfTestUID || o.StartTicks == 0 {
		t.Errorf("its own that is not dumpable: %+v", o)
	}
	if _, ok := find(res, roots.PID); ok {
		t.Error("root's process was found")
	}
	if o, ok := opaque(res, roots.PID); ok {
		t.Errorf("root's process is in doubt: %+v", o)
	}
	if res.OutOfScope < 2 {
		t.Errorf("%d out of scope", res.OutOfScope)
	}
}

// Running out of descriptors makes a scan fail; it must not make processes vanish.
func TestScanWithoutDescriptors(t *testing.T) {
	t.Parallel()
	if out, err := as(t, "few-descriptors", nil); err != nil || out != "refused" {
		t.Errorf("%v: %s", err, out)
	}
}
