package cgroupfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLeafLife(t *testing.T) {
	t.Parallel()
	tree := base(t)
	name := LeafName("s1", 1)
	l := make1(t, tree, name)
	if p, err := l.Populated(); p || err != nil {
		t.Fatalf("new leaf populated: %v, %v", p, err)
	}
	c := within(t, l, "sleep", "600")
	if p, err := l.Populated(); !p || err != nil {
		t.Fatalf("populated: %v, %v", p, err)
	}
	if pids, err := l.WorkProcs(); err != nil || !slices.Equal(pids, []int{c.Process.Pid}) {
		t.Fatalf("work holds %v, %v", pids, err)
	}
	if leaf, ok, err := tree.LeafOf(c.Process.Pid); leaf != name || !ok || err != nil {
		t.Fatalf("LeafOf: %q %v %v", leaf, ok, err)
	}
	mount, _ := Detect()
	if p, err := PathOf(c.Process.Pid, mount); p != l.WorkPath() || err != nil {
		t.Fatalf("PathOf: %q, %v", p, err)
	}
	if err := l.KillWork(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.WaitEmpty(bound(t)), l.Remove(bound(t))); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(l.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

// Everything that is asked of a leaf that is gone says so, and what only takes away succeeds.
func TestGone(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	if err := l.Remove(bound(t)); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"Populated":     second(l.Populated()),
		"WorkPopulated": second(l.WorkPopulated()),
		"Procs":         second(l.Procs()),
		"WorkProcs":     second(l.WorkProcs()),
		"Frozen":        second(l.Frozen()),
		"Freeze":        l.Freeze(bound(t)),
		"Thaw":          l.Thaw(),
		"OpenWrap":      second(l.OpenWrap()),
		"Tree.Open":     second(tree.Open(l.Name())),
	} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := errors.Join(l.Kill(), l.KillWork(), l.WaitEmpty(bound(t)), l.Remove(bound(t))); err != nil {
		t.Error(err)
	}
	if n, err := l.TermWork(bound(t)); n != 0 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("TermWork: %d, %v", n, err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestLeafIsNeverUsedTwice(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	if _, err := tree.Make(l.Name()); !errors.Is(err, ErrExists) {
		t.Fatal(err)
	}
	if p, err := l.Populated(); p || err != nil {
		t.Fatalf("the refusal harmed it: %v, %v", p, err)
	}
	again, err := tree.Open(l.Name())
	if err != nil || again.Inode() != l.Inode() || again.ParentInode() != tree.Inode() {
		t.Fatalf("%+v, %v", again, err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	tree := base(t)
	for _, name := range []string{"", ".", "..", "a/b", "/", ".probe-x", "a\nb", "a\x00b", string(make([]byte, 256))} {
		if _, err := tree.Make(name); err == nil {
			t.Errorf("made %q", name)
		}
		if _, err := tree.Open(name); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("opening %q: %v", name, err)
		}
		if _, err := Open("", name); err == nil {
			t.Errorf("base %q", name)
		}
	}
	for _, parent := range []string{"relative", "/sys/fs/cgroup/../x", "/x/"} {
		if _, err := Open(parent, "name"); err == nil {
			t.Errorf("parent %q", parent)
		}
	}
}

// A daemon that died between two steps of Make leaves a part; it is empty, can be asked and removed.
func TestHalfMadeLeaf(t *testing.T) {
	t.Parallel()
	tree := base(t)
	for name, children := range map[string][]string{"none": nil, "wrap": {wrapDir}, "work": {workDir}} {
		if err := os.Mkdir(filepath.Join(tree.Path(), name), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, c := range children {
			if err := os.Mkdir(filepath.Join(tree.Path(), name, c), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		l, err := tree.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := l.Populated()
		wp, werr := l.WorkPopulated()
		pids, perr := l.WorkProcs()
		if p || wp || len(pids) != 0 || errors.Join(err, werr, perr, l.Kill(), l.KillWork(), l.Thaw()) != nil {
			t.Errorf("%s: %v %v %v, %v", name, p, wp, pids, errors.Join(err, werr, perr, l.Kill(), l.KillWork(), l.Thaw()))
		}
		if n, err := l.TermWork(bound(t)); n != 0 || err != nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
		if err := l.Remove(bound(t)); err != nil {
			t.Error(err)
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	tree := base(t)
	if names, err := tree.List(); names == nil || len(names) != 0 || err != nil {
		t.Fatalf("%v, %v", names, err)
	}
	make1(t, tree, "berth-b-g2")
	make1(t, tree, "berth-a-g1")
	make1(t, tree, "stranger")
	if names, err := tree.List(); !slices.Equal(names, []string{"berth-a-g1", "berth-b-g2", "stranger"}) || err != nil {
		t.Fatalf("%v, %v", names, err)
	}
	if err := tree.Remove(); !errors.Is(err, ErrPopulated) {
		t.Fatalf("removing a base with leaves: %v", err)
	}
}

// case A15: a leaf with a process in it is not removed, and is removed with whatever was nested in it
// once that is empty.
func TestRemove(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 3))
	deep := filepath.Join(l.WorkPath(), "payload", "system.slice", "a.service")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(l.Path(), "stray", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := within(t, l, "sleep", "600")
	nested := within(t, l, "sleep", "600")
	if err := os.WriteFile(filepath.Join(deep, "cgroup.procs"), []byte(itoa(nested.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	want := []int{c.Process.Pid, nested.Process.Pid}
	slices.Sort(want)
	if pids, err := l.Procs(); !slices.Equal(pids, want) || err != nil {
		t.Fatalf("%v, %v, want %v", pids, err, want)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := l.Remove(short); !errors.Is(err, ErrPopulated) {
		t.Fatalf("removing a populated leaf: %v", err)
	}
	if err := errors.Join(l.Kill(), l.WaitEmpty(bound(t)), l.Remove(bound(t))); err != nil {
		t.Fatal(err)
	}
}

// An agent with write access can make threaded cgroups, whose processes are listed further up.
func TestThreadedCgroup(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	threaded := filepath.Join(l.WorkPath(), "threads")
	if err := os.Mkdir(threaded, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(threaded, "cgroup.type"), []byte("threaded"), 0); err != nil {
		t.Skipf("no threaded cgroups: %v", err)
	}
	c := within(t, l, "sleep", "600")
	if err := os.WriteFile(filepath.Join(threaded, "cgroup.threads"), []byte(itoa(c.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	if pids, err := l.WorkProcs(); !slices.Equal(pids, []int{c.Process.Pid}) || err != nil {
		t.Fatalf("%v, %v", pids, err)
	}
	if n, err := l.TermWork(bound(t)); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if err := errors.Join(l.WaitEmpty(bound(t)), l.Remove(bound(t))); err != nil {
		t.Fatal(err)
	}
}

// case T25: zombies hold nothing, neither populated nor the directory.
func TestZombieHoldsNothing(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	c := within(t, l, "sleep", "600") // reaped at the end of the test
	if err := errors.Join(l.Kill(), l.WaitEmpty(bound(t))); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/" + itoa(c.Process.Pid) + "/stat")
	if err != nil {
		t.Fatalf("not a zombie: %s, %v", b, err)
	}
	if pids, err := l.Procs(); len(pids) != 0 || err != nil {
		t.Fatalf("%v, %v", pids, err)
	}
	if err := l.Remove(bound(t)); err != nil {
		t.Fatal(err)
	}
	// Its memory of the removed directory still tells the leaf.
	if leaf, ok, err := tree.LeafOf(c.Process.Pid); !ok || leaf != l.Name() || err != nil {
		t.Fatalf("%q %v %v", leaf, ok, err)
	}
}

func TestFreeze(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	c := within(t, l, "sh", "-c", "while :; do :; done")
	if err := l.Freeze(bound(t)); err != nil {
		t.Fatal(err)
	}
	if f, err := l.Frozen(); !f || err != nil {
		t.Fatalf("%v, %v", f, err)
	}
	before := cpuTicks(t, c.Process.Pid)
	for range 20 {
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
	if after := cpuTicks(t, c.Process.Pid); after != before {
		t.Errorf("it ran while frozen: %q, %q", before, after)
	}
	if err := l.Thaw(); err != nil {
		t.Fatal(err)
	}
	if f, err := l.Frozen(); f || err != nil {
		t.Fatalf("%v, %v", f, err)
	}
	eventually(t, "running again", func() bool { return cpuTicks(t, c.Process.Pid) != before })
}

func cpuTicks(t testing.TB, pid int) string {
	t.Helper()
	b, err := os.ReadFile("/proc/" + itoa(pid) + "/schedstat")
	if err != nil {
		t.Skipf("no schedstat: %v", err)
	}
	return string(b)
}

// case T35: a freeze that is not confirmed in time is taken back.
func TestFreezeTimesOutThawed(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	for range 4 {
		within(t, l, "sh", "-c", "while :; do :; done")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	missed := 0
	for range 50 {
		err := l.Freeze(ended)
		f, ferr := l.Frozen()
		if ferr != nil || f != (err == nil) {
			t.Fatalf("frozen %v, %v after %v", f, ferr, err)
		}
		if err != nil {
			missed++
		}
		if err := l.Thaw(); err != nil {
			t.Fatal(err)
		}
	}
	if missed == 0 {
		t.Skip("this kernel froze at once every time")
	}
}

// case T35: version 2 kills what is frozen.
func TestKillFrozen(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	within(t, l, "sleep", "600")
	if err := errors.Join(l.Freeze(bound(t)), l.KillWork(), l.WaitEmpty(bound(t)), l.Remove(bound(t))); err != nil {
		t.Fatal(err)
	}
}

// The wrapper lives on when work is killed.
func TestKillWorkSparesWrap(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	wrapper := within(t, l, "sleep", "600")
	if err := os.WriteFile(filepath.Join(l.WrapPath(), "cgroup.procs"), []byte(itoa(wrapper.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	agent := within(t, l, "sleep", "600")
	if err := errors.Join(l.KillWork(), l.WaitWorkEmpty(bound(t))); err != nil {
		t.Fatal(err)
	}
	if err := agent.Wait(); err == nil {
		t.Fatal("the agent ended well")
	}
	if p, err := l.Populated(); !p || err != nil {
		t.Fatalf("%v, %v", p, err)
	}
	if pids, err := l.Procs(); !slices.Equal(pids, []int{wrapper.Process.Pid}) || err != nil {
		t.Fatalf("%v, %v", pids, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := l.WaitEmpty(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if err := wrapper.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatal(err)
	}
}
