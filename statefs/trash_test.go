package statefs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newState opens a new state directory in dir, or in a temporary one.
func newState(t testing.TB, dir string) *Dir {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	return mustOpen(t, filepath.Join(dir, "state"))
}

// workspace makes a workspace with some content.
func workspace(t testing.TB, root, id string) string {
	t.Helper()
	path, err := MakeWorkspace(root, id, uint32(os.Geteuid()), uint32(os.Getegid()))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"README", ".git/HEAD", ".git/objects/aa/bb", "src/a/b/c.go"} {
		writeAll(t, filepath.Join(path, f))
	}
	return path
}

func writeAll(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mustPut(t testing.TB, d *Dir, path, name string) {
	t.Helper()
	if err := pending(func() error { return d.Trash().Put(context.Background(), path, name) }); err != nil {
		t.Fatal(err)
	}
}

func mustPurge(t testing.TB, d *Dir, name string) {
	t.Helper()
	if err := pending(func() error { return d.Trash().Purge(context.Background(), name) }); err != nil {
		t.Fatal(err)
	}
}

// pending repeats call while another mount namespace has a mount there: any
// process of this machine that enters a new one takes copies of the mounts
// that other tests have at that moment.
func pending(call func() error) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := call()
		var me *MountedError
		if !errors.As(err, &me) || me.PID == 0 || time.Now().After(deadline) {
			return err
		}
	}
}

func wantList(t testing.TB, d *Dir, want ...string) {
	t.Helper()
	got, err := d.Trash().List()
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("trash: %q, %v; want %q", got, err, want)
	}
}

func gone(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v", path, err)
	}
}

// precious makes a directory that must survive, and returns the check.
func precious(t testing.TB) (dir string, check func()) {
	t.Helper()
	dir = t.TempDir()
	writeAll(t, filepath.Join(dir, "keep", "me"))
	return dir, func() {
		t.Helper()
		if _, err := os.Stat(filepath.Join(dir, "keep", "me")); err != nil {
			t.Errorf("precious data is lost: %v", err)
		}
	}
}

func TestTrash(t *testing.T) {
	t.Parallel()
	d := newState(t, "")
	ws := workspace(t, d.Workspaces(), "s1")
	if _, err := d.MakeGenerationDir("s1", 1); err != nil {
		t.Fatal(err)
	}
	wantList(t, d)
	for range 2 { // the second is a repetition after a crash
		mustPut(t, d, ws, "s1.workspace")
		mustPut(t, d, d.SessionDir("s1"), "s1.session")
	}
	gone(t, ws)
	gone(t, d.SessionDir("s1"))
	wantList(t, d, "s1.session", "s1.workspace")
	for range 2 {
		mustPurge(t, d, "s1.workspace")
	}
	wantList(t, d, "s1.session")
	if err := d.Trash().Empty(context.Background()); err != nil {
		t.Error(err)
	}
	wantList(t, d)
	if err := d.Trash().Empty(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestTrashRefuses(t *testing.T) {
	t.Parallel()
	d := newState(t, "")
	ws := workspace(t, d.Workspaces(), "s1")
	victim, check := precious(t)
	defer check()
	if err := errors.Join(
		os.Symlink(victim, filepath.Join(d.Workspaces(), "link")),
		os.Symlink(filepath.Dir(victim), filepath.Join(d.Workspaces(), "up")),
		os.WriteFile(filepath.Join(d.Workspaces(), "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	put := func(path, name string, want error) {
		t.Helper()
		if err := d.Trash().Put(context.Background(), path, name); !errors.Is(err, want) {
			t.Errorf("Put(%q, %q): %v, want %v", path, name, err, want)
		}
	}
	for _, path := range []string{
		"", "/", victim, d.Path(), d.Workspaces(), d.Workspaces() + "/", d.Workspaces() + "/../journal",
		d.Workspaces() + "/s1/", d.Workspaces() + "//s1", d.Journal(), filepath.Join(d.Path(), "lock"), filepath.Join(d.Path(), "trash", "x"),
	} {
		put(path, "n", ErrOutside)
	}
	for _, name := range []string{"", ".", "..", "a/b", ".tmp", strings.Repeat("x", 256)} {
		put(ws, name, ErrName)
		if err := d.Trash().Purge(context.Background(), name); !errors.Is(err, ErrName) {
			t.Errorf("Purge(%q): %v", name, err)
		}
	}
	put(d.WorkspaceDir("none"), "n", fs.ErrNotExist)
	put(filepath.Join(d.WorkspaceDir("none"), "sub"), "n", fs.ErrNotExist)
	put(d.WorkspaceDir("link"), "n", ErrUnfit)
	put(d.WorkspaceDir("file"), "n", ErrUnfit)
	put(filepath.Join(d.WorkspaceDir("up"), filepath.Base(victim)), "n", syscall.ENOTDIR)
	mustPut(t, d, ws, "n")
	put(workspace(t, d.Workspaces(), "s1"), "n", fs.ErrExist)
	wantList(t, d, "n")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.Trash().Put(ctx, ws, "m"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A tree of everything that a file system holds, and what it points to stays.
func TestPurgeEverything(t *testing.T) {
	t.Parallel()
	d := newState(t, "")
	ws := workspace(t, d.Workspaces(), "s1")
	victim, check := precious(t)
	in := func(name string) string { return filepath.Join(ws, name) }
	if err := errors.Join(
		os.Symlink(victim, in("link")), os.Symlink("/", in("root")), os.Symlink("..", in("dotdot")),
		os.Symlink("nowhere", in("dangling")), os.Link(filepath.Join(victim, "keep", "me"), in("hard")),
		syscall.Mkfifo(in("fifo"), 0), os.Mkdir(in("empty"), 0), os.Mkdir(in("-rf"), 0o700),
		os.WriteFile(in("new\nline"), nil, 0), os.WriteFile(in("\xff\xfe"), nil, 0o600),
		os.WriteFile(in(strings.Repeat("n", 255)), nil, 0o600), os.WriteFile(in("*"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("%s/sock", procWorkspace(t, ws))}); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := unix.Mknod(in("dev"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
			t.Log("no device node:", err)
		}
	}
	mustPut(t, d, ws, "n")
	mustPurge(t, d, "n")
	wantList(t, d)
	check()
}

// Thousands of levels: deeper than a path, a stack of descriptors or PATH_MAX
// allows.
func TestPurgeDeep(t *testing.T) {
	t.Parallel()
	d := newState(t, "")
	ws := workspace(t, d.Workspaces(), "s1")
	const levels = 3000
	fd, err := unix.Open(ws, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for i := 0; i < levels && err == nil; i++ {
		if err = unix.Mkdirat(fd, "d", 0o700); err != nil {
			break
		}
		var next int
		if next, err = unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			break
		}
		if i%100 == 0 {
			var f int
			if f, err = unix.Openat(fd, "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600); err == nil {
				err = unix.Close(f)
			}
		}
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	if err != nil {
		t.Fatal(err)
	}
	mustPut(t, d, ws, "deep")
	most := 0
	r := &remover{ctx: context.Background()}
	trash, err := os.Open(filepath.Join(d.Path(), "trash"))
	if err != nil {
		t.Fatal(err)
	}
	defer trash.Close()
	if r.top, err = r.enter(int(trash.Fd()), "deep"); err != nil {
		t.Fatal(err)
	}
	err = r.empty(r.top, int(trash.Fd()), "deep", 0)
	unix.Close(r.top)
	most = len(r.buffers)
	if err != nil || r.failed != nil {
		t.Fatal(err, r.failed)
	}
	if most > flatDepth+2 {
		t.Errorf("went %d levels deep", most)
	}
	wantList(t, d)
}

// case T73
func TestTrashMount(t *testing.T) {
	t.Parallel()
	d := newState(t, "")
	ws := workspace(t, d.Workspaces(), "s1")
	victim, check := precious(t)
	at := filepath.Join(ws, "src", "a", "b")
	mount(t, victim, at, "", unix.MS_BIND, "")
	wantMounted := func(err error, point string) {
		t.Helper()
		var me *MountedError
		if !errors.As(err, &me) || me.MountPoint != point || me.PID != 0 || !strings.Contains(err.Error(), point) {
			t.Errorf("err = %v, want the mount %q", err, point)
		}
		check()
	}
	wantMounted(d.Trash().Put(context.Background(), ws, "n"), at)
	if _, err := os.Stat(filepath.Join(ws, "README")); err != nil {
		t.Errorf("a refused Put changed something: %v", err)
	}
	unmount(t, at)
	mustPut(t, d, ws, "n")

	// Mounted after the rename: Purge refuses before it deletes anything.
	moved := filepath.Join(d.Path(), "trash", "n")
	at = filepath.Join(moved, "src", "a", "b")
	mount(t, victim, at, "", unix.MS_BIND, "")
	wantMounted(d.Trash().Purge(context.Background(), "n"), at)
	if _, err := os.Stat(filepath.Join(moved, "README")); err != nil {
		t.Errorf("a refused Purge changed something: %v", err)
	}
	wantMounted(d.Trash().Empty(context.Background()), at)

	// Mounted after the last look at the table: the walk itself stops there,
	// and deletes everything else.
	trash, err := os.Open(filepath.Dir(moved))
	if err != nil {
		t.Fatal(err)
	}
	defer trash.Close()
	wantMounted(removeTree(context.Background(), int(trash.Fd()), "n"), at)
	if got := names(t, moved); !slices.Equal(got, []string{"src"}) {
		t.Errorf("left: %v", got)
	}
	unmount(t, at)
	mustPurge(t, d, "n")
	wantList(t, d)
	check()
}

// A single file can be a mount point too, and so can the tree itself. case T73
func TestTrashMountOfFileAndTree(t *testing.T) {
	t.Parallel()
	d := newState(t, "")
	ws := workspace(t, d.Workspaces(), "s1")
	victim, check := precious(t)
	file := filepath.Join(ws, "README")
	mount(t, filepath.Join(victim, "keep", "me"), file, "", unix.MS_BIND, "")
	var me *MountedError
	if err := d.Trash().Put(context.Background(), ws, "n"); !errors.As(err, &me) || me.MountPoint != file {
		t.Errorf("a file: %v", err)
	}
	trash, err := os.Open(d.Workspaces())
	if err != nil {
		t.Fatal(err)
	}
	defer trash.Close()
	if err := removeTree(context.Background(), int(trash.Fd()), "s1"); !errors.As(err, &me) || me.MountPoint != file {
		t.Errorf("a file, in the walk: %v", err)
	}
	check()
	unmount(t, file)
	mount(t, victim, ws, "", unix.MS_BIND, "")
	if err := d.Trash().Put(context.Background(), ws, "n"); !errors.As(err, &me) || me.MountPoint != ws {
		t.Errorf("the tree: %v", err)
	}
	if err := removeTree(context.Background(), int(trash.Fd()), "s1"); !errors.As(err, &me) || me.MountPoint != ws {
		t.Errorf("the tree, in the walk: %v", err)
	}
	check()
}

// inNamespace runs a shell script in a mount namespace of its own, until the
// test ends or stop is called. The script prints "ready" and waits for input.
func inNamespace(t *testing.T, script string) (pid int, stop func()) {
	t.Helper()
	needRoot(t)
	cmd := exec.Command("/bin/sh", "-ec", script+"\necho ready; read line")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("needs mount namespaces: %v", err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			in.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(stop)
	ready := make([]byte, 6)
	if n, err := out.Read(ready); string(ready[:n]) != "ready\n" {
		t.Fatalf("namespace helper: %q, %v", ready[:n], err)
	}
	return cmd.Process.Pid, stop
}

// A mount that only another namespace has: refused while that lives, done
// after. The second script sees the workspace under another name, as a
// sandbox does, and has it mounted over there. case T74
func TestTrashMountInNamespace(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"same path":  `mount -t tmpfs berth-test %[1]s/src`,
		"other path": `mount --bind %[1]s %[2]s; mount -t tmpfs berth-test %[2]s/src`,
		"on its top": `mount -t tmpfs berth-test %[1]s`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newState(t, "")
			ws := workspace(t, d.Workspaces(), "s1")
			elsewhere := t.TempDir()
			pid, stop := inNamespace(t, fmt.Sprintf(script, ws, elsewhere))
			err := d.Trash().Put(context.Background(), ws, "n")
			var me *MountedError
			if !errors.As(err, &me) || me.PID != pid || !strings.Contains(err.Error(), fmt.Sprintf("process %d", pid)) {
				t.Errorf("err = %v, want the mount in process %d", err, pid)
			}
			t.Log(err)
			stop()
			mustPut(t, d, ws, "n")
			mustPurge(t, d, "n")
			wantList(t, d)
		})
	}
}

// A namespace that merely has copies of our mounts, or shows the workspace
// somewhere, keeps nothing.
func TestTrashNamespaceWithoutMounts(t *testing.T) {
	t.Parallel()
	d := newState(t, "")
	ws := workspace(t, d.Workspaces(), "s1")
	inNamespace(t, fmt.Sprintf("mount --bind %s %s", ws, t.TempDir()))
	mustPut(t, d, ws, "n")
	mustPurge(t, d, "n")
	wantList(t, d)
}

// procWorkspace is a short name of dir, for a socket path.
func procWorkspace(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return procFD(int(f.Fd()))
}
