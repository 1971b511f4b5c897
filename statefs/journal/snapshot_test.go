package journal_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/statefstest"
)

// TestSizeIsBoundedByWhatIsLive: any number of appends leaves the disk as large as a few did.
func TestSizeIsBoundedByWhatIsLive(t *testing.T) {
	t.Parallel()
	disk := statefstest.New()
	j, _ := mustOpen(t, disk, "a", nil)
	defer mustClose(t, j)
	var w world
	var used []int64
	for range 6 {
		for range 150 {
			if err := w.append(j, journal.Ordinary, 2); err != nil {
				t.Fatal(err)
			}
			if j.NeedsSnapshot() {
				if err := w.snapshot(j); err != nil {
					t.Fatal(err)
				}
			}
		}
		j.Settle()
		used = append(used, disk.Used())
	}
	s := j.Stats()
	if last := slices.Max(used[3:]); last > slices.Max(used[:3]) {
		t.Errorf("bytes on disk after every 300 records: %d", used)
	}
	if s.Segments > 6 || s.LogBytes > 2*small+s.SnapshotBytes*2 {
		t.Errorf("%+v", s)
	}
}

// liveSet appends whole values by session and takes snapshots of them.
type liveSet struct {
	t    *testing.T
	j    *journal.Journal
	live map[string]journal.Entry
	seq  uint64
}

func (l *liveSet) add(n int) {
	l.t.Helper()
	for i := range n {
		e := journal.Entry{Type: 1, Session: fmt.Sprint(i), Generation: 1, Body: make([]byte, 900)}
		var err error
		if l.seq, err = l.j.Append(journal.Ordinary, e); err != nil {
			l.t.Fatal(err)
		}
		l.live[e.Session] = e
	}
}

func (l *liveSet) snapshot() {
	l.t.Helper()
	if err := l.j.Snapshot(l.t.Context(), maps.Values(l.live), l.seq); err != nil {
		l.t.Fatal(err)
	}
	l.j.Settle()
}

// TestLiveStateGrowsAndShrinks: the room for snapshots follows.
func TestLiveStateGrowsAndShrinks(t *testing.T) {
	t.Parallel()
	disk := statefstest.New()
	j, _ := mustOpen(t, disk, "a", nil)
	l := liveSet{t: t, j: j, live: map[string]journal.Entry{}}
	l.add(500) // thirty log files, without a snapshot
	l.snapshot()
	l.add(3)
	l.snapshot()
	large := disk.Used()
	s := j.Stats()
	if s.SnapshotBytes < 500*900 || s.SlotBytes < s.SnapshotBytes || s.Segments > 2 {
		t.Errorf("grown: %+v", s)
	}
	clear(l.live)
	for range 4 {
		l.add(3)
		l.snapshot()
	}
	if used := disk.Used(); used > large/4 {
		t.Errorf("%d bytes while 3 records are live, %d while 500 were", used, large)
	}
	// More than was ever appended: what a new version of the program might write.
	for i := range 2000 {
		l.live[fmt.Sprint(i)] = journal.Entry{Type: 1, Session: fmt.Sprint(i), Generation: 1, Body: make([]byte, 900)}
	}
	l.snapshot()
	mustClose(t, j)
	n := 0
	j, rec := mustOpen(t, disk, "a", func(journal.Record) error { n++; return nil })
	mustClose(t, j)
	if n != 2000 || rec.SnapshotSeq != l.seq || rec.LastSeq != l.seq {
		t.Errorf("%d records, %+v, want 2000 as of %d", n, rec, l.seq)
	}
}

func TestSnapshotRefusals(t *testing.T) {
	t.Parallel()
	disk := statefstest.New()
	j, _ := mustOpen(t, disk, "a", nil)
	defer mustClose(t, j)
	var w world
	for range 5 {
		if err := w.append(j, journal.Ordinary, 1); err != nil {
			t.Fatal(err)
		}
	}
	none := func(func(journal.Entry) bool) {}
	if err := j.Snapshot(t.Context(), none, w.seq+1); err == nil {
		t.Error("a snapshot of the future succeeded")
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := j.Snapshot(canceled, entriesOf(w.live), w.seq); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	bad := func(yield func(journal.Entry) bool) { yield(journal.Entry{}) }
	if err := j.Snapshot(t.Context(), bad, w.seq); err == nil {
		t.Error("an entry of type 0 was accepted")
	}
	inside := func(yield func(journal.Entry) bool) {
		if err := j.Snapshot(t.Context(), none, w.seq); !errors.Is(err, journal.ErrBusy) {
			t.Errorf("second snapshot at the same time: %v", err)
		}
		if err := w.append(j, journal.Ordinary, 1); err != nil {
			t.Errorf("append while a snapshot is written: %v", err)
		}
	}
	before := w.seq
	if err := j.Snapshot(t.Context(), inside, before); err != nil {
		t.Error(err)
	}
	if err := j.Snapshot(t.Context(), none, before-1); err == nil {
		t.Error("a snapshot older than the last one succeeded")
	}
	if err := w.snapshot(j); err != nil {
		t.Error(err)
	}
	if rec, err := journal.ReadFS(disk, "a", nil, true); err != nil || rec.SnapshotSeq != w.seq || len(rec.Covered)+len(rec.Damages) > 0 {
		t.Errorf("%+v, %v", rec, err)
	}
}

// writers appends from several goroutines, each with sessions of its own, and takes snapshots beside them.
type writers struct {
	begun [4]atomic.Uint64 // generations
	acked [4]atomic.Uint64
}

func (w *writers) entry(g int, generation uint64) journal.Entry {
	return journal.Entry{Type: 1, Session: fmt.Sprint(g), Generation: generation, Body: make([]byte, 30+generation%700)}
}

func (w *writers) work(j *journal.Journal, steps int) {
	var wg sync.WaitGroup
	for g := range w.acked {
		wg.Go(func() {
			for range steps {
				gen := w.acked[g].Load() + 1
				w.begun[g].Store(gen)
				if _, err := j.Append(journal.Reserved, w.entry(g, gen), w.entry(g, gen)); err != nil {
					return
				}
				w.acked[g].Store(gen)
			}
		})
	}
	wg.Go(func() {
		for range steps / 5 {
			seq := j.LastSeq() // before the state: a snapshot may be newer than it says, never older
			err := j.Snapshot(context.Background(), func(yield func(journal.Entry) bool) {
				for g := range w.acked {
					if gen := w.begun[g].Load(); gen > 0 && !yield(w.entry(g, gen)) {
						return
					}
				}
			}, seq)
			if err != nil {
				return
			}
		}
	})
	wg.Wait()
}

// promised are the generations that must not be lost.
func (w *writers) promised() (p [4]uint64) {
	for g := range w.acked {
		p[g] = w.acked[g].Load()
	}
	return p
}

func checkWriters(disk *statefstest.Disk, boot string, p [4]uint64) error {
	var got [4]uint64
	rec, err := journal.ReadFS(disk, boot, func(r journal.Record) error {
		var g int
		if _, err := fmt.Sscan(r.Session, &g); err != nil {
			return err
		}
		got[g] = max(got[g], r.Generation)
		return nil
	}, false)
	if err != nil {
		return err
	}
	if rec.Ambiguous || len(rec.Damages) > 0 {
		return fmt.Errorf("an honest disk is called damaged: %+v", rec)
	}
	for g := range p {
		if got[g] < p[g] {
			return fmt.Errorf("writer %d: generation %d found, %d acknowledged", g, got[g], p[g])
		}
	}
	return nil
}

// TestManyWritersCutAndFailed cuts the power and lets calls fail while appends share commits and a snapshot is written.
func TestManyWritersCutAndFailed(t *testing.T) {
	t.Parallel()
	for seed := range uint64(effort(12)) {
		disk := statefstest.New()
		r := rand.New(rand.NewPCG(seed, 31))
		var w writers
		var mu sync.Mutex
		var failed error
		failAt := 150 + r.IntN(400)
		disk.Hook(func(op statefstest.Op) statefstest.Outcome {
			if !op.Kind.Changes() {
				return statefstest.Outcome{}
			}
			mu.Lock()
			defer mu.Unlock()
			if r.IntN(6) == 0 && failed == nil {
				p := w.promised()
				if err := checkWriters(disk.Cut(r), "b", p); err != nil {
					failed = fmt.Errorf("before %+v: %w", op, err)
				}
			}
			if op.N > failAt && op.N < failAt+5 && seed%2 == 0 {
				return statefstest.Outcome{Err: fmt.Errorf("scripted")}
			}
			return statefstest.Outcome{}
		})
		j, _ := mustOpen(t, disk, "a", nil)
		w.work(j, 40)
		if seed%2 == 1 { // nothing failed
			j.Settle()
			if n := countSnaps(disk); n != 3 {
				t.Errorf("seed %d: %d places for snapshots, want 3", seed, n)
			}
		}
		_ = j.Close() // fails after a scripted failure
		disk.Hook(nil)
		mu.Lock()
		err := failed
		mu.Unlock()
		for range 4 {
			err = errors.Join(err, checkWriters(disk.Cut(r), "b", w.promised()))
		}
		err = errors.Join(err, checkWriters(disk, "a", w.promised()))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func countSnaps(disk *statefstest.Disk) (n int) {
	for name := range disk.Files() {
		if strings.HasSuffix(name, ".snap") {
			n++
		}
	}
	return n
}
