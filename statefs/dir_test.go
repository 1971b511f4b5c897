package statefs

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func mustOpen(t testing.TB, dir string) *Dir {
	t.Helper()
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func mustClose(t testing.TB, d *Dir) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != want {
		t.Errorf("%s has mode %04o, want %04o", path, info.Mode().Perm(), want)
	}
}

func TestOpenMakesLayout(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "state")
	d := mustOpen(t, dir)
	for path, mode := range map[string]fs.FileMode{
		dir: 0o711, d.Journal(): 0o700, d.Sessions(): 0o700, d.Workspaces(): 0o711,
		filepath.Join(dir, "trash"): 0o700, filepath.Join(dir, "lock"): 0o600, filepath.Join(dir, "host.json"): 0o600,
	} {
		wantMode(t, path, mode)
	}
	id := d.HostID()
	if !isHexID(id) || d.Path() != dir {
		t.Errorf("host id %q, path %q", id, d.Path())
	}
	mustClose(t, d)
	// The second time everything is as it was, unfinished files are swept.
	stray := filepath.Join(dir, tempName())
	if err := os.WriteFile(stray, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d = mustOpen(t, dir)
	if d.HostID() != id {
		t.Errorf("host id changed from %s to %s", id, d.HostID())
	}
	if _, err := os.Lstat(stray); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unfinished file: %v", err)
	}
	l, err := ReadLayout(dir)
	if err != nil || l != d.Layout {
		t.Errorf("ReadLayout beside the daemon: %+v, %v; want %+v", l, err, d.Layout)
	}
}

func TestLayoutPaths(t *testing.T) {
	t.Parallel()
	l := Layout{path: "/s", hostID: strings.Repeat("0", 32)}
	for got, want := range map[string]string{
		l.SessionDir("a.b"):              "/s/sessions/a.b",
		l.GenerationDir("a.b", 12):       "/s/sessions/a.b/g12",
		l.GenerationDir("a", ^uint64(0)): "/s/sessions/a/g18446744073709551615",
		l.WorkspaceDir("a"):              "/s/workspaces/a",
		l.Journal():                      "/s/journal",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, id := range []string{"", "..", "a/../../..", "../x", strings.Repeat("x", 500)} {
		got := l.SessionDir(id)
		if filepath.Dir(got) != "/s/sessions" || SafeName(filepath.Base(got)) {
			t.Errorf("%q leads to %q", id, got)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	state := func(t *testing.T) string {
		dir := filepath.Join(t.TempDir(), "state")
		mustClose(t, mustOpen(t, dir))
		return dir
	}
	tests := map[string]struct {
		damage func(t *testing.T, dir string) error
		want   error
	}{
		"state directory open to the group": {func(t *testing.T, dir string) error { return os.Chmod(dir, 0o731) }, ErrUnfit},
		"state directory readable":          {func(t *testing.T, dir string) error { return os.Chmod(dir, 0o755) }, ErrUnfit},
		"journal open":                      {func(t *testing.T, dir string) error { return os.Chmod(filepath.Join(dir, "journal"), 0o750) }, ErrUnfit},
		"workspaces writable":               {func(t *testing.T, dir string) error { return os.Chmod(filepath.Join(dir, "workspaces"), 0o777) }, ErrUnfit},
		"sessions is a link": {func(t *testing.T, dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "sessions")), os.Symlink(t.TempDir(), filepath.Join(dir, "sessions")))
		}, ErrUnfit},
		"trash is a file": {func(t *testing.T, dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "trash")), os.WriteFile(filepath.Join(dir, "trash"), nil, 0o600))
		}, ErrUnfit},
		"lock is a link": {func(t *testing.T, dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "lock")), os.Symlink("/nonexistent", filepath.Join(dir, "lock")))
		}, syscall.ELOOP},
		"host.json empty": {func(t *testing.T, dir string) error { return os.Truncate(filepath.Join(dir, "host.json"), 0) }, ErrHost},
		"host.json without an id": {func(t *testing.T, dir string) error {
			return os.WriteFile(filepath.Join(dir, "host.json"), []byte(`{"machine_id":""}`), 0o600)
		}, ErrHost},
		"host.json gone, sessions there": {func(t *testing.T, dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "host.json")), os.Mkdir(filepath.Join(dir, "sessions", "x"), 0o700))
		}, ErrHost},
		"host.json gone, journal there": {func(t *testing.T, dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "host.json")), os.WriteFile(filepath.Join(dir, "journal", "x"), nil, 0o600))
		}, ErrHost},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := state(t)
			if err := tt.damage(t, dir); err != nil {
				t.Fatal(err)
			}
			d, err := Open(dir)
			if d != nil || !errors.Is(err, tt.want) {
				t.Errorf("err = %v, want %v", err, tt.want)
			}
			t.Log(err)
		})
	}
}

func TestOpenRefusesOtherDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrUnfit) {
		t.Errorf("somebody's directory: %v", err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("it was written to: %v", got)
	}
	for _, path := range []string{"", "state", "./state"} {
		if _, err := Open(path); !errors.Is(err, ErrUnfit) {
			t.Errorf("%q: %v", path, err)
		}
		if _, err := ReadLayout(path); err == nil {
			t.Errorf("ReadLayout(%q) succeeded", path)
		}
	}
	if _, err := ReadLayout(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadLayout of somebody's directory: %v", err)
	}
	if _, err := Open(filepath.Join(dir, "thesis.tex")); err == nil {
		t.Error("a file was opened as a state directory")
	}
}

func TestOpenRefusesOtherOwner(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := filepath.Join(t.TempDir(), "state")
	mustClose(t, mustOpen(t, dir))
	for _, path := range []string{dir, filepath.Join(dir, "trash")} {
		if err := os.Chown(path, 12345, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); !errors.Is(err, ErrUnfit) {
			t.Errorf("%s of another uid: %v", path, err)
		}
		if err := os.Chown(path, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// A crash between mkdir and chmod under a narrow umask leaves a tighter mode;
// a directory made by hand or by mkfs is empty. Neither keeps the daemon down.
func TestOpenRepairs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "lost+found"), 0o700)); err != nil {
		t.Fatal(err)
	}
	mustClose(t, mustOpen(t, dir))
	if err := errors.Join(os.Chmod(dir, 0o700), os.Chmod(filepath.Join(dir, "workspaces"), 0o700), os.Remove(filepath.Join(dir, "trash"))); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, dir)
	wantMode(t, dir, 0o711)
	wantMode(t, filepath.Join(dir, "workspaces"), 0o711)
	wantMode(t, filepath.Join(dir, "trash"), 0o700)
}

func TestOpenReadOnly(t *testing.T) {
	t.Parallel()
	dir := mountTmpfs(t, "")
	state := filepath.Join(dir, "state")
	mustClose(t, mustOpen(t, state))
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{state, filepath.Join(dir, "new")} {
		_, err := Open(path)
		if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := ReadLayout(state); err != nil {
		t.Errorf("ReadLayout: %v", err)
	}
}

// On a full disk a state directory that is there opens.
func TestOpenFull(t *testing.T) {
	t.Parallel()
	dir := mountTmpfs(t, "size=256k")
	state := filepath.Join(dir, "state")
	mustClose(t, mustOpen(t, state))
	fillDisk(t, dir)
	mustOpen(t, state)
}

// fillDisk writes until nothing fits any more.
func fillDisk(t testing.TB, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 1} {
		for {
			if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	d := mustOpen(t, dir)
	_, err := Open(dir)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("(process %d)", os.Getpid())) {
		t.Errorf("second open: %v", err)
	}
	// A child that was being made still has the descriptor.
	child, err := unix.FcntlInt(d.lock.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)
	d = mustOpen(t, dir)
	unix.Close(child)
	if _, err := Open(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("after the child: %v", err)
	}
	mustClose(t, d)
	// The same where the parent was killed instead: the lock comes free soon.
	orphan, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(orphan.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(lockPatience/4, func() { orphan.Close() })
	mustOpen(t, dir)
}

// Whoever took the lock is dead, and a child of it is slow to let go.
func TestLockOfTheDead(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	mustClose(t, mustOpen(t, dir))
	linger := (lockPatience * 3 / 2).Seconds()
	// As a daemon does that is killed while it makes a child, whose program does not come.
	const daemon = `: >"$0"; exec 9<>"$0"; flock -n 9 || exit; echo $$ >&9; sleep "$1" >/dev/null 2>&1 &`
	if out, err := exec.Command("sh", "-c", daemon, filepath.Join(dir, lockName), fmt.Sprint(linger)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	began := time.Now()
	mustOpen(t, dir)
	if waited := time.Since(began); waited < lockPatience {
		t.Errorf("nobody held the lock: it took %v", waited)
	}
}

// Of many that start at once exactly one gets the directory, a new one too.
func TestLockRace(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []*Dir
	for range 16 {
		wg.Go(func() {
			d, err := Open(dir)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, d)
			} else if !errors.Is(err, ErrLocked) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d hold the lock", len(won))
	}
	mustClose(t, won[0])
}

// Another process is named; the lock ends with it, however it ends.
func TestLockOfAnotherProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperHoldLock$")
	cmd.Env = append(os.Environ(), "STATEFS_TEST_HELPER=hold", "STATEFS_TEST_DIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("helper: %q, %v", line, err)
	}
	_, err = Open(dir)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("(process %d)", cmd.Process.Pid)) {
		t.Errorf("err = %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	mustOpen(t, dir)
}

func TestHelperHoldLock(t *testing.T) {
	if os.Getenv("STATEFS_TEST_HELPER") != "hold" {
		t.Skip("is a helper process of TestLockOfAnotherProcess")
	}
	if _, err := Open(os.Getenv("STATEFS_TEST_DIR")); err != nil {
		t.Fatal(err)
	}
	fmt.Println("held")
	select {}
}

// A lock file that somebody removes and a second daemon makes again is not a
// lock on the first one's file.
func TestLockReplaced(t *testing.T) {
	t.Parallel()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	path := filepath.Join(dir.Name(), "lock")
	old, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := lockFile(dir, old); !errors.Is(err, errLockReplaced) {
		t.Errorf("err = %v", err)
	}
}

func TestParseLock(t *testing.T) {
	t.Parallel()
	dev := unix.Mkdev(0xfe, 0x13)
	for line, want := range map[string]int{
		"1: FLOCK  ADVISORY  WRITE 709 fe:13:2883613 0 EOF":    709,
		"1: POSIX  ADVISORY  WRITE 709 fe:13:2883613 0 EOF":    0,
		"1: OFDLCK ADVISORY  WRITE -1 fe:13:2883613 0 EOF":     0,
		"1: FLOCK  ADVISORY  WRITE 709 fe:13:28836 0 EOF":      0,
		"1: FLOCK  ADVISORY  WRITE 709 fe:12:2883613 0 EOF":    0,
		"1: -> FLOCK  ADVISORY  WRITE 710 fe:13:2883613 0 EOF": 0,
		"1: FLOCK  ADVISORY  WRITE 0 fe:13:2883613 0 EOF":      0,
		"1: FLOCK  ADVISORY  WRITE x fe:13:2883613 0 EOF":      0,
		"":     0,
		"junk": 0,
	} {
		if got := parseLock(line, dev, 2883613); got != want {
			t.Errorf("%q: %d, want %d", line, got, want)
		}
	}
}

// machineFile writes a stand-in for a file that tells the machine's identity.
func machineFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "machine-id")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMachine(t *testing.T) {
	t.Parallel()
	const a, b = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
	reopen := func(dir string, sources ...string) (*Dir, error) {
		d, err := open(dir, sources)
		if err == nil {
			err = d.Close()
		}
		return d, err
	}
	dir := filepath.Join(t.TempDir(), "state")
	file := machineFile(t, a+"\n")
	d, err := reopen(dir, file)
	if err != nil || d.MachineSource() != file {
		t.Fatalf("source %q, %v", d.MachineSource(), err)
	}
	id := d.HostID()

	// Another machine; a machine that does not tell any more.
	for _, content := range []string{b, "uninitialized\n", ""} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := reopen(dir, file, machineFile(t, a)); !errors.Is(err, ErrForeign) {
			t.Errorf("machine id %q: %v", content, err)
		}
	}
	// Home again, with a better source beside: that one counts from now on.
	if err := os.WriteFile(file, []byte(a), 0o600); err != nil {
		t.Fatal(err)
	}
	better := machineFile(t, b)
	if d, err = reopen(dir, better, file); err != nil || d.MachineSource() != better || d.HostID() != id {
		t.Fatalf("better source: %+v, %v", d, err)
	}
	if _, err = reopen(dir, machineFile(t, b), file); err != nil {
		t.Errorf("the recorded source is %s: %v", better, err)
	}
	// The documented way to move a directory: the id stays.
	setMachineID(t, dir, "")
	if d, err = reopen(dir, machineFile(t, a)); err != nil || d.HostID() != id {
		t.Errorf("moved on purpose: %+v, %v", d, err)
	}
}

// A machine without any identity works, and says so.
func TestMachineUnknown(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	d, err := open(dir, []string{"/nonexistent/id", machineFile(t, "00000000-0000-0000-0000-000000000000")})
	if err != nil || d.MachineSource() != "" {
		t.Fatalf("%+v, %v", d, err)
	}
	id := d.HostID()
	mustClose(t, d)
	file := machineFile(t, "01234567-89AB-CDEF-0123-456789ABCDEF\n")
	d, err = open(dir, []string{file})
	if err != nil || d.MachineSource() != file || d.HostID() != id {
		t.Fatalf("an identity that appeared: %+v, %v", d, err)
	}
	mustClose(t, d)
}

func setMachineID(t *testing.T, dir, id string) {
	t.Helper()
	path := filepath.Join(dir, "host.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	m["machine_id"] = id
	if data, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestMakeGenerationDir(t *testing.T) {
	t.Parallel()
	d := mustOpen(t, filepath.Join(t.TempDir(), "state"))
	for range 2 {
		path, err := d.MakeGenerationDir("s.1", 3)
		if err != nil || path != d.GenerationDir("s.1", 3) {
			t.Fatalf("%q, %v", path, err)
		}
		wantMode(t, path, 0o700)
		wantMode(t, d.SessionDir("s.1"), 0o700)
	}
	for _, id := range []string{"", "..", "a/b"} {
		if _, err := d.MakeGenerationDir(id, 1); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", id, err)
		}
	}
	if _, err := d.MakeGenerationDir("s", 0); !errors.Is(err, ErrName) {
		t.Errorf("generation 0: %v", err)
	}
	if err := os.Symlink(t.TempDir(), d.SessionDir("linked")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.MakeGenerationDir("linked", 1); !errors.Is(err, ErrUnfit) {
		t.Errorf("a link: %v", err)
	}
	if err := os.WriteFile(d.SessionDir("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.MakeGenerationDir("file", 1); !errors.Is(err, ErrUnfit) {
		t.Errorf("a file: %v", err)
	}
}
