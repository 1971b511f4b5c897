package spool

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// case T60: on a disk that is full at any point, and has room again later,
// every byte is either read back or told of in a gap, in order.
func TestFullDiskAtEverySize(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a tmpfs")
	}
	for pages := 1; pages < 12; pages++ {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", pages*4096)); err != nil {
			t.Skipf("needs to mount a tmpfs: %v", err)
		}
		func() {
			defer unix.Unmount(dir, 0)
			fillAndFree(t, dir)
		}()
	}
}

func fillAndFree(t *testing.T, dir string) {
	w, err := Create(filepath.Join(dir, "s"), Options{FileBytes: 9000, Files: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	total := uint64(0)
	for i := range 40 {
		w.Append(Stdout, bytes.Repeat([]byte{byte('a' + i%26)}, 700))
		total += 700
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	w.retryAt = w.retryAt.Add(-retryAfter)
	w.Append(Stdout, []byte("after"))
	total += 5
	var told, kept, next uint64
	r, err := Open(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if g := rec.Gap; g != nil {
			if g.Cause == CauseDamaged {
				t.Errorf("damage: %+v", g)
			}
			told += g.Bytes["stdout"]
			continue
		}
		if rec.Offset < next {
			t.Errorf("record %d at %d after %d", rec.Seq, rec.Offset, next)
		}
		if kept == 0 && told == 0 {
			told = rec.Offset // rotated away
		}
		kept += uint64(len(rec.Data))
		next = rec.Offset + uint64(len(rec.Data))
	}
	if kept+told != total || next != total {
		t.Errorf("kept %d, told of %d, wrote %d, the end is at %d", kept, told, total, next)
	}
}
