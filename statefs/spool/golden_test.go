package spool

import (
	"bytes"
	"flag"
	"os"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden file of the current format version")

// goldenRecords are what testdata/v1 holds.
func goldenRecords() []byte {
	at := time.Date(2026, 11, 29, 19, 30, 0, 0, time.UTC)
	const s = salt(0x5eed)
	b := appendFileHeader(nil, 41, s, at)
	put := func(stream Stream, seq, offset uint64, data string) {
		b = appendRecord(b, head{stream: stream, seq: seq, nanos: at.UnixNano() + int64(seq), offset: offset}, s, []byte(data))
	}
	put(Event, 41, 0, `{"event":"started","pid":7}`)
	put(Stdout, 42, 0, "hello\n")
	put(Stderr, 43, 0, "bytes \xff\x00")
	put(PTY, 44, 0, "\x1b[1mx")
	put(GapRec, 45, 0, `{"cause":"dropped","detail":"no space left on device","bytes":{"stdout":4096}}`)
	put(Stdout, 46, 4102, "")
	return b
}

// The bytes of version 1 are what they were, and are still read.
func TestGolden(t *testing.T) {
	t.Parallel()
	const path = "testdata/v1/00000000000000000041.spool"
	if *update {
		if err := os.MkdirAll("testdata/v1", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, goldenRecords(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, goldenRecords()) {
		t.Error("the format has changed without a new version")
	}
	recs := readAll(t, open(t, "testdata/v1"))
	expect(t, recs, "gap rotated 1-40", `41 event 0 {"event":"started","pid":7}`, "42 stdout 0 hello\n", "43 stderr 0 bytes \xff\x00",
		"44 pty 0 \x1b[1mx", "gap dropped 0-0", "46 stdout 4102 ")
	if g := recs[5].Gap; g.Bytes["stdout"] != 4096 || g.Detail != "no space left on device" || recs[5].Seq != 45 {
		t.Errorf("gap %+v", g)
	}
	if !recs[2].Time.Equal(time.Date(2026, 11, 29, 19, 30, 0, 42, time.UTC)) {
		t.Errorf("time %v", recs[2].Time)
	}
}
