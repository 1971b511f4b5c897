package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func create(t *testing.T, dir string, opt Options) *Writer {
	t.Helper()
	w, err := Create(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func open(t *testing.T, dir string) *Reader {
	t.Helper()
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func readAll(t *testing.T, r *Reader) []Record {
	t.Helper()
	var all []Record
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, rec)
	}
}

// brief shows records as "seq stream offset data".
func brief(recs []Record) []string {
	var out []string
	for _, r := range recs {
		if g := r.Gap; g != nil {
			out = append(out, fmt.Sprintf("gap %s %d-%d", g.Cause, g.FromSeq, g.ToSeq))
			continue
		}
		out = append(out, fmt.Sprintf("%d %s %d %s", r.Seq, r.Stream, r.Offset, r.Data))
	}
	return out
}

func expect(t *testing.T, got []Record, want ...string) {
	t.Helper()
	if b := brief(got); !reflect.DeepEqual(b, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(b, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "spool")
	expect(t, readAll(t, open(t, dir)))
	w := create(t, dir, Options{})
	w.Append(Stdout, []byte("one"))
	w.Append(Stderr, []byte("err"))
	w.Append(Stdout, []byte("two\xff"))
	w.Append(Event, nil)
	recs := readAll(t, open(t, dir))
	expect(t, recs, "1 stdout 0 one", "2 stderr 0 err", "3 stdout 3 two\xff", "4 event 0 ")
	if recs[0].Time.IsZero() || w.LastSeq() != 4 || w.DroppedBytes() != 0 {
		t.Errorf("time %v, last %d", recs[0].Time, w.LastSeq())
	}
	w.Append(PTY, []byte("x"))
	if u, err := Stat(dir); err != nil || u.Files != 1 || u.FirstSeq != 1 || u.Bytes != 36+5*36+3+3+4+1 {
		t.Errorf("usage %+v, %v", u, err)
	}
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", info.Mode())
	}
}

func TestLargeAppendIsSplit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, Options{})
	data := bytes.Repeat([]byte("0123456789abcdef"), MaxData/16*2+1)
	w.Append(Stdout, data)
	var got []byte
	recs := readAll(t, open(t, dir))
	for _, r := range recs {
		if r.Offset != uint64(len(got)) {
			t.Errorf("offset %d at %d", r.Offset, len(got))
		}
		got = append(got, r.Data...)
	}
	if len(recs) != 3 || !bytes.Equal(got, data) {
		t.Errorf("%d records, %d bytes", len(recs), len(got))
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, Options{FileBytes: 120, Files: 3})
	early := open(t, dir)
	for i := range 11 {
		w.Append(Stdout, fmt.Appendf(nil, "%02d", i))
		if i == 0 {
			expect(t, readAll(t, early), "1 stdout 0 00")
		}
	}
	u, err := Stat(dir)
	if err != nil || u.Files != 3 || u.FirstSeq != 4 {
		t.Errorf("usage %+v, %v", u, err)
	}
	want := []string{
		"4 stdout 6 03", "5 stdout 8 04", "6 stdout 10 05", "7 stdout 12 06",
		"8 stdout 14 07", "9 stdout 16 08", "10 stdout 18 09", "11 stdout 20 10",
	}
	// A reader that starts now is told what is missing.
	expect(t, readAll(t, open(t, dir)), append([]string{"gap rotated 1-3"}, want...)...)
	// One that has a removed file open reads on in it.
	expect(t, readAll(t, early), append([]string{"2 stdout 2 01", "3 stdout 4 02"}, want...)...)
}

func TestSeek(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, Options{FileBytes: 120, Files: 3})
	for i := range 11 {
		w.Append(Stdout, fmt.Appendf(nil, "%02d", i))
	}
	r := open(t, dir)
	for seq, want := range map[uint64]string{
		0: "gap rotated 1-3", 3: "gap rotated 3-3", 4: "4 stdout 6 03", 6: "6 stdout 10 05", 7: "7 stdout 12 06", 11: "11 stdout 20 10",
	} {
		if err := r.Seek(seq); err != nil {
			t.Fatal(err)
		}
		rec, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		expect(t, []Record{rec}, want)
	}
	if err := r.Seek(13); err != nil {
		t.Fatal(err)
	}
	expect(t, readAll(t, r))
	w.Append(Stdout, []byte("a"))
	expect(t, readAll(t, r))
	w.Append(Stdout, []byte("b"))
	expect(t, readAll(t, r), "13 stdout 23 b")
}

func TestSeekOffset(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, Options{FileBytes: 120, Files: 3})
	for i := range 6 {
		w.Append(PTY, fmt.Appendf(nil, "<%d>", i))
		w.Append(Event, []byte("e"))
	}
	r := open(t, dir)
	at := func(offset uint64) []string {
		if err := r.SeekOffset(PTY, offset); err != nil {
			t.Fatal(err)
		}
		return brief(readAll(t, r))
	}
	if got := at(13); !reflect.DeepEqual(got, []string{"gap rotated 1-3", "9 pty 13 4>", "10 event 4 e", "11 pty 15 <5>", "12 event 5 e"}) {
		t.Errorf("from 13: %q", got)
	}
	if got := at(0); got[1] != "5 pty 6 <2>" {
		t.Errorf("from 0: %q", got)
	}
	if got := at(18); len(got) != 1 {
		t.Errorf("from the end: %q", got)
	}
	w.Append(PTY, []byte("<6>"))
	expect(t, readAll(t, r), "13 pty 18 <6>")
}

func TestResume(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, Options{})
	w.Append(Stdout, []byte("one"))
	w.Drop(Stderr, 5)
	w.Append(Stderr, []byte("two"))
	w.Close()
	w = create(t, dir, Options{})
	if w.LastSeq() != 3 {
		t.Errorf("last %d", w.LastSeq())
	}
	w.Append(Stdout, []byte("three"))
	w.Append(Stderr, []byte("four"))
	expect(t, readAll(t, open(t, dir)), "1 stdout 0 one", "gap dropped 0-0", "3 stderr 5 two", "4 stdout 3 three", "5 stderr 8 four")
}

func TestDropIsTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, Options{})
	w.Drop(Stdout, 100)
	w.Drop(PTY, 7)
	w.Append(Stdout, []byte("x"))
	w.Drop(Stdout, 1)
	if err := w.Sync(); err != nil {
		t.Fatal(err)
	}
	recs := readAll(t, open(t, dir))
	expect(t, recs, "gap dropped 0-0", "2 stdout 100 x", "gap dropped 0-0")
	want := map[string]uint64{"stdout": 100, "pty": 7}
	if !reflect.DeepEqual(recs[0].Gap.Bytes, want) || recs[0].Seq != 1 || w.DroppedBytes() != 108 {
		t.Errorf("gap %+v", recs[0].Gap)
	}
}

// Every prefix of a file, as a crash leaves it, gives the whole records before
// the cut, says that something is torn, and is continued by the next writer.
func TestEveryTear(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, Options{})
	var ends []int64
	for i := range 4 {
		w.Append(Stdout, fmt.Appendf(nil, "record %d", i))
		ends = append(ends, w.size)
	}
	whole, err := os.ReadFile(filepath.Join(dir, fileName(1)))
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(whole) + 1 {
		sub := filepath.Join(t.TempDir(), "s")
		writeFile(t, sub, 1, whole[:cut])
		good, torn := 0, cut > 0 && cut != fileHeaderSize
		for _, e := range ends {
			if int64(cut) >= e {
				good++
				torn = torn && int64(cut) != e
			}
		}
		r := open(t, sub)
		recs := readAll(t, r)
		if len(recs) != good {
			t.Fatalf("cut %d: %d records, want %d", cut, len(recs), good)
		}
		r.SetEnded()
		tail := readAll(t, r)
		if (len(tail) == 1) != torn || torn && (tail[0].Gap == nil || tail[0].Gap.Cause != CauseDamaged || tail[0].Gap.FromSeq != uint64(good+1)) {
			t.Fatalf("cut %d: tail %v, torn %v", cut, brief(tail), torn)
		}
		expect(t, readAll(t, r))
		again := create(t, sub, Options{})
		again.Append(Stdout, []byte("next"))
		recs = readAll(t, open(t, sub))
		last := recs[len(recs)-1]
		if last.Seq != uint64(good+1) || string(last.Data) != "next" {
			t.Fatalf("cut %d: resumed with %v", cut, brief(recs))
		}
		again.Close()
	}
}

// Every byte flipped, in turn: no wrong record, and everything that is not
// damaged is still read.
func TestEveryFlip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, Options{FileBytes: 110, Files: 9})
	const n = 5
	for i := range n {
		w.Append(Stdout, fmt.Appendf(nil, "record %d", i))
	}
	good := brief(readAll(t, open(t, dir)))
	path := filepath.Join(dir, fileName(3))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if u, err := Stat(dir); err != nil || u.Files != 3 {
		t.Fatalf("usage %+v, %v", u, err)
	}
	for at := range whole {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x41
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		var left []string
		gaps := 0
		for _, rec := range readAll(t, open(t, dir)) {
			if rec.Gap == nil {
				left = append(left, brief([]Record{rec})...)
			} else if rec.Gap.Cause == CauseDamaged {
				gaps++
			}
		}
		want := n - 1 // the one that is damaged
		if at < fileHeaderSize {
			want = n
		}
		if len(left) != want || gaps != 1 {
			t.Errorf("byte %d: left %q, %d gaps", at, left, gaps)
		}
		for _, l := range left {
			if !strings.Contains(strings.Join(good, "\n"), l) {
				t.Errorf("byte %d: made up %q", at, l)
			}
		}
	}
}

// Zeros at the end, as a power cut leaves them where the size was written and
// the data was not.
func TestZeroTail(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, Options{})
	w.Append(Stdout, []byte("kept"))
	w.Close()
	f, err := os.OpenFile(filepath.Join(dir, fileName(1)), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(make([]byte, 8192)); err != nil {
		t.Fatal(err)
	}
	f.Close()
	w = create(t, dir, Options{})
	w.Append(Stdout, []byte("next"))
	expect(t, readAll(t, open(t, dir)), "1 stdout 0 kept", "gap damaged 0-0", "2 stdout 4 next")
}

func TestForeignFilesAreIgnored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"x", "1.spool", "0000000000000000000a.spool", "00000000000000000000.spool", ".tmp-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := create(t, dir, Options{})
	w.Append(Stdout, []byte("a"))
	expect(t, readAll(t, open(t, dir)), "1 stdout 0 a")
}

func TestStreamNames(t *testing.T) {
	t.Parallel()
	for s := Stdout; s <= GapRec; s++ {
		if got, err := ParseStream(s.String()); err != nil || got != s {
			t.Errorf("%v: %v, %v", s, got, err)
		}
	}
	for _, bad := range []string{"", "stdin", "stream(9)"} {
		if s, err := ParseStream(bad); err == nil {
			t.Errorf("%q is %v", bad, s)
		}
	}
	if Stream(9).String() != "stream(9)" {
		t.Error(Stream(9).String())
	}
}

func writeFile(t *testing.T, dir string, first uint64, data []byte) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, fileName(first)), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCreateFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if w, err := Create(path, Options{}); err == nil || w != nil {
		t.Errorf("made a spool of a file: %v", err)
	}
	if r, err := Open(path); err == nil || r != nil {
		t.Errorf("opened a file as a spool: %v", err)
	}
	if _, err := Stat(path); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("measured a file as a spool: %v", err)
	}
}

// Bytes that look like a record and were written by the agent never become one,
// also where damage makes the reader look for the next good record.
func TestForgedRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, Options{})
	forged := appendRecord(nil, head{stream: Event, seq: 2}, 0, []byte("forged"))
	w.Append(Stdout, forged)
	w.Append(Stdout, []byte("real"))
	path := filepath.Join(dir, fileName(1))
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[fileHeaderSize+5] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, readAll(t, open(t, dir)), "gap damaged 1-1", "2 stdout 42 real")
}

// The directory goes away and comes back.
func TestDirectoryIsMadeAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "spool")
	w := create(t, dir, Options{FileBytes: 50})
	w.Append(Stdout, []byte("lost with its directory"))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	w.Append(Stdout, []byte("kept"))
	expect(t, readAll(t, open(t, dir)), "gap rotated 1-1", "2 stdout 23 kept")
}
