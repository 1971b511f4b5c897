package cgroupfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const nobody = 65534

func asNobody() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

func ownMounts() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
}

func privateMounts(t *testing.T) {
	t.Helper()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
}

func TestOpenIsIdempotent(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	again, err := Open("", filepath.Base(tree.Path()))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.Mode() != tree.Mode() || again.Inode() != tree.Inode() || again.Path() != tree.Path() || again.Reason() != "" {
		t.Fatalf("%+v", again)
	}
	if found, err := again.Open(l.Name()); err != nil || found.Inode() != l.Inode() {
		t.Fatalf("%+v, %v", found, err)
	}
	if _, mode := Detect(); mode != tree.Mode() {
		t.Fatalf("detected %v, opened %v", mode, tree.Mode())
	}
}

func TestAttach(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	c := within(t, l, "sleep", "600")
	beside, err := Attach(tree.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer beside.Close()
	found, err := beside.Open(l.Name())
	if err != nil || beside.Inode() != tree.Inode() || beside.Mode() != tree.Mode() {
		t.Fatalf("%+v, %v", beside, err)
	}
	if p, err := found.WorkPopulated(); !p || err != nil {
		t.Fatalf("%v, %v", p, err)
	}
	if p, err := beside.PathOf(c.Process.Pid); p != l.WorkPath() || err != nil {
		t.Fatalf("%q, %v", p, err)
	}
	if _, err := beside.PathOf(1); err != nil && !errors.Is(err, ErrOutside) {
		t.Fatal(err)
	}
	for path, want := range map[string]error{tree.Path() + "-none": fs.ErrNotExist, "/var": nil, filepath.Dir(tree.Path()) + "/cgroup.procs": nil} {
		if _, err := Attach(path); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestProbesAreSwept(t *testing.T) {
	t.Parallel()
	tree := base(t)
	stale := filepath.Join(tree.Path(), probePrefix+"stale")
	if err := os.Mkdir(stale, 0o755); err != nil {
		t.Fatal(err)
	}
	if names, err := tree.List(); len(names) != 0 || err != nil {
		t.Fatalf("%v, %v", names, err)
	}
	again, err := Open("", filepath.Base(tree.Path()))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := os.Stat(stale); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

// An ordinary user without a delegated cgroup gets no tree, and learns why.
func TestOpenAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	if !inner(t, asNobody()) {
		return
	}
	tree, err := Open("", "cgroupfs-test-user")
	if err != nil {
		t.Fatal(err)
	}
	if tree.Mode() != None || tree.Path() != "" || !strings.Contains(tree.Reason(), "permission denied") {
		t.Fatalf("%v %q: %q", tree.Mode(), tree.Path(), tree.Reason())
	}
	for what, err := range map[string]error{
		"Make": second(tree.Make("a")), "Open": second(tree.Open("a")), "List": second(tree.List()),
	} {
		if !errors.Is(err, ErrUnavailable) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, err := tree.LeafOf(os.Getpid()); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
	if err := errors.Join(tree.Remove(), tree.Close()); err != nil {
		t.Error(err)
	}
}

// A user whose own cgroup was handed over to it, as systemd's Delegate= does, has a full fence below it.
func TestOpenDelegated(t *testing.T) {
	t.Parallel()
	attr := asNobody()
	if os.Getenv(innerEnv) == "" {
		tree := base(t)
		own := filepath.Join(tree.Path(), "delegated")
		if err := os.Mkdir(own, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
			if err := os.Chown(filepath.Join(own, f), nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
		dir, err := os.Open(own)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		attr.UseCgroupFD, attr.CgroupFD = true, int(dir.Fd())
	}
	if !inner(t, attr) {
		return
	}
	tree, err := Open("", "mine")
	if err != nil || tree.Mode() == None {
		t.Fatalf("%+v, %v", tree, err)
	}
	if !strings.HasSuffix(tree.Path(), "/delegated/mine") {
		t.Errorf("base %q", tree.Path())
	}
	l := make1(t, tree, LeafName("s", 1))
	c := within(t, l, "sleep", "600")
	if leaf, ok, err := tree.LeafOf(c.Process.Pid); leaf != l.Name() || !ok || err != nil {
		t.Errorf("%q %v %v", leaf, ok, err)
	}
	if n, err := l.TermWork(bound(t)); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if err := errors.Join(l.Freeze(bound(t)), l.Kill(), l.WaitEmpty(bound(t)), l.Remove(bound(t)), tree.Remove(), tree.Close()); err != nil {
		t.Fatal(err)
	}
}

// A user's service or scope is deep in what was delegated to its manager, which has no processes itself:
// the base is made there, so that it outlives the scope, and gets what controllers there are.
func TestOpenDelegatedAbove(t *testing.T) {
	t.Parallel()
	attr := asNobody()
	if os.Getenv(innerEnv) == "" {
		tree := base(t)
		manager := filepath.Join(tree.Path(), "manager")
		scope := filepath.Join(manager, "app.slice", "tab.scope")
		if err := os.MkdirAll(scope, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{manager, scope} {
			if err := unix.Setxattr(dir, "user.delegate", []byte("1"), 0); err != nil {
				t.Skipf("no attributes of users on cgroups (Linux 5.7): %v", err)
			}
		}
		for _, dir := range []string{manager, filepath.Dir(scope), scope} {
			for _, f := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
				if err := os.Chown(filepath.Join(dir, f), nobody, nobody); err != nil {
					t.Fatal(err)
				}
			}
		}
		dir, err := os.Open(scope)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		attr.UseCgroupFD, attr.CgroupFD = true, int(dir.Fd())
	}
	if !inner(t, attr) {
		return
	}
	tree, err := Open("", "mine")
	if err != nil || tree.Mode() == None {
		t.Fatalf("%+v, %v", tree, err)
	}
	if !strings.HasSuffix(tree.Path(), "/manager/mine") {
		t.Errorf("base %q", tree.Path())
	}
	for procPath, want := range map[string]bool{
		tree.ProcPath(): true, path.Dir(tree.ProcPath()): true, path.Dir(path.Dir(tree.ProcPath())): false,
		tree.ProcPath() + "/removed": true, "/../elsewhere": true,
	} {
		if tree.MayEnter(procPath) != want {
			t.Errorf("may enter %q: %v", procPath, !want)
		}
	}
	make1(t, tree, LeafName("s", 1))
	has := controllers(tree.fd(), "cgroup.controllers")
	for _, c := range wanted {
		if slices.Contains(has, c) != slices.Contains(tree.Controllers(), c) {
			t.Errorf("of %v only %v are handed down", has, tree.Controllers())
		}
	}
	clear1(t, tree)
}

func TestOpenSaysWhyNot(t *testing.T) {
	t.Parallel()
	if !inner(t, ownMounts()) {
		return
	}
	privateMounts(t)
	reasons := func(parent string) string {
		tree, err := Open(parent, ownBase+"none")
		if err != nil || tree.Mode() != None {
			t.Fatalf("%+v, %v", tree, err)
		}
		return tree.Reason()
	}
	mount, mode := Detect()
	if mode == None {
		t.Skip("no cgroup2 mount")
	}
	if r := reasons("/var"); !strings.Contains(r, "not a cgroup2") {
		t.Error(r)
	}
	if r := reasons(mount + "/missing"); !strings.Contains(r, "not a cgroup2") {
		t.Error(r)
	}
	if err := unix.Mount("", mount, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if r := reasons(""); !strings.Contains(r, "read-only") {
		t.Error(r)
	}
	if err := unix.Mount("none", pureMount, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if r := reasons(""); !strings.Contains(r, "no cgroup2") {
		t.Error(r)
	}
}

// case T73: a base that was removed and made anew, or hidden, proves nothing about the leaves it had.
func TestReplacedBaseIsUnknown(t *testing.T) {
	t.Parallel()
	old, err := Open("", ownBase+"replaced")
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if old.Mode() == None {
		t.Skip(old.Reason())
	}
	stale := make1(t, old, LeafName("s", 1))
	if err := errors.Join(stale.Remove(bound(t)), old.Remove()); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		for what, err := range map[string]error{
			"Populated": second(stale.Populated()), "WorkPopulated": second(stale.WorkPopulated()),
			"Procs": second(stale.Procs()), "WorkProcs": second(stale.WorkProcs()), "Frozen": second(stale.Frozen()),
			"Remove": stale.Remove(bound(t)), "Kill": stale.Kill(), "KillWork": stale.KillWork(), "Thaw": stale.Thaw(),
			"Open": second(old.Open(stale.Name())), "List": second(old.List()), "Make": second(old.Make("new")),
		} {
			if !errors.Is(err, ErrReplaced) || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s, %s: %v", when, what, err)
			}
		}
	}
	check("removed")
	if err := os.Mkdir(old.Path(), 0o755); err != nil {
		t.Fatal(err)
	}
	check("replaced")
	if err := old.Remove(); !errors.Is(err, ErrReplaced) {
		t.Errorf("removing a stranger's base: %v", err)
	}
	if err := os.Remove(old.Path()); err != nil {
		t.Fatal(err)
	}
	if err := old.Remove(); err != nil {
		t.Errorf("removing what is gone: %v", err)
	}
}

// case T73: a mount over a part of the tree is an error, never an empty leaf.
func TestMountOverLeafIsUnknown(t *testing.T) {
	t.Parallel()
	if !inner(t, ownMounts()) {
		return
	}
	privateMounts(t)
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	within(t, l, "sleep", "600")
	fake := filepath.Join(t.TempDir(), "events")
	if err := os.WriteFile(fake, []byte("populated 0\nfrozen 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, over := range []struct {
		from, to, kind string
		flags          uintptr
	}{
		{"none", l.Path(), "tmpfs", 0}, {"none", l.WorkPath(), "tmpfs", 0},
		{fake, l.Path() + "/cgroup.events", "", unix.MS_BIND}, {fake, l.WorkPath() + "/cgroup.events", "", unix.MS_BIND},
	} {
		if err := unix.Mount(over.from, over.to, over.kind, over.flags, ""); err != nil {
			t.Fatal(err)
		}
		p, err := l.Populated()
		wp, werr := l.WorkPopulated()
		if err == nil && !p || errors.Is(err, fs.ErrNotExist) || werr == nil && !wp || errors.Is(werr, fs.ErrNotExist) {
			t.Errorf("%s: %v, %v; %v, %v", over.to, p, err, wp, werr)
		}
		short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		if err := l.Remove(short); err == nil {
			t.Errorf("%s: removed", over.to)
		}
		cancel()
		if err := unix.Unmount(over.to, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// Over the base itself the descriptor still sees the truth, and absence is not claimed.
func TestMountOverBaseIsUnknown(t *testing.T) {
	t.Parallel()
	if !inner(t, ownMounts()) {
		return
	}
	privateMounts(t)
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	within(t, l, "sleep", "600")
	if err := unix.Mount("none", tree.Path(), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if p, err := l.Populated(); !p || err != nil {
		t.Errorf("%v, %v", p, err)
	}
	if _, err := tree.Open("never-made"); !errors.Is(err, ErrReplaced) {
		t.Error(err)
	}
	if err := unix.Unmount(tree.Path(), 0); err != nil {
		t.Fatal(err)
	}
}

// case T24: a leaf that may not be looked at is not empty.
func TestForbiddenIsUnknown(t *testing.T) { // not parallel: it sets the environment
	attr := asNobody()
	const env = "CGROUPFS_TEST_BASE"
	if os.Getenv(innerEnv) == "" {
		tree := base(t)
		l := make1(t, tree, LeafName("s", 1))
		within(t, l, "sleep", "600")
		if err := os.Chmod(l.Path(), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv(env, tree.Path())
	}
	if !inner(t, attr) {
		return
	}
	tree, err := Attach(os.Getenv(env))
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	l := &Leaf{tree: tree, name: LeafName("s", 1)}
	for what, err := range map[string]error{
		"Populated": second(l.Populated()), "WorkPopulated": second(l.WorkPopulated()), "Procs": second(l.Procs()),
		"Remove": l.Remove(bound(t)), "Kill": l.Kill(), "KillWork": l.KillWork(),
	} {
		if !errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
