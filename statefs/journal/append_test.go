package journal_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/statefstest"
)

func TestReplayGivesBackWhatWasAppended(t *testing.T) {
	t.Parallel()
	disk := statefstest.New()
	var w world
	for round := range 6 {
		var got replayed
		j, rec := mustOpen(t, disk, "a", got.take)
		if err := w.promise().check(&got); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if rec.TornTail || rec.Ambiguous || len(rec.Damages)+len(rec.Covered) > 0 || rec.LastSeq != w.seq || j.LastSeq() != w.seq {
			t.Fatalf("round %d: %+v, want last %d", round, rec, w.seq)
		}
		if err := w.work(j, rand.New(rand.NewPCG(1, uint64(round))), 40); err != nil {
			t.Fatal(err)
		}
		mustClose(t, j)
	}
	if n := disk.Handles(); n != 0 {
		t.Errorf("%d files are still open", n)
	}
}

func TestAppendsOfManyGoroutinesShareCommits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _, err := journal.Open(dir, journal.Options{SegmentBytes: 64 << 10}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const writers, each = 32, 60
	var wg sync.WaitGroup
	seqs := make([][]uint64, writers)
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				e := journal.Entry{Type: 1, Session: fmt.Sprint(w), Generation: uint64(i), Body: make([]byte, 100)}
				seq, err := j.Append(journal.Ordinary, e, e)
				if err != nil {
					t.Error(err)
					return
				}
				seqs[w] = append(seqs[w], seq)
			}
		})
	}
	wg.Wait()
	s := j.Stats()
	if s.Records != writers*each*2 || s.Commits >= writers*each {
		t.Errorf("%d records in %d commits, want %d in fewer than %d", s.Records, s.Commits, writers*each*2, writers*each)
	}
	all := slices.Concat(seqs...)
	slices.Sort(all)
	if len(slices.Compact(all)) != writers*each {
		t.Error("a number was given twice")
	}
	mustClose(t, j)
	checkPairs(t, dir, seqs)
}

// checkPairs reads appends of two equal entries, and compares their numbers with what the writers were told.
func checkPairs(t *testing.T, dir string, seqs [][]uint64) {
	t.Helper()
	bySession := map[string][]uint64{}
	var before journal.Record
	_, err := journal.Read(dir, func(r journal.Record) error {
		if r.Seq%2 == 0 {
			if before.Session != r.Session || before.Generation != r.Generation {
				return fmt.Errorf("the two entries of one append are apart: %v, %v", before, r)
			}
			bySession[r.Session] = append(bySession[r.Session], r.Seq)
		}
		before = r
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for w := range seqs {
		if !slices.Equal(bySession[fmt.Sprint(w)], seqs[w]) {
			t.Errorf("writer %d was told %v, the journal has %v", w, seqs[w], bySession[fmt.Sprint(w)])
		}
	}
}

func TestAppendRefusesWhatTheFormatCannotHold(t *testing.T) {
	t.Parallel()
	j, _ := mustOpen(t, statefstest.New(), "a", nil)
	defer mustClose(t, j)
	good := journal.Entry{Type: 1, Session: "s", Body: []byte("x")}
	for name, c := range map[string]struct {
		class   journal.Class
		entries []journal.Entry
		want    error
	}{
		"no class":      {0, []journal.Entry{good}, nil},
		"no entries":    {journal.Ordinary, nil, nil},
		"type 0":        {journal.Ordinary, []journal.Entry{good, {Body: []byte("x")}}, nil},
		"long session":  {journal.Ordinary, []journal.Entry{{Type: 1, Session: string(make([]byte, 129))}}, journal.ErrTooLarge},
		"long body":     {journal.Ordinary, []journal.Entry{{Type: 1, Body: make([]byte, 1<<20+1)}}, journal.ErrTooLarge},
		"too much":      {journal.Ordinary, []journal.Entry{{Type: 1, Body: make([]byte, small)}}, journal.ErrTooLarge},
		"much together": {journal.Reserved, []journal.Entry{{Type: 1, Body: make([]byte, small/2)}, {Type: 1, Body: make([]byte, small/2)}}, journal.ErrTooLarge},
	} {
		if _, err := j.Append(c.class, c.entries...); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: error is %v, want %v", name, err, c.want)
		}
	}
	if seq, err := j.Append(journal.Ordinary, good); err != nil || seq != 1 {
		t.Errorf("a good append afterwards got number %d, %v; want 1", seq, err)
	}
}

func TestClosedJournalAnswersErrClosed(t *testing.T) {
	t.Parallel()
	j, _ := mustOpen(t, statefstest.New(), "a", nil)
	var w world
	if err := w.append(j, journal.Ordinary, 1); err != nil {
		t.Fatal(err)
	}
	mustClose(t, j)
	if err := w.append(j, journal.Ordinary, 1); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("Append: %v", err)
	}
	if err := w.snapshot(j); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("Snapshot: %v", err)
	}
	if err := j.Close(); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("Close: %v", err)
	}
}

func TestReplayErrorLeavesTheDirectoryAlone(t *testing.T) {
	t.Parallel()
	disk := statefstest.New()
	var w world
	j, _ := mustOpen(t, disk, "a", nil)
	if err := w.work(j, rand.New(rand.NewPCG(1, 1)), 20); err != nil {
		t.Fatal(err)
	}
	mustClose(t, j)
	refused := errors.New("unknown type")
	disk.Hook(func(op statefstest.Op) statefstest.Outcome {
		if op.Kind.Changes() {
			t.Errorf("Open did %+v", op)
		}
		return statefstest.Outcome{}
	})
	_, _, err := journal.Open("disk", journal.Options{FS: disk, SegmentBytes: small}, func(journal.Record) error { return refused })
	if !errors.Is(err, refused) {
		t.Errorf("error is %v", err)
	}
	if n := disk.Handles(); n != 0 {
		t.Errorf("%d files are still open", n)
	}
}
