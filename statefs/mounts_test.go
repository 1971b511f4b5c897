package statefs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain gives every test its temporary directory below one that is looked
// at afterwards: nothing may be left mounted or lying there, no descriptor
// open, no goroutine running.
func TestMain(m *testing.M) {
	if os.Getenv("STATEFS_TEST_HELPER") != "" {
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "statefs-test-")
	if err != nil {
		panic(err)
	}
	// Helpers of another uid pass through it.
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	os.Setenv("TMPDIR", dir)
	fds := len(openFiles())
	code := m.Run()
	if left := leaks(dir, fds); left != "" {
		fmt.Fprintln(os.Stderr, "left behind:", left)
		code = 1
	}
	if err := os.Remove(dir); err != nil {
		fmt.Fprintln(os.Stderr, "left behind:", err)
		code = 1
	}
	os.Exit(code)
}

func openFiles() []string {
	names, _ := filepath.Glob("/proc/self/fd/*")
	var out []string
	for _, n := range names {
		if to, err := os.Readlink(n); err == nil {
			out = append(out, to)
		}
	}
	return out
}

// leaks waits a moment for what is just ending.
func leaks(dir string, fds int) string {
	var left string
	for range 200 {
		left = ""
		if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), dir) {
			left += fmt.Sprintf("mounts below %s (%v)\n", dir, err)
		}
		if now := openFiles(); len(now) > fds {
			left += fmt.Sprintf("%d descriptors instead of %d: %q\n", len(now), fds, now)
		}
		if n := runtime.NumGoroutine(); n > 2 {
			buf := make([]byte, 1<<20)
			left += fmt.Sprintf("%d goroutines: %s\n", n, buf[:runtime.Stack(buf, true)])
		}
		if left == "" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return left
}

// needRoot skips what only root can try.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// mount mounts with mount(2) for the length of the test.
func mount(t testing.TB, source, target, fstype string, flags uintptr, data string) {
	t.Helper()
	needRoot(t)
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		t.Skipf("needs mount(2) of %s: %v", fstype, err)
	}
	t.Cleanup(func() { unmount(t, target) })
}

// unmount takes the uppermost mount at target away, if there is one.
func unmount(t testing.TB, target string) {
	t.Helper()
	if err := unix.Unmount(target, 0); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		t.Errorf("unmounting %q: %v", target, err)
		_ = unix.Unmount(target, unix.MNT_DETACH)
	}
}

func mountTmpfs(t testing.TB, data string) string {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	mount(t, "berth-test", dir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, data)
	return dir
}

// mountLoop makes a file system of the given size with the mkfs command and
// mounts it over a loop device that goes away with the mount.
func mountLoop(t testing.TB, bytes int64, options string, mkfs ...string) string {
	t.Helper()
	needRoot(t)
	for _, tool := range []string{mkfs[0], "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	dir := t.TempDir()
	image, target := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, bytes); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, append(mkfs, image)...)
	if out, err := exec.Command("mount", "-o", "loop,"+options, image, target).CombinedOutput(); err != nil {
		t.Skipf("needs a kernel that mounts what %q makes with -o loop,%s: %v: %.200s", mkfs, options, err, out)
	}
	t.Cleanup(func() { unmount(t, target) })
	return target
}

func run(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// A real table: a container host with an overlay, a bind of a subdirectory, a
// stacked mount, escaped names, optional fields.
const mountinfoFixture = `25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 25 0:22 / /proc rw,nosuid shared:5 - proc proc rw
41 25 254:16 / /var/lib/berth/workspaces rw,relatime shared:9 - ext4 /dev/vdb rw
52 41 0:50 / /var/lib/berth/workspaces/s1/a\040b rw - tmpfs t rw
53 25 254:16 /s2 /srv/two rw shared:9 master:2 - ext4 /dev/vdb rw
54 53 0:51 / /srv/two/deep/er rw - tmpfs t rw
55 54 0:52 / /srv/two/deep/er rw - tmpfs t rw
56 25 254:0 /home /mnt/home\134x rw - ext4 /dev/vda rw
57 99 0:53 / /hidden rw - tmpfs t rw
`

func TestMountsBelow(t *testing.T) {
	t.Parallel()
	table, err := parseMounts([]byte(mountinfoFixture))
	if err != nil || len(table) != 9 {
		t.Fatalf("%d mounts, %v", len(table), err)
	}
	vda, vdb := unix.Mkdev(254, 0), unix.Mkdev(254, 16)
	for at, want := range map[place]string{
		{vdb, "/s1"}:               "/var/lib/berth/workspaces/s1/a b",
		{vdb, "/s1/a b"}:           "/var/lib/berth/workspaces/s1/a b",
		{vdb, "/s1/a"}:             "",
		{vdb, "/s"}:                "",
		{vdb, "/s2"}:               "/srv/two/deep/er", // seen through the bind
		{vdb, "/s2/deep"}:          "/srv/two/deep/er",
		{vdb, "/s3"}:               "",
		{vda, "/var/lib/berth"}:    "/var/lib/berth/workspaces",
		{vda, "/mnt"}:              `/mnt/home\x`,
		{vda, "/home"}:             "", // mounted elsewhere, nothing is mounted on it
		{unix.Mkdev(0, 51), "/"}:   "/srv/two/deep/er",
		{unix.Mkdev(9, 9), "/s1"}:  "",
		{vdb, "/"}:                 "/var/lib/berth/workspaces/s1/a b",
		{unix.Mkdev(0, 53), "/"}:   "",
		{unix.Mkdev(0, 22), "/1"}:  "",
		{unix.Mkdev(254, 1), "/s"}: "",
	} {
		e, ok := table.below(at)
		if ok != (want != "") || e.point != want {
			t.Errorf("below %v: %q, want %q", at, e.point, want)
		}
	}
}

func TestParseMountsErrors(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"x", "1 2 3:4 / /", "a 2 3:4 / / rw", "1 b 3:4 / / rw", "1 2 3 / / rw", "1 2 3:c / / rw", "\n"} {
		if _, err := parseMounts([]byte(line)); err == nil {
			t.Errorf("%q was accepted", line)
		}
	}
	if _, err := readMounts("self"); err != nil {
		t.Errorf("this kernel's table: %v", err)
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add([]byte(mountinfoFixture), "/s1")
	f.Add([]byte(`1 1 0:1 /\777 /\ rw -`), "/")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		table, err := parseMounts(data)
		if err != nil {
			return
		}
		for _, e := range table {
			table.below(place{e.device, name})
			_ = unescapeMount(e.point)
		}
	})
}
