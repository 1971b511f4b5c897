package journal_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/statefstest"
)

// onFullDisk is the course of events that T45 asks for: fill closes the disk, ordinary appends come to an end without
// harm, reserved ones go on, compaction works again and again, and all of it is there afterwards.
// case T45, E3
func onFullDisk(t *testing.T, open func(func(journal.Record) error) *journal.Journal, fill func()) {
	t.Helper()
	j := open(nil)
	var w world
	r := rand.New(rand.NewPCG(5, 5))
	if err := w.work(j, r, 60); err != nil {
		t.Fatal(err)
	}
	j.Settle()
	fill()
	ordinary := 0
	var err error
	for ; err == nil; ordinary++ {
		if err = w.append(j, journal.Ordinary, 1); ordinary > 100_000 {
			t.Fatal("the disk is not full")
		}
	}
	if !errors.Is(err, journal.ErrFull) || j.Err() != nil {
		t.Fatalf("ordinary append on a full disk: %v; Err %v", err, j.Err())
	}
	if !j.NeedsSnapshot() && j.Stats().Segments > 1 {
		t.Error("no snapshot is asked for")
	}
	t.Logf("%d ordinary appends fitted", ordinary)
	stopAndCompact(t, j, &w)
	mustClose(t, j)
	var got replayed
	j = open(got.take)
	if err := w.promise().check(&got); err != nil {
		t.Error(err)
	}
	if err := w.append(j, journal.Reserved, 3); err != nil {
		t.Errorf("after opening on the full disk: %v", err)
	}
	mustClose(t, j)
}

// stopAndCompact is stop and delete on a full disk: several times the reserve, with compaction whenever it is asked for.
func stopAndCompact(t *testing.T, j *journal.Journal, w *world) {
	t.Helper()
	for i := range 4 * small / 100 {
		err := w.append(j, journal.Reserved, 1)
		if err == nil && j.NeedsSnapshot() {
			err = w.snapshot(j)
			j.Settle()
		}
		if err != nil {
			t.Fatalf("reserved append %d: %v; %+v", i, err, j.Stats())
		}
	}
	for i := range 5 {
		if err := w.snapshot(j); err != nil {
			t.Fatalf("snapshot %d on the full disk: %v", i, err)
		}
	}
	j.Settle()
	s := j.Stats()
	if s.SpareSegments < 1 || s.Segments != 1 {
		t.Errorf("after compaction: %+v", s)
	}
}

func TestFullDiskModelled(t *testing.T) {
	t.Parallel()
	disk := statefstest.New()
	onFullDisk(t, func(replay func(journal.Record) error) *journal.Journal {
		j, rec := mustOpen(t, disk, "a", replay)
		if rec.Ambiguous || rec.TornTail || len(rec.Damages) > 0 {
			t.Errorf("%+v", rec)
		}
		return j
	}, func() { disk.SetCapacity(disk.Used()) })
}

func TestFullDiskReal(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: cannot mount file systems")
	}
	for name, mount := range map[string]func(*testing.T) string{
		"tmpfs": func(t *testing.T) string { return mountTmpfs(t, "8m") },
		"ext4":  func(t *testing.T) string { return mountLoop(t, 24<<20, "mkfs.ext4", "-q", "-m", "0") },
		"xfs":   func(t *testing.T) string { return mountLoop(t, 320<<20, "mkfs.xfs", "-q") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := mount(t)
			dir := filepath.Join(root, "journal")
			onFullDisk(t, func(replay func(journal.Record) error) *journal.Journal {
				j, rec := openDir(t, dir, replay)
				if rec.Ambiguous || rec.TornTail || len(rec.Damages) > 0 {
					t.Errorf("%+v", rec)
				}
				return j
			}, func() { fillUp(t, filepath.Join(root, "ballast")) })
		})
	}
}

// TestRoomComesBack: ordinary appends work again once the disk has room, without anybody opening anything anew.
func TestRoomComesBack(t *testing.T) {
	t.Parallel()
	disk := statefstest.New()
	j, _ := mustOpen(t, disk, "a", nil)
	defer mustClose(t, j)
	disk.SetCapacity(disk.Used())
	var w world
	var err error
	for err == nil {
		err = w.append(j, journal.Ordinary, 1)
	}
	if !errors.Is(err, journal.ErrFull) || !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	seq := j.LastSeq()
	if seq != w.seq {
		t.Errorf("last record is %d, %d was acknowledged", seq, w.seq)
	}
	disk.SetCapacity(0)
	until := time.Now().Add(30 * time.Second)
	for err != nil && time.Now().Before(until) {
		if err = w.append(j, journal.Ordinary, 1); err != nil && !errors.Is(err, journal.ErrFull) {
			t.Fatal(err)
		}
	}
	if err != nil || w.seq != seq+1 {
		t.Errorf("record %d, %v; want %d", w.seq, err, seq+1)
	}
}

// TestOpenOnFullDisk: a new journal on a disk without room opens and says what is the matter.
func TestOpenOnFullDisk(t *testing.T) {
	t.Parallel()
	disk := statefstest.New()
	disk.SetCapacity(1)
	j, _ := mustOpen(t, disk, "a", nil)
	if _, err := j.Append(journal.Reserved, entry(1)); !errors.Is(err, journal.ErrFull) {
		t.Errorf("error is %v", err)
	}
	if j.Stats().RoomErr == nil {
		t.Error("Stats do not say why")
	}
	mustClose(t, j)
	for name := range disk.Files() {
		t.Errorf("left behind: %s", name)
	}
}

// TestSparseCopyIsFilled: room that lost its blocks, as a copy with holes does, is made anew.
func TestSparseCopyIsFilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := openDir(t, dir, nil)
	mustClose(t, j)
	spares, _ := filepath.Glob(filepath.Join(dir, "*.*"))
	if len(spares) < 5 {
		t.Fatalf("spare files: %v", spares)
	}
	for _, name := range spares {
		info, err := os.Stat(name)
		if err == nil {
			err = errors.Join(os.Truncate(name, 4096), os.Truncate(name, info.Size()))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	j, _ = openDir(t, dir, nil)
	defer mustClose(t, j)
	spares, _ = filepath.Glob(filepath.Join(dir, "*.*"))
	for _, name := range spares {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err != nil || st.Blocks*512 < st.Size {
			t.Errorf("%s: %d of %d bytes allocated, %v", name, st.Blocks*512, st.Size, err)
		}
	}
	if len(spares) < 5 {
		t.Errorf("spare files: %v", spares)
	}
}

func mountTmpfs(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("berth-test", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	unmountAfter(t, dir)
	return dir
}

// mountLoop makes a file system of so many bytes in a file and mounts it.
func mountLoop(t *testing.T, size int64, mkfs string, args ...string) string {
	t.Helper()
	for _, tool := range []string{mkfs, "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("missing: %s", tool)
		}
	}
	base := t.TempDir()
	image, dir := filepath.Join(base, "image"), filepath.Join(base, "mnt")
	f, err := os.Create(image)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close(), os.Mkdir(dir, 0o700))
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(mkfs, append(args, image)...).CombinedOutput(); err != nil {
		t.Skipf("%s: %v: %s", mkfs, err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		t.Skipf("mounting a loop device: %v: %s", err, out)
	}
	unmountAfter(t, dir)
	return dir
}

func unmountAfter(t *testing.T, dir string) {
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmounting %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
}

// fillUp takes every byte and every block that is left, to the last.
func fillUp(t *testing.T, name string) {
	t.Helper()
	for i, block := range []int{1 << 20, 4096, 512} {
		f, err := os.Create(fmt.Sprintf("%s-%d", name, i))
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		for err == nil {
			_, err = f.Write(make([]byte, block))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("filling the disk: %v", err)
		}
		if err := f.Sync(); err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil && !errors.Is(err, io.ErrShortWrite) && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
}
