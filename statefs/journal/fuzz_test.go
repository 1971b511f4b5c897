package journal_test

import (
	"bytes"
	"testing"

	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/statefstest"
)

// FuzzParseHead: no header makes the parser panic, and none that was changed is taken for valid.
func FuzzParseHead(f *testing.F) {
	disk := statefstest.New()
	j, _, err := journal.Open("disk", journal.Options{FS: disk, SegmentBytes: small}, nil)
	if err != nil {
		f.Fatal(err)
	}
	if _, err := j.Append(journal.Ordinary, entry(1), entry(2)); err != nil {
		f.Fatal(err)
	}
	if err := j.Close(); err != nil {
		f.Fatal(err)
	}
	_, log := firstLog(disk)
	salt := journal.SaltOf(log)
	for _, off := range journal.FrameOffsets(log) {
		f.Add(log[off:off+64], salt)
	}
	f.Add([]byte{}, uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, salt uint32) {
		if !journal.ParseHead(b, salt) {
			return
		}
		for i := range 48 {
			c := bytes.Clone(b)
			c[i] ^= 0x10
			if journal.ParseHead(c, salt) {
				t.Errorf("valid with byte %d changed", i)
			}
		}
	})
}

// FuzzRecover puts changed bytes into a log file, its header area included: recovery never fails or panics, delivers
// nothing that was not written, and loses nothing in silence.
func FuzzRecover(f *testing.F) {
	disk := statefstest.New()
	j, _, err := journal.Open("disk", journal.Options{FS: disk, BootID: "a", SegmentBytes: small}, nil)
	if err != nil {
		f.Fatal(err)
	}
	var w world
	for i := range 12 {
		if err := w.append(j, journal.Ordinary, 1+i%3); err != nil {
			f.Fatal(err)
		}
	}
	p := w.promise()
	if err := j.Close(); err != nil {
		f.Fatal(err)
	}
	files := disk.Files()
	name, log := firstLog(disk)
	f.Add(uint16(4200), []byte{1}, uint16(0), true)
	f.Add(uint16(4096), make([]byte, 512), uint16(0), false)
	f.Add(uint16(0), make([]byte, 4096), uint16(100), true)
	f.Add(uint16(5000), bytes.Clone(log[4096:5000]), uint16(0), true)
	f.Fuzz(func(t *testing.T, off uint16, patch []byte, cut uint16, sameBoot bool) {
		data := bytes.Clone(log)
		if int(off) < len(data) {
			copy(data[off:], patch)
		}
		if cut > 0 && int(cut) < len(data) {
			data = data[:cut]
		}
		damaged := statefstest.New()
		for n, d := range files {
			damaged.Put(n, d)
		}
		damaged.Put(name, data)
		boot := map[bool]string{true: "a", false: "b"}[sameBoot]
		if err := readable(damaged, boot, p); err != nil {
			t.Fatal(err)
		}
		j, _ := mustOpen(t, damaged, boot, nil)
		if _, err := j.Append(journal.Ordinary, entry(1<<20)); err != nil {
			t.Fatal(err)
		}
		mustClose(t, j)
	})
}
