package evidence

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/daemon/internal/discover"
	"github.com/berthd/berth/daemon/internal/discover/discovertest"
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

func TestTreeThatIsNotTheRecordedOne(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("replaced", 1)
	other := h.newPlace("other", 1)
	p.s.LeafParentInode = other.leaf.Inode() // it exists, and is no parent of ours
	want(t, "another parent", p.full(), Unknown, "leaf: unknown: made below inode")
	p.s.LeafParentInode = 0
	want(t, "no parent recorded", p.full(), Unknown, "leaf: unknown")
	bare := newBareHost(t)
	p.s.LockPath = ""
	want(t, "no tree any more", bare.Full(t.Context(), p.s), Unknown, "leaf: unknown: no cgroup tree")

	p.s.LeafParentInode = other.leaf.Inode()
	want(t, "no tree, and the parent exists", bare.Full(t.Context(), p.s), Unknown, "leaf: unknown: no cgroup tree")
	if err := other.leaf.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is known
		want(t, "the parent is gone", p.full(), Absent, "leaf: gone with the tree")
		want(t, "no tree, and the parent is gone", bare.Full(t.Context(), p.s), Absent, "leaf: gone with the tree")
	}
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
	legacy := p.start(discovertest.Role{Args: []string{"hold"}, Env: []string{discover.EnvHost + "=" + h.id, discover.EnvSession + "=mixed"}, UID: p.uid()}, "")
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
