package evidence

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/daemon/internal/discover"
	"github.com/berthd/berth/daemon/internal/discover/discovertest"
	"github.com/berthd/berth/daemon/internal/sys"
)

// The life of one instance, seen at each step.
func TestLifeOfAnInstance(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("life", 3)
	want(t, "before the spawn, quick", p.quick(), Absent, "populated 0")
	want(t, "before the spawn, full", p.full(), Absent, "populated 0")

	w, a := p.wrapper(), p.agent("hold")
	want(t, "running, quick", p.quick(), Present, "")
	r := p.full()
	want(t, "running, full", r, Present, "")
	if r.Strength != Strong || *r.Wrapper != p.s.Wrapper || len(r.Members) != 2 || len(r.Escaped)+len(r.Forged)+len(r.Zombies)+len(r.Stuck) != 0 {
		t.Errorf("running: %+v", r)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}

	w.Kill() // case T02: the wrapper is lost, its agent goes on
	r = p.full()
	want(t, "without its wrapper", r, Unknown, "leaf: present")
	if !r.Alive || witness(r, Pidfd).Answer != Absent || witness(r, Lock).Answer != Absent || !slices.Equal(pids(r.Members), []int{a.PID}) {
		t.Errorf("without its wrapper: %+v", r)
	}
	a.Kill()
	want(t, "after its end, quick", p.quick(), Absent, "populated 0")
	if err := p.leaf.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "after the removal, quick", p.quick(), Absent, "gone")
	want(t, "after the removal, full", p.full(), Absent, "gone")
}

// Where the agent could leave its leaf, nothing but a scan makes an absence.
func TestEscapableNeedsTheScan(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("escapable", 1)
	p.s.Escapable = true
	want(t, "quick", p.quick(), Unknown, "markers: not asked")
	r := p.full()
	want(t, "full", r, Absent, "markers: none among")
	if r.Strength != Strong || r.Scan == nil || r.Scan.Scanned < 1 {
		t.Errorf("%+v", r)
	}
	e := p.start(discovertest.Role{Args: []string{"hold"}, Env: p.env(), UID: p.uid()}, "")
	r = p.full()
	want(t, "escaped", r, Unknown, "markers: present")
	if !r.Alive || !slices.Equal(pids(r.Escaped), []int{e.PID}) {
		t.Errorf("%+v", r)
	}
}

// case T19: all of them erase their markers, and the leaf still accounts for every one.
func TestErasedMarkers(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("erased", 1)
	p.s.Escapable = true
	a := p.agent("erase")
	r := p.full()
	want(t, "erased", r, Unknown, "leaf: present")
	if !r.Alive {
		t.Errorf("%+v", r)
	}
	a.Kill()
	want(t, "afterwards", p.full(), Absent, "")
}

// case T20: what re-executes without end is never absent, even where markers are all there is.
func TestReexecIsNeverAbsent(t *testing.T) {
	t.Parallel()
	h := newBareHost(t)
	p := h.newPlace("reexec", 1)
	a := p.agent("reexec")
	verdicts := map[Answer]int{}
	for range 1000 {
		r := p.full()
		verdicts[witness(r, Markers).Answer]++
		if r.Verdict == Absent {
			t.Fatalf("absent: %+v", r)
		}
	}
	t.Logf("markers present %d, unknown %d", verdicts[Present], verdicts[Unknown])
	a.Stop()
	r := p.full()
	want(t, "afterwards", r, Absent, "no leaf; markers: none among")
	if r.Strength != Weak {
		t.Errorf("%+v", r)
	}
}

// case T21: a chain of processes that fork and exit outruns every scan, not the leaf.
func TestForkingChain(t *testing.T) {
	t.Parallel()
	needRoot(t) // so that the chain is nobody's and its limit of processes is in force
	h := newHost(t)
	p := h.newPlace("hopper", 1)
	p.s.Escapable = true
	a := p.agent("hopper", "50")
	seen := 0
	for range 200 {
		r := p.full()
		if r.Verdict != Unknown || !r.Alive {
			t.Fatalf("%+v", r)
		}
		if len(r.Members) > 0 {
			seen++
		}
		if q := p.quick(); q.Verdict != Unknown || !q.Alive {
			t.Fatalf("%+v", q)
		}
	}
	t.Logf("the scan saw the chain %d times of 200, the leaf always", seen)
	a.CloseInput()
	if err := p.leaf.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.leaf.WaitEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "killed", p.full(), Absent, "populated 0")
}

// case T22: children with and without the marker belong to the leaf, and outlive their parent in it.
func TestChildrenWithoutMarker(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("family", 1)
	a := p.agent("family")
	discovertest.Eventually(t, "parent and two children are in the leaf", func() bool {
		all, err := p.leaf.Procs()
		return err == nil && len(all) == 3
	})
	if err := unix.Kill(a.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	discovertest.Eventually(t, "two children are left", func() bool {
		all, err := p.leaf.Procs()
		return err == nil && len(all) == 2
	})
	r := p.full()
	want(t, "children alone", r, Unknown, "leaf: present")
	if len(r.Members) != 1 {
		t.Errorf("members by marker: %v", pids(r.Members))
	}
	a.Stop()
	discovertest.Eventually(t, "they have ended", func() bool { return p.quick().Verdict == Absent })
}

func TestForgedMarkers(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := newHost(t)
	p, other := h.newPlace("forged", 1), h.newPlace("forger", 1)
	p.s.Escapable = true
	role := discovertest.Role{Args: []string{"hold"}, Env: p.env(), UID: nobody}
	inside := other.start(role, "work") // another session's agent, of the same uid
	role.UID = nobody - 1
	outside := p.start(role, "") // anybody else
	r := p.full()
	want(t, "forged", r, Absent, "")
	if got := pids(r.Forged); len(got) != 2 || !slices.Contains(got, inside.PID) || !slices.Contains(got, outside.PID) {
		t.Errorf("forged %v, want %d and %d", got, inside.PID, outside.PID)
	}
	if r := other.full(); r.Verdict != Unknown || !slices.Equal(pids(r.Members), []int{inside.PID}) {
		t.Errorf("whose leaf it is: %v %v", r.Verdict, pids(r.Members))
	}
	// Where there is no leaf to tell, the same uid is enough to count.
	weak := p.s
	weak.Weak, weak.LeafPath, weak.LeafParentInode = true, "", 0
	b := newBareHost(t)
	b.id, b.scanner, b.Prober.scanner = h.id, h.scanner, h.scanner
	weak.LockPath = ""
	if r := b.Full(t.Context(), weak); r.Verdict != Unknown || !slices.Equal(pids(r.Members), []int{inside.PID}) || !slices.Equal(pids(r.Forged), []int{outside.PID}) {
		t.Errorf("weak: %v members %v forged %v", r.Verdict, pids(r.Members), pids(r.Forged))
	}
}

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
	want(t, "without a leaf", h.Full(t.Context(), weak), Absent, "no leaf; markers: ")
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

// case T14, T15: the record describes a stranger from top to toe. It is outside of the leaf and carries
// no marker, so it is not the wrapper, which is gone, or somebody else in the leaf.
func TestRecordOfAStranger(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("impersonated", 1)
	stranger := p.start(discovertest.Role{Args: []string{"hold"}, Env: []string{"PATH=/bin"}}, "")
	w := p.wrapper()
	for pid, why := range map[int]string{stranger.PID: "stranger", os.Getpid(): "no wrapper", os.Getppid(): "no wrapper", 1: "no wrapper"} {
		p.record(pid)
		for _, r := range []Report{p.quick(), p.full()} {
			want(t, "wrapper inside", r, Unknown, "leaf: present")
			if w := witness(r, Pidfd); w.Answer != Absent || !strings.Contains(w.Detail, why) {
				t.Errorf("pidfd: %+v, want %q", w, why)
			}
		}
	}
	w.Kill()
	want(t, "nobody inside", p.quick(), Absent, "populated 0")
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

// case T25: a zombie whose parent is stopped holds nothing, and is reported with its parent.
func TestZombieOfAStoppedParent(t *testing.T) {
	t.Parallel()
	needRoot(t) // to move a process into the leaf
	h := newHost(t)
	p := h.newPlace("zombie", 1)
	p.s.Escapable = true
	a := p.start(discovertest.Role{Args: []string{"zombie", p.leaf.WrapPath()}, Env: p.env(), UID: 0}, "")
	p.s.OwnerUID, p.s.DaemonUID = nobody, nobody // the parent is nobody of ours
	p.record(a.N)
	if err := unix.Kill(a.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	want(t, "quick", func() Report { s := p.s; s.Escapable = false; return h.Quick(t.Context(), s) }(), Absent, "populated 0")
	r := p.full()
	want(t, "full", r, Absent, "")
	if d := witness(r, Pidfd).Detail; !strings.Contains(d, "zombie of parent") {
		t.Errorf("pidfd: %s", d)
	}
	if !slices.Equal(pids(r.Zombies), []int{a.N}) || r.Zombies[0].PPID != a.PID {
		t.Errorf("zombies %+v", r.Zombies)
	}
}

// The first thread of a wrapper has exited, the kernel prints Z, and it lives.
func TestWrapperWithoutItsFirstThread(t *testing.T) {
	t.Parallel()
	onBothHosts(t, func(t *testing.T, h *host) {
		p := h.newPlace("headless", 1)
		a := p.start(discovertest.Role{Args: []string{"headless-lock", p.s.LockPath}, Env: p.env()}, "wrap")
		p.record(a.PID)
		discovertest.Eventually(t, "its first thread has exited", func() bool {
			st, err := sys.ReadStat(a.PID)
			return err == nil && st.State == 'Z'
		})
		want(t, "quick", p.quick(), Present, "")
		r := p.full()
		want(t, "full", r, Present, "")
		if !slices.Equal(pids(r.Members), []int{a.PID}) || len(r.Zombies) != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// case T14, case T15: a recorded pid that belongs to somebody else, or to us.
func TestRecycledPid(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("recycled", 1)
	bystander := p.start(discovertest.Role{Args: []string{"hold"}}, "")
	for name, change := range map[string]func(*sys.Identity){
		"another start time": func(id *sys.Identity) { id.StartTicks--; id.PidfdInode = 0 }, // as on kernels without pidfs
		"another inode":      func(id *sys.Identity) { id.PidfdInode += 1 << 40 },
		"another boot":       func(id *sys.Identity) { id.BootID = strings.Repeat("0", 36) },
	} {
		if name == "another inode" && !sys.HasPidfs() {
			continue
		}
		p.record(bystander.PID)
		change(&p.s.Wrapper)
		r := p.quick()
		want(t, name, r, Absent, "populated 0")
		if witness(r, Pidfd).Answer != Absent {
			t.Errorf("%s: %+v", name, witness(r, Pidfd))
		}
	}
	p.record(os.Getpid())
	want(t, "our own pid", p.quick(), Absent, "populated 0")
	if !strings.Contains(witness(p.quick(), Pidfd).Detail, "no wrapper") {
		t.Errorf("our own pid: %+v", witness(p.quick(), Pidfd))
	}
}

// case T07: the daemon died between the spawn and the record. One process fits, and is found.
func TestWrapperThatWasNeverRecorded(t *testing.T) {
	t.Parallel()
	onBothHosts(t, func(t *testing.T, h *host) {
		p := h.newPlace("unrecorded", 4)
		w := p.wrapper()
		p.agent("hold")
		id := p.s.Wrapper
		p.s.Wrapper = sys.Identity{}
		if h.tree != nil {
			want(t, "quick", p.quick(), Unknown, "leaf: present")
		} else {
			want(t, "quick", p.quick(), Unknown, "lock: present")
		}
		r := p.full()
		want(t, "full", r, Present, "")
		if r.Wrapper == nil || *r.Wrapper != id || r.Subject.Wrapper != id {
			t.Errorf("found %+v, want %+v", r.Wrapper, id)
		}
		w.Kill()
		want(t, "without it", p.full(), Unknown, "")
	})
}

// case T33, C6: a process that no signal reaches is named with the function it sleeps in.
func TestStuckProcess(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("stuck", 1)
	a := p.agent("vfork")
	discovertest.Eventually(t, "it sleeps in the kernel", func() bool {
		st, err := sys.ReadStat(a.PID)
		return err == nil && st.State == 'D'
	})
	r := p.full()
	want(t, "stuck", r, Unknown, "leaf: present")
	if len(r.Stuck) != 1 || r.Stuck[0].PID != a.PID || r.Stuck[0].State != 'D' {
		t.Fatalf("%+v", r.Stuck)
	}
	if os.Geteuid() == 0 && r.Stuck[0].Wchan == "" {
		t.Error("no wchan")
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

func TestTreeThatIsNotTheRecordedOne(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("replaced", 1)
	p.s.LeafParentInode++
	want(t, "another parent", p.full(), Unknown, "leaf: unknown: made below inode")
	p.s.LeafParentInode = 0
	want(t, "no parent recorded", p.full(), Unknown, "leaf: unknown")
	bare := newBareHost(t)
	p.s.LockPath = ""
	want(t, "no tree any more", bare.Full(t.Context(), p.s), Unknown, "leaf: unknown: no cgroup tree")
}

// What cannot be asked is unknown; running out of time is no absence.
func TestEndOfContext(t *testing.T) {
	t.Parallel()
	h := newBareHost(t)
	p := h.newPlace("late", 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	want(t, "cancelled", h.Full(ctx, p.s), Unknown, "markers: unknown")
	want(t, "in time", p.full(), Absent, "")
}

func TestLegacyAndOthers(t *testing.T) {
	t.Parallel()
	h := newBareHost(t)
	p := h.newPlace("mixed", 5)
	legacy := p.start(discovertest.Role{Args: []string{"hold"}, Env: []string{discover.EnvHost + "=" + h.id, discover.EnvSession + "=mixed"}}, "")
	earlier := *p
	earlier.s.Instance, earlier.s.Generation = random(t), 4
	older := earlier.start(discovertest.Role{Args: []string{"hold"}, Env: earlier.env()}, "")
	r := p.full()
	want(t, "the instance", r, Absent, "")
	if !slices.Equal(pids(r.Legacy), []int{legacy.PID}) || !slices.Equal(pids(r.Others), []int{older.PID}) {
		t.Errorf("legacy %v, others %v", pids(r.Legacy), pids(r.Others))
	}
	whole := p.s
	whole.Instance, whole.Generation = "", 0
	r = h.Full(t.Context(), whole)
	want(t, "the session", r, Unknown, "markers: present: 2 processes")
	if !r.Alive {
		t.Error("not alive")
	}
	legacy.Stop()
	older.Stop()
	want(t, "afterwards", h.Full(t.Context(), whole), Absent, "")
}

// Many who ask at once share scans, and nobody gets one that began before it asked.
func TestScansAreShared(t *testing.T) {
	t.Parallel()
	h := newBareHost(t)
	var mu sync.Mutex
	scans := map[time.Duration]int{}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			asked := sys.Now()
			res, err := h.share.scan(t.Context(), h.scanner)
			if err != nil {
				t.Error(err)
				return
			}
			if res.At < asked {
				t.Errorf("got a scan of %v, asked at %v", res.At, asked)
			}
			mu.Lock()
			scans[res.At]++
			mu.Unlock()
		})
	}
	wg.Wait()
	t.Logf("64 questions, %d scans", len(scans))
	if len(scans) > 32 {
		t.Errorf("%d scans", len(scans))
	}
}

// When the one who should scan gives up, the others do not.
func TestScanOfOneWhoGaveUp(t *testing.T) {
	t.Parallel()
	h := newBareHost(t)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%2 == 0 {
				cancel()
			}
			_, err := h.share.scan(ctx, h.scanner)
			if (err != nil) != (i%2 == 0) {
				t.Errorf("caller %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if h.share.running != nil || h.share.next != nil {
		t.Error("a batch is left")
	}
}

// Further cgroups count, also those of version 1.
func TestFurtherCgroups(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := newHost(t)
	p := h.newPlace("paths", 1)
	dirs := []string{filepath.Join(h.tree.Path(), "payload")}
	if fi, err := os.Stat("/sys/fs/cgroup/freezer/cgroup.procs"); err == nil && fi.Mode().IsRegular() {
		dirs = append(dirs, "/sys/fs/cgroup/freezer/"+filepath.Base(h.tree.Path()))
	}
	for _, dir := range dirs {
		p.s.CgroupPaths = []string{dir}
		want(t, "not made", p.quick(), Absent, "")
		nested := filepath.Join(dir, "a")
		if err := os.MkdirAll(nested, 0o755); err != nil {
			t.Fatal(err)
		}
		want(t, "empty", p.quick(), Absent, "")
		a := p.start(discovertest.Role{Args: []string{"hold"}}, "")
		if err := os.WriteFile(filepath.Join(nested, "cgroup.procs"), []byte(strconv.Itoa(a.PID)), 0); err != nil {
			t.Fatal(err)
		}
		want(t, "populated", p.quick(), Unknown, "paths: present")
		a.Stop()
		for _, d := range []string{nested, dir} {
			if err := os.Remove(d); err != nil {
				t.Fatal(err)
			}
		}
		want(t, "removed", p.quick(), Absent, "")
	}
	p.s.CgroupPaths = []string{"/no-such-hierarchy/x"}
	want(t, "a hierarchy that is not mounted", p.quick(), Unknown, "paths: unknown")
	p.s.CgroupPaths = []string{t.TempDir()}
	want(t, "no cgroup at all", p.quick(), Unknown, "paths: unknown")
}
