package spool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

const patience = 20 * time.Second

// A follower sees every record in order, or a gap that says which ones it
// missed, while the writer rotates as fast as it can.
func TestFollowWhileWriting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, Options{FileBytes: 4096, Files: 4})
	const n = 5000
	wake, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for i := range n {
			w.Append(Stdout, fmt.Appendf(nil, "%d\n", i))
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	next, records := uint64(1), 0
	var offset uint64
	for rec, err := range open(t, dir).Follow(ctx, FollowOptions{Wake: wake, Ended: ended}) {
		if err != nil {
			t.Fatal(err)
		}
		if g := rec.Gap; g != nil {
			if g.Cause != CauseRotated || g.FromSeq != next || g.ToSeq < next {
				t.Fatalf("gap %+v at %d", g, next)
			}
			next = g.ToSeq + 1
			continue
		}
		if rec.Seq != next || string(rec.Data) != fmt.Sprintf("%d\n", next-1) || rec.Offset < offset {
			t.Fatalf("record %d %q at %d", rec.Seq, rec.Data, next)
		}
		next, offset = next+1, rec.Offset+uint64(len(rec.Data))
		records++
	}
	if next != n+1 || records == 0 {
		t.Errorf("ended before %d with %d records", next, records)
	}
}

func TestFollowEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, Options{})
	w.Append(Stdout, []byte("x"))
	// By its context, with the cause.
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var got []error
	for rec, err := range open(t, dir).Follow(ctx, FollowOptions{Poll: time.Millisecond}) {
		got = append(got, err)
		if err == nil && string(rec.Data) == "x" {
			cancel(cause)
		}
	}
	if len(got) != 2 || got[0] != nil || got[1] != cause {
		t.Errorf("got %v", got)
	}
	// By the loop.
	for range open(t, dir).Follow(t.Context(), FollowOptions{}) {
		break
	}
	// By the writer's end, also with a directory that was never made.
	ended := make(chan struct{})
	close(ended)
	for rec, err := range open(t, dir+"/absent").Follow(t.Context(), FollowOptions{Ended: ended}) {
		t.Errorf("got %v, %v", rec, err)
	}
}

// case G1, G2: a character split at every offset.
func TestTextSplitAtEveryOffset(t *testing.T) {
	t.Parallel()
	const text = "aé\u20ac\U0001F600z\xff\xf0\x9f\x98b\xc3"
	const want = "aé\u20ac\U0001F600z\uFFFD\uFFFD\uFFFD\uFFFDb\uFFFD"
	for i := range len(text) + 1 {
		for j := i; j <= len(text); j++ {
			var d Text
			got := d.Decode([]byte(text[:i])) + d.Decode([]byte(text[i:j])) + d.Decode([]byte(text[j:])) + d.Flush()
			if got != want {
				t.Fatalf("split at %d, %d: %q", i, j, got)
			}
		}
	}
	var d Text
	var b strings.Builder
	for _, c := range []byte(text) {
		b.WriteString(d.Decode([]byte{c}))
	}
	if b.WriteString(d.Flush()); b.String() != want || d.Flush() != "" {
		t.Errorf("byte by byte: %q", b.String())
	}
}

// FuzzText: chunks never change the text.
func FuzzText(f *testing.F) {
	f.Add([]byte("a\U0001F600\xff"), 1)
	f.Fuzz(func(t *testing.T, data []byte, step int) {
		if step < 1 {
			return
		}
		var whole, pieces Text
		want := whole.Decode(data) + whole.Flush()
		var got strings.Builder
		for rest := data; len(rest) > 0; {
			n := min(step, len(rest))
			got.WriteString(pieces.Decode(rest[:n]))
			rest = rest[n:]
		}
		got.WriteString(pieces.Flush())
		if got.String() != want {
			t.Fatalf("%q in steps of %d: %q, want %q", data, step, got.String(), want)
		}
	})
}

// FuzzReader: any bytes as a file give records with rising numbers or gaps, and
// an end.
func FuzzReader(f *testing.F) {
	good := appendFileHeader(nil, 1, 7, time.Unix(1, 0))
	for i := range 3 {
		good = appendRecord(good, head{stream: Stdout, seq: uint64(i + 1), offset: uint64(i)}, 7, []byte("x"))
	}
	good = appendRecord(good, head{stream: GapRec, seq: 4}, 7, []byte(`{"cause":"dropped","bytes":{"stdout":3}}`))
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add(append(good[:40:40], make([]byte, 300)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		writeFile(t, dir, 1, data)
		r := open(t, dir)
		r.SetEnded()
		last := uint64(0)
		for n := range len(data) + 3 {
			rec, err := r.Next()
			if err != nil {
				return
			}
			if rec.Seq != 0 && rec.Seq <= last {
				t.Fatalf("record %d after %d", rec.Seq, last)
			}
			if rec.Gap == nil && rec.Seq == 0 {
				t.Fatal("record without a number")
			}
			last = max(last, rec.Seq)
			if n > len(data) {
				t.Fatal("does not end")
			}
		}
	})
}
