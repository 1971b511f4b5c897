package statefs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// loopKinds are the file systems that the trash is tried on.
var loopKinds = map[string]struct {
	bytes   int64
	options string
	mkfs    []string
}{
	"ext4":      {32 << 20, "rw", []string{"mkfs.ext4", "-q"}},
	"ext4-few":  {16 << 20, "rw", []string{"mkfs.ext4", "-q", "-N", "64"}},
	"xfs":       {320 << 20, "rw", []string{"mkfs.xfs", "-q"}},
	"ext4-bare": {32 << 20, "rw", []string{"mkfs.ext4", "-q", "-O", "^has_journal,^filetype"}}, // entries without a type
}

// A whole life on each file system, and again when it is full to the last
// byte and the last inode. case T45, case T70
func TestTrashFileSystems(t *testing.T) {
	t.Parallel()
	for name, kind := range loopKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := mountLoop(t, kind.bytes, kind.options, kind.mkfs...)
			d := newState(t, dir)
			ws := workspace(t, d.Workspaces(), "s1")
			other := workspace(t, d.Workspaces(), "s2")
			fillDisk(t, dir)
			fillInodes(t, filepath.Join(ws, "many"))
			mustPut(t, d, ws, "n")
			mustPurge(t, d, "n")
			wantList(t, d)
			mustPut(t, d, other, "m")
			if err := d.Trash().Empty(context.Background()); err != nil {
				t.Error(err)
			}
			wantList(t, d)
			mustClose(t, d)
		})
	}
}

// fillInodes makes empty files until there is no inode or no room for a name.
func fillInodes(t *testing.T, dir string) {
	t.Helper()
	err := os.Mkdir(dir, 0o700)
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600)
		if i == 30_000 {
			return // dynamic inodes, and there is still room: full enough
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

// Workspaces on a file system of their own have a trash of their own, found
// again after a restart; when that file system is not there, nothing that is
// missing is taken for deleted. case T68, case T73
func TestTrashOfAnotherFileSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := newState(t, dir)
	own := d.Workspaces()
	extra := filepath.Join(dir, "extra")
	if err := os.Mkdir(extra, 0o755); err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)
	mount(t, "berth-test", own, "tmpfs", 0, "mode=711")
	mount(t, "berth-test", extra, "tmpfs", 0, "mode=755")
	d = newState(t, dir)
	if err := d.Trash().AddRoot(extra); err != nil {
		t.Fatal(err)
	}
	a, b := workspace(t, own, "a"), workspace(t, extra, "b")
	mustPut(t, d, a, "a.ws")
	mustPut(t, d, b, "b.ws")
	mustPut(t, d, b, "b.ws")
	wantList(t, d, "a.ws", "b.ws")
	side := filepath.Join(own, ".berth-trash-"+d.HostID()[:12])
	wantMode(t, side, 0o700)
	if got := names(t, side); len(got) != 1 {
		t.Errorf("%s: %v", side, got)
	}
	if err := d.Trash().Put(context.Background(), side, "x"); !errors.Is(err, ErrOutside) {
		t.Errorf("the trash into the trash: %v", err)
	}
	mustClose(t, d)

	d = newState(t, dir)
	wantList(t, d, "a.ws") // extra is not configured any more: left alone
	if err := d.Trash().AddRoot(extra); err != nil {
		t.Fatal(err)
	}
	c := workspace(t, extra, "c")
	if err := d.Trash().Empty(context.Background()); err != nil {
		t.Error(err)
	}
	wantList(t, d)

	lostFileSystem(t, d, extra, c)
	mustPut(t, d, workspace(t, own, "still"), "still.ws") // the other root goes on
}

// lostFileSystem unmounts the root extra, which had the workspace c.
func lostFileSystem(t *testing.T, d *Dir, extra, c string) {
	t.Helper()
	unmount(t, extra)
	if err := d.Trash().Put(context.Background(), c, "c.ws"); !errors.Is(err, ErrRootChanged) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its file system is gone: %v", err)
	}
	if _, err := d.Trash().List(); !errors.Is(err, ErrRootChanged) {
		t.Errorf("List: %v", err)
	}
	if err := d.Trash().Purge(context.Background(), "c.ws"); !errors.Is(err, ErrRootChanged) {
		t.Errorf("Purge: %v", err)
	}
}

func TestAddRootRefuses(t *testing.T) {
	t.Parallel()
	d := newState(t, "")
	open, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Chmod(open, 0o777), os.Symlink(open, link)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{open: ErrUnfit, link: ErrUnfit, "x": ErrUnfit, open + "/none": fs.ErrNotExist} {
		if err := d.Trash().AddRoot(path); !errors.Is(err, want) {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// A workspace of another quota project cannot be renamed into the trash of
// the state directory's project: it goes to one beside it. case T72
func TestTrashOfAnotherProject(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("chattr"); err != nil {
		t.Skip("needs chattr")
	}
	dir := mountLoop(t, 320<<20, "rw", "mkfs.xfs", "-q")
	d := newState(t, dir)
	ws := workspace(t, d.Workspaces(), "s1")
	run(t, "chattr", "-p", "5", "+P", filepath.Join(d.Path(), "trash"))
	run(t, "chattr", "-p", "7", ws)
	mustPut(t, d, ws, "n")
	wantList(t, d, "n")
	if got := names(t, filepath.Join(d.Path(), "trash")); len(got) != 0 {
		t.Skipf("needs a kernel that keeps quota projects apart: %v", got)
	}
	mustClose(t, d)
	d = newState(t, dir)
	wantList(t, d, "n")
	mustPurge(t, d, "n")
	wantList(t, d)
}

// manyFiles makes files in directories of 100.
func manyFiles(t testing.TB, dir string, files int) {
	t.Helper()
	for i := range files {
		sub := filepath.Join(dir, fmt.Sprintf("d%d", i/100))
		if i%100 == 0 {
			if err := os.Mkdir(sub, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("file-%d", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// cancelAfter is a context that is cancelled at the n-th look at it.
type cancelAfter struct {
	context.Context
	n int
}

func (c *cancelAfter) Err() error {
	if c.n--; c.n < 0 {
		return context.Canceled
	}
	return nil
}

// Cancelled anywhere, it goes on where it was.
func TestPurgeCancelled(t *testing.T) {
	t.Parallel()
	d := newState(t, "")
	ws := workspace(t, d.Workspaces(), "s1")
	manyFiles(t, ws, 2000)
	mustPut(t, d, ws, "n")
	trash, err := os.Open(filepath.Join(d.Path(), "trash"))
	if err != nil {
		t.Fatal(err)
	}
	defer trash.Close()
	calls := 0
	for {
		calls++
		err := removeTree(&cancelAfter{context.Background(), 3}, int(trash.Fd()), "n")
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) && !errors.Is(err, context.Cause(context.Background())) {
			t.Fatal(err)
		}
		if calls > 1000 {
			t.Fatal("no progress")
		}
	}
	if calls < 5 {
		t.Errorf("%d calls sufficed", calls)
	}
	wantList(t, d)
}

// A process that has not ended goes on writing: Purge does not finish while it
// does, does not hang, and finishes afterwards.
func TestPurgeWhileWritten(t *testing.T) {
	t.Parallel()
	d := newState(t, "")
	ws := workspace(t, d.Workspaces(), "s1")
	f, err := os.Open(ws)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mustPut(t, d, ws, "n")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // ended below
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = os.WriteFile(fmt.Sprintf("%s/%d", procFD(int(f.Fd())), i%50), nil, 0o600)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := d.Trash().Purge(ctx, "n"); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("while it is written to: %v", err)
	}
	close(stop)
	<-stopped
	mustPurge(t, d, "n")
	wantList(t, d)
}

// kill -9 anywhere in it: the next daemon finds the rest and deletes it, and
// nothing else. case T51
func TestEmptyKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := newState(t, dir)
	kept := workspace(t, d.Workspaces(), "kept")
	ws := workspace(t, d.Workspaces(), "s1")
	manyFiles(t, ws, 10_000)
	mustPut(t, d, ws, "n")
	mustClose(t, d)
	kills := 0
	for kills < 12 && emptyInProcess(t, dir, time.Duration(1+3*kills)*time.Millisecond) {
		kills++
	}
	t.Logf("killed %d times", kills)
	d = newState(t, dir)
	if err := d.Trash().Empty(context.Background()); err != nil {
		t.Error(err)
	}
	wantList(t, d)
	if _, err := os.Stat(filepath.Join(kept, "README")); err != nil {
		t.Error(err)
	}
}

// emptyInProcess empties the trash in another process and kills that after a
// time, counted from when it begins to delete. False when it had finished.
func emptyInProcess(t *testing.T, dir string, after time.Duration) (killed bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperEmpty$")
	cmd.Env = append(os.Environ(), "STATEFS_TEST_HELPER=empty", "STATEFS_TEST_DIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Errorf("helper: %q, %v", line, err)
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	return cmd.Wait() != nil
}

func TestHelperEmpty(t *testing.T) {
	if os.Getenv("STATEFS_TEST_HELPER") != "empty" {
		t.Skip("is a helper process of TestEmptyKilled")
	}
	d := newState(t, os.Getenv("STATEFS_TEST_DIR"))
	fmt.Println("open")
	if err := d.Trash().Empty(context.Background()); err != nil {
		t.Fatal(err)
	}
	left, err := d.Trash().List()
	if err != nil || len(left) != 0 {
		t.Fatalf("%v, %v", left, err)
	}
}

// What root has made immutable or append-only is not deleted, anything else
// is; once the attribute is taken away, the deletion goes on.
func TestPurgeAttributes(t *testing.T) {
	t.Parallel()
	needRoot(t)
	if _, err := exec.LookPath("chattr"); err != nil {
		t.Skip("needs chattr")
	}
	d := newState(t, "")
	ws := workspace(t, d.Workspaces(), "s1")
	if out, err := exec.Command("chattr", "+i", ws).CombinedOutput(); err != nil {
		t.Skipf("needs a file system with attributes: %s", out)
	}
	wantLocked(t, d.Trash().Put(context.Background(), ws, "n"), ws, "i")
	run(t, "chattr", "-i", ws)
	tree := filepath.Join(d.Path(), "trash", "n")
	for _, c := range []struct{ path, attribute string }{
		{"README", "i"}, {".git/HEAD", "a"}, {"src/a/b", "i"}, {"src", "a"},
	} {
		run(t, "chattr", "+"+c.attribute, filepath.Join(ws, c.path))
		mustPut(t, d, ws, "n")
		t.Cleanup(func() { _ = exec.Command("chattr", "-i", "-a", filepath.Join(tree, c.path)).Run() })
		wantLocked(t, d.Trash().Purge(context.Background(), "n"), filepath.Join(tree, c.path), c.attribute)
		if c.path == "README" { // everything else is gone
			if got := names(t, tree); len(got) != 1 {
				t.Errorf("left: %v", got)
			}
		}
		run(t, "chattr", "-"+c.attribute, filepath.Join(tree, c.path))
		mustPurge(t, d, "n")
		wantList(t, d)
		ws = workspace(t, d.Workspaces(), "s1")
	}
}

func wantLocked(t *testing.T, err error, path, attribute string) {
	t.Helper()
	var locked *LockedError
	if !errors.As(err, &locked) || locked.Path != path || locked.Attribute != attribute || !errors.Is(err, syscall.EPERM) {
		t.Errorf("%q with attribute %s: %v", path, attribute, err)
	}
}

// As an ordinary user: directories without write, search or read permission.
func TestPurgeUnprivileged(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		purgeUnprivileged(t, t.TempDir())
		return
	}
	dir := t.TempDir()
	const nobody = 65534
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := errors.Join(os.Chown(d, nobody, nobody), os.Chmod(d, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	// The test binary lies in a directory that only root can enter; its open
	// descriptor is inherited.
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	cmd := exec.Command("/proc/self/fd/3", "-test.run=^TestHelperUnprivileged$", "-test.v")
	cmd.ExtraFiles = []*os.File{self}
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "STATEFS_TEST_HELPER=unprivileged", "STATEFS_TEST_DIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestHelperUnprivileged") {
		t.Errorf("as uid %d: %v: %s", nobody, err, out)
	}
}

func TestHelperUnprivileged(t *testing.T) {
	if os.Getenv("STATEFS_TEST_HELPER") != "unprivileged" {
		t.Skip("is a helper process of TestPurgeUnprivileged")
	}
	purgeUnprivileged(t, os.Getenv("STATEFS_TEST_DIR"))
}

func purgeUnprivileged(t *testing.T, dir string) {
	t.Helper()
	d := newState(t, dir)
	ws := workspace(t, d.Workspaces(), "s1")
	for _, c := range []struct {
		path string
		mode fs.FileMode
	}{{"src/a/b", 0o555}, {"src/a", 0}, {"src", 0o100}, {".git/objects", 0o400}, {"", 0o500}} {
		if err := os.Chmod(filepath.Join(ws, c.path), c.mode); err != nil {
			t.Fatal(err)
		}
	}
	mustPut(t, d, ws, "n")
	mustPurge(t, d, "n")
	wantList(t, d)
	mustClose(t, d)
}

// BenchmarkPurge deletes 100,000 files, in turn with rm -rf: the machine may
// have other work. rm/purge above 1 is faster than rm.
func BenchmarkPurge(b *testing.B) {
	d := newState(b, "")
	tree := func() string {
		ws := workspace(b, d.Workspaces(), "s1")
		manyFiles(b, ws, 100_000)
		mustPut(b, d, ws, "n")
		return filepath.Join(d.Path(), "trash", "n")
	}
	var purge, rm time.Duration
	for b.Loop() {
		b.StopTimer()
		path := tree()
		began := time.Now()
		run(b, "rm", "-rf", path)
		rm += time.Since(began)
		tree()
		b.StartTimer()
		began = time.Now()
		mustPurge(b, d, "n")
		purge += time.Since(began)
	}
	b.ReportMetric(float64(rm)/float64(purge), "rm/purge")
}

func BenchmarkPut(b *testing.B) {
	d := newState(b, "")
	for b.Loop() {
		b.StopTimer()
		ws := workspace(b, d.Workspaces(), "s1")
		b.StartTimer()
		mustPut(b, d, ws, "n")
		b.StopTimer()
		mustPurge(b, d, "n")
		b.StartTimer()
	}
}
