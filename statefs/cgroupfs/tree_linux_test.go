package cgroupfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// base opens a tree of the test's own and removes it, whatever is left in it included, at the end.
func base(t testing.TB) *Tree {
	t.Helper()
	tree, err := Open("", "cgroupfs-test-"+strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())))
	if err != nil {
		t.Fatal(err)
	}
	if tree.Mode() == None {
		t.Skipf("no usable cgroup v2 tree: %s", tree.Reason())
	}
	t.Cleanup(func() {
		names, err := tree.List()
		if err != nil {
			t.Error(err)
		}
		for _, n := range names {
			if l, err := tree.Open(n); err == nil {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				if err := errors.Join(l.Kill(), l.WaitEmpty(ctx), l.Remove(ctx)); err != nil {
					t.Error(err)
				}
				cancel()
			}
		}
		if err := errors.Join(tree.Remove(), tree.Close()); err != nil {
			t.Error(err)
		}
	})
	return tree
}

func make1(t testing.TB, tree *Tree, name string) *Leaf {
	t.Helper()
	l, err := tree.Make(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// within starts a command inside work; it is killed and reaped at the end of the test.
func within(t testing.TB, l *Leaf, argv ...string) *exec.Cmd {
	t.Helper()
	dir, err := l.OpenWork()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	c := exec.Command(argv[0], argv[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Setsid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

func bound(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

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
	if pids, err := l.WorkProcs(); err != nil || len(pids) != 1 || pids[0] != c.Process.Pid {
		t.Fatalf("work holds %v, %v", pids, err)
	}
	if leaf, ok, err := tree.LeafOf(c.Process.Pid); leaf != name || !ok || err != nil {
		t.Fatalf("LeafOf: %q %v %v", leaf, ok, err)
	}
	if err := l.KillWork(); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitEmpty(bound(t)); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(bound(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Populated(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("removed leaf: %v", err)
	}
	if _, err := os.Lstat(l.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := l.Remove(bound(t)); err != nil {
		t.Fatalf("second removal: %v", err)
	}
}
