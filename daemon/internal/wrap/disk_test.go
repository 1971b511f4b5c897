package wrap

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

// newDisk mounts an ext4 file system of its own, which ends with the test.
func newDisk(t *testing.T) string {
	t.Helper()
	needRoot(t)
	image := filepath.Join(t.TempDir(), "image")
	dir := t.TempDir()
	for _, args := range [][]string{
		{"truncate", "-s", "32M", image}, {"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, dir},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs %s: %v %s", args[0], err, out)
		}
	}
	t.Cleanup(func() {
		eventually(t, "the disk is unmounted", func() bool { return unix.Unmount(dir, 0) == nil })
	})
	return dir
}

// freeze suspends writes to the file system of dir (ioctl_fsfreeze, FIFREEZE);
// they block until the returned function is called.
func freeze(t *testing.T, dir string) (thaw func()) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	const fifreeze, fithaw = 0xc0045877, 0xc0045878
	if err := unix.IoctlSetInt(int(f.Fd()), fifreeze, 0); err != nil {
		t.Skipf("needs FIFREEZE: %v", err)
	}
	frozen := true
	thaw = func() {
		if frozen {
			frozen = false
			unix.IoctlSetInt(int(f.Fd()), fithaw, 0)
			f.Close()
		}
	}
	t.Cleanup(thaw)
	return thaw
}

// case T60: a disk that hangs holds up neither the agent nor the link; what is
// lost is counted, and the end is told before the disk comes back.
func TestHangingDisk(t *testing.T) {
	t.Parallel()
	dir := newDisk(t)
	s := newSession(t, "sh", "-c", "read x; head -c 5000000 /dev/zero; echo end; exit 3")
	s.launch.Dir = filepath.Join(dir, "g1")
	if err := os.Mkdir(s.launch.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.withDaemon().start()
	c := s.daemon.next()
	eventually(t, "the reserve is there", func() bool { return exists(filepath.Join(s.launch.Dir, reserveName)) })
	thaw := freeze(t, dir)
	c.input("go\n")
	f := c.await(wire.KindExited)
	if f.Exit.Code != 3 || f.Status.DroppedBytes < 4_000_000 {
		t.Errorf("exited frame %+v %+v", f.Exit, f.Status)
	}
	thaw()
	s.wait()
	if got := s.output(spool.Stdout); len(got) < 8*4096 || strings.Trim(got, "\x00end\n") != "" {
		t.Errorf("%d bytes were kept", len(got))
	}
}

// case T60: a log that somebody made immutable.
func TestImmutableSpool(t *testing.T) {
	t.Parallel()
	dir := newDisk(t)
	s := newSession(t, "sh", "-c", "while read x; do echo $x; done")
	s.launch.Dir = filepath.Join(dir, "g1")
	if err := os.Mkdir(s.launch.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.withDaemon().start()
	c := s.daemon.next()
	c.input("before\n")
	s.awaitOutput(spool.Stdout, "before\n")
	files, err := filepath.Glob(s.launch.Dir + "/spool/*")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	chattr := func(flag string) {
		if out, err := exec.Command("chattr", flag, files[0]).CombinedOutput(); err != nil {
			t.Skipf("needs chattr: %v %s", err, out)
		}
	}
	chattr("+i")
	t.Cleanup(func() { chattr("-i") })
	c.input("lost\n")
	eventually(t, "the loss is counted", func() bool { return c.await(wire.KindStatus).Status.DroppedBytes > 0 })
	chattr("-i")
	eventually(t, "it is written again", func() bool {
		c.input("after\n")
		time.Sleep(10 * time.Millisecond)
		return strings.HasSuffix(s.output(spool.Stdout), "after\n")
	})
	gaps := 0
	for _, r := range s.records() {
		if r.Gap != nil && r.Gap.Cause == spool.CauseDropped && strings.Contains(r.Gap.Detail, "not permitted") {
			gaps++
		}
	}
	if gaps != 1 {
		t.Errorf("%d gaps", gaps)
	}
}
