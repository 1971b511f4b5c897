package cgroupfs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// slice1 is a base that stands for a slice of systemd's: what this package does
// with it needs none.
func slice1(t *testing.T) *Tree {
	t.Helper()
	made := base(t)
	slice, err := OpenSlice(made.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slice.Close() })
	return slice
}

// inScope starts a process as a wrapper is: in the leaf itself.
func inScope(t *testing.T, l *Leaf) *exec.Cmd {
	t.Helper()
	dir, err := l.OpenEntry()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	c := exec.Command("sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

// TestTrees: a name finds its base, whichever kind of leaf it is of.
func TestTrees(t *testing.T) {
	t.Parallel()
	subtree := base(t)
	trees := NewTrees(subtree)
	if _, err := trees.Make(ScopeName("a", 2)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a scope without a slice: %v", err)
	}
	t.Run("slice", func(t *testing.T) {
		slice := slice1(t)
		trees.SetSlice(slice)
		defer trees.SetSlice(nil)
		want := map[string]*Tree{LeafName("a", 1): subtree, ScopeName("a", 2): slice}
		for name, tree := range want {
			l, err := trees.Make(name)
			if err != nil {
				t.Fatal(err)
			}
			if l.Path() != path.Join(tree.Path(), name) || l.ParentInode() != tree.Inode() || trees.Of(name) != tree {
				t.Errorf("%s lies at %s", name, l.Path())
			}
			if leaf, ok := trees.LeafOfPath(path.Join(tree.ProcPath(), name, "work/x")); leaf != name || !ok {
				t.Errorf("a process in %s is in %q, %v", name, leaf, ok)
			}
		}
		names, err := trees.List()
		if err != nil || !slices.Equal(names, []string{LeafName("a", 1), ScopeName("a", 2)}) {
			t.Errorf("leaves are %q, %v", names, err)
		}
	})
}

// TestSliceGone: somebody has stopped the slice; what was in it is gone, and
// the rest is not in doubt.
func TestSliceGone(t *testing.T) {
	t.Parallel()
	trees := NewTrees(base(t))
	make1(t, trees.Subtree(), LeafName("a", 1))
	gone, err := Open("", ownBase+"slice-gone")
	if err != nil {
		t.Fatal(err)
	}
	if gone.Mode() == None {
		t.Skip(gone.Reason())
	}
	defer gone.Close()
	trees.SetSlice(gone)
	if err := unix.Rmdir(gone.Path()); err != nil {
		t.Fatal(err)
	}
	if gone.Current() {
		t.Error("a slice that was removed is current")
	}
	if _, err := trees.Open(ScopeName("a", 2)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opening a leaf of it: %v", err)
	}
	if names, err := trees.List(); err != nil || !slices.Equal(names, []string{LeafName("a", 1)}) {
		t.Errorf("leaves are %q, %v", names, err)
	}
	if _, err := trees.Make(ScopeName("a", 3)); !errors.Is(err, ErrReplaced) {
		t.Errorf("making a leaf in it: %v", err)
	}
}

// TestSettle: a wrapper begins in the leaf itself, where systemd can take it,
// and ends up where every wrapper is.
func TestSettle(t *testing.T) {
	t.Parallel()
	slice := slice1(t)
	l := make1(t, slice, ScopeName("a", 1))
	c := inScope(t, l)
	if at, err := slice.PathOf(c.Process.Pid); at != l.Path() || err != nil {
		t.Fatalf("it begins in %q, %v", at, err)
	}
	if err := l.Settle(c.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if at, err := slice.PathOf(c.Process.Pid); at != l.WrapPath() || err != nil {
		t.Errorf("it is in %q, %v", at, err)
	}
	if managed, err := l.Managed(); managed || err != nil {
		t.Errorf("a leaf that systemd has not marked is managed: %v, %v", managed, err)
	}
	within(t, l, "sleep", "1000")
	if err := errors.Join(l.Kill(), l.WaitEmpty(bound(t))); err != nil {
		t.Fatal(err)
	}
	if l.AwaitRemoval(bound(t)) {
		t.Error("systemd is waited for")
	}
	if err := l.Remove(bound(t)); err != nil {
		t.Error(err)
	}
}

// TestAwaitRemoval: of a scope that has ended only systemd removes the
// directory, unless it does not.
func TestAwaitRemoval(t *testing.T) {
	t.Parallel()
	slice := slice1(t)
	mark := func(l *Leaf) {
		t.Helper()
		if err := unix.Setxattr(l.Path(), "user.delegate", []byte("1"), 0); err != nil {
			t.Skipf("needs extended attributes of cgroups: %v", err)
		}
	}
	l := make1(t, slice, ScopeName("a", 1))
	mark(l)
	if managed, err := l.Managed(); !managed || err != nil {
		t.Errorf("a marked leaf is not managed: %v", err)
	}
	c := inScope(t, l)
	if l.AwaitRemoval(bound(t)) {
		t.Error("a leaf that is not empty is overdue")
	}
	c.Process.Kill()
	c.Wait()
	if !l.AwaitRemoval(bound(t)) {
		t.Error("a leaf that nobody removes is not overdue")
	}
	go func() { // ends with the test: the wait is for it
		for _, dir := range []string{l.WrapPath(), l.WorkPath(), l.Path()} {
			os.Remove(dir)
		}
	}()
	if l.AwaitRemoval(bound(t)) {
		t.Error("a leaf that was removed is overdue")
	}
	if _, err := slice.Open(l.Name()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opening it: %v", err)
	}
}

// TestRemovedMeanwhile: whoever asks while another removes a leaf hears that
// nothing is in it, or that it is gone, and never anything else: the files go
// before the directory.
func TestRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	tree := base(t)
	for g := range uint64(300) {
		l := make1(t, tree, LeafName("a", g+1))
		var asking sync.WaitGroup
		for range 4 {
			asking.Go(func() {
				for {
					if _, err := l.Populated(); errors.Is(err, fs.ErrNotExist) {
						return
					} else if err != nil {
						t.Errorf("generation %d: %v", g+1, err)
						return
					}
				}
			})
		}
		if err := l.Remove(bound(t)); err != nil {
			t.Error(err)
		}
		asking.Wait()
	}
}

// TestMark: a slice belongs to the host whose sessions are in it.
func TestMark(t *testing.T) {
	t.Parallel()
	slice := slice1(t)
	if before, mine, err := slice.Mark("one"); before != "" || !mine || err != nil {
		t.Fatalf("a new slice: %q, %v, %v", before, mine, err)
	}
	if before, mine, err := slice.Mark("one"); before != "one" || !mine || err != nil {
		t.Errorf("its own slice: %q, %v, %v", before, mine, err)
	}
	l := make1(t, slice, ScopeName("a", 1))
	if before, mine, err := slice.Mark("two"); before != "one" || mine || err != nil {
		t.Errorf("a slice with another's leaf: %q, %v, %v", before, mine, err)
	}
	if err := l.Remove(bound(t)); err != nil {
		t.Fatal(err)
	}
	if before, mine, err := slice.Mark("two"); before != "one" || !mine || err != nil {
		t.Errorf("a slice that another has left: %q, %v, %v", before, mine, err)
	}
}
