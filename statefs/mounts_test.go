package statefs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

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
		t.Skipf("needs loop devices and %s: %v: %s", mkfs[0], err, out)
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
