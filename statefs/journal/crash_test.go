package journal_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/statefstest"
)

// reopen checks that disk, found after what happened, gives back what p promises, that the journal can go on, and that
// what an honest disk leaves is not called damage.
func reopen(disk *statefstest.Disk, boot string, p promise, honest bool) error {
	var got replayed
	j, rec, err := journal.Open("disk", journal.Options{FS: disk, BootID: boot, SegmentBytes: small}, got.take)
	if err != nil {
		return err
	}
	defer func() { _ = j.Close() }() // a second time in the good case
	whole := p.check
	if !honest {
		whole = func(got *replayed) error { return p.noLower(got, rec) }
	}
	if err := whole(&got); err != nil {
		return fmt.Errorf("%w; %+v", err, rec)
	}
	if honest && (rec.Ambiguous || len(rec.Damages) > 0) {
		return fmt.Errorf("an honest disk is called damaged: %+v", rec)
	}
	e := entry(1 << 20)
	seq, err := j.Append(journal.Ordinary, e)
	if err != nil || seq != rec.LastSeq+1 {
		return fmt.Errorf("appending after recovery: number %d, %v; want %d", seq, err, rec.LastSeq+1)
	}
	if err := j.Close(); err != nil {
		return err
	}
	var again replayed
	rec, err = journal.ReadFS(disk, boot, again.take, true)
	if err != nil {
		return err
	}
	told := honest && (rec.TornTail || rec.Ambiguous || len(rec.Damages)+len(rec.Covered) > 0)
	if told || len(again.records) == 0 || again.records[len(again.records)-1] != 1<<20 {
		return fmt.Errorf("reading once more after recovery: %+v", rec)
	}
	return nil
}

// TestPowerCutAnywhere cuts the power before every call that changes something, several ways each.
// case T43, E8
func TestPowerCutAnywhere(t *testing.T) {
	t.Parallel()
	for seed := range uint64(effort(3)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			if err := cutEverywhere(seed, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPowerCutSeesMissingSync removes one kind of sync at a time: the test above must then fail.
func TestPowerCutSeesMissingSync(t *testing.T) {
	t.Parallel()
	for name, lie := range map[string]func(statefstest.Op) bool{
		"log files": func(op statefstest.Op) bool { return op.Kind == statefstest.Datasync && isFile(op.Name, "", ".log") },
		"new files": func(op statefstest.Op) bool { return op.Kind == statefstest.Datasync && isFile(op.Name, "new-", "") },
		"snapshots": func(op statefstest.Op) bool { return op.Kind == statefstest.Datasync && isFile(op.Name, "", ".snap") },
		"directory": func(op statefstest.Op) bool { return op.Kind == statefstest.SyncDir },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(40) {
				if err := cutEverywhere(seed, lie); err != nil {
					t.Logf("seed %d: seen: %v", seed, err)
					return
				}
			}
			t.Error("nothing was seen")
		})
	}
}

func isFile(name, prefix, suffix string) bool {
	return strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix) && (prefix != "" || !strings.Contains(name, "-"))
}

// cutEverywhere runs a workload and looks at power cuts on the way. lie picks syncs that do nothing.
func cutEverywhere(seed uint64, lie func(statefstest.Op) bool) error {
	disk := statefstest.New()
	var w world
	var mu sync.Mutex
	var failed error
	r := rand.New(rand.NewPCG(seed, 3))
	looking := true
	disk.Hook(func(op statefstest.Op) statefstest.Outcome {
		if lie != nil && lie(op) {
			return statefstest.Outcome{Lie: true}
		}
		if !op.Kind.Changes() {
			return statefstest.Outcome{}
		}
		mu.Lock()
		defer mu.Unlock()
		if !looking || failed != nil || op.Kind == statefstest.Write && strings.HasPrefix(op.Name, "new-") && r.IntN(20) > 0 {
			return statefstest.Outcome{}
		}
		p := w.promise() // before the view: what is acknowledged later may be missing
		for k := range 2 {
			if err := reopen(disk.Cut(r), "next boot", p, true); err != nil {
				failed = fmt.Errorf("power cut %d before call %d, %+v: %w", k, op.N, op, err)
			}
		}
		if r.IntN(4) == 0 { // killed, started again, and only then the power goes
			p := w.promise()
			killed := disk.Crash()
			if err := reopen(killed, "a", p, true); err != nil {
				failed = fmt.Errorf("killed before call %d, %+v: %w", op.N, op, err)
			}
		}
		return statefstest.Outcome{}
	})
	j, _, err := journal.Open("disk", journal.Options{FS: disk, BootID: "a", SegmentBytes: small}, nil)
	if err == nil {
		err = errors.Join(w.work(j, rand.New(rand.NewPCG(seed, 5)), 40), j.Close())
	}
	mu.Lock()
	defer mu.Unlock()
	looking = false
	return errors.Join(failed, err)
}

// TestKilledThenPowerCut: what the second process replayed after a kill is on disk before it returns from Open.
func TestKilledThenPowerCut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(effort(20)) {
		r := rand.New(rand.NewPCG(seed, 11))
		disk := statefstest.New()
		var w world
		stopAt := 100 + r.IntN(150)
		var killed *statefstest.Disk
		var p promise
		var mu sync.Mutex
		disk.Hook(func(op statefstest.Op) statefstest.Outcome {
			mu.Lock()
			defer mu.Unlock()
			if op.N >= stopAt && op.Kind == statefstest.Datasync && killed == nil {
				p, killed = w.promise(), disk.Crash()
			}
			return statefstest.Outcome{}
		})
		j, _ := mustOpen(t, disk, "a", nil)
		if err := w.work(j, r, 60); err != nil {
			t.Fatal(err)
		}
		mustClose(t, j)
		mu.Lock()
		if killed == nil {
			t.Fatalf("seed %d: too few calls", seed)
		}
		mu.Unlock()
		var second replayed
		j, _ = mustOpen(t, killed, "a", second.take)
		if err := p.check(&second); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		cut := killed.Cut(r)
		mustClose(t, j)
		var third replayed
		j, rec := mustOpen(t, cut, "b", third.take)
		mustClose(t, j)
		if fmt.Sprint(third.state) != fmt.Sprint(second.state) || rec.Ambiguous || rec.TornTail {
			t.Fatalf("seed %d: replayed %v, after the power cut %v; %+v", seed, second.state, third.state, rec)
		}
	}
}

// TestEveryCallFails lets every call that changes something fail in turn, several ways.
func TestEveryCallFails(t *testing.T) {
	t.Parallel()
	ways := map[string]func(statefstest.Op) statefstest.Outcome{
		"EIO":    func(statefstest.Op) statefstest.Outcome { return statefstest.Outcome{Err: unix.EIO} },
		"ENOSPC": func(statefstest.Op) statefstest.Outcome { return statefstest.Outcome{Err: unix.ENOSPC} },
		"torn between sectors": func(op statefstest.Op) statefstest.Outcome {
			return statefstest.Outcome{Err: unix.EIO, Short: true, Bytes: statefstest.Sector - int(op.Off%statefstest.Sector)}
		},
		"torn anywhere": func(op statefstest.Op) statefstest.Outcome {
			return statefstest.Outcome{Err: unix.EIO, Short: true, Bytes: op.N % (op.Len + 1)}
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := 1; ; n += 1 + n/effort(40) {
				done, err := failAt(n, way, name != "torn anywhere")
				if err != nil {
					t.Fatalf("call %d: %v", n, err)
				}
				if done {
					return
				}
			}
		})
	}
}

// failAt runs a workload whose nth changing call fails. It answers true if there are fewer calls. A write that ends
// within a sector is not honest: after a reboot its record may be called damaged.
func failAt(n int, way func(statefstest.Op) statefstest.Outcome, honest bool) (done bool, err error) {
	disk := statefstest.New()
	var w world
	var mu sync.Mutex
	seen, name := 0, ""
	disk.Hook(func(op statefstest.Op) statefstest.Outcome {
		mu.Lock()
		defer mu.Unlock()
		if !op.Kind.Changes() {
			return statefstest.Outcome{}
		}
		if seen++; seen == n {
			name = op.Name
			if op.Kind != statefstest.Write {
				return statefstest.Outcome{Err: way(statefstest.Op{}).Err}
			}
			return way(op)
		}
		return statefstest.Outcome{}
	})
	j, _, err := journal.Open("disk", journal.Options{FS: disk, BootID: "a", SegmentBytes: small}, nil)
	if err == nil {
		if err := workUntilFailed(j, &w); err != nil {
			return false, err
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if seen < n {
		return true, err
	}
	p := w.promise()
	disk.Hook(nil)
	r := rand.New(rand.NewPCG(uint64(n), 1))
	for range 3 {
		if err := reopen(disk.Cut(r), "b", p, honest); err != nil {
			return false, fmt.Errorf("%s failed, then a power cut: %w", name, err)
		}
	}
	if err := reopen(disk.Crash(), "a", p, true); err != nil {
		return false, fmt.Errorf("%s failed, then a restart: %w", name, err)
	}
	if n := disk.Handles(); n != 0 {
		return false, fmt.Errorf("%d files are still open", n)
	}
	return false, nil
}

// workUntilFailed closes j. The error says that a failure was not final.
func workUntilFailed(j *journal.Journal, w *world) error {
	defer func() { _ = j.Close() }() // fails where the disk does
	err := w.work(j, rand.New(rand.NewPCG(9, 5)), 40)
	if !errors.Is(err, journal.ErrFailed) {
		return nil
	}
	if again := w.append(j, journal.Reserved, 1); !errors.Is(again, journal.ErrFailed) || !errors.Is(j.Err(), journal.ErrFailed) {
		return fmt.Errorf("after %v an append got %v, Err is %v", err, again, j.Err())
	}
	return nil
}

// TestFailedSyncIsFinal: no fdatasync of a log file follows one that failed, and what it covered is not acknowledged.
func TestFailedSyncIsFinal(t *testing.T) {
	t.Parallel()
	disk := statefstest.New()
	var w world
	j, _ := mustOpen(t, disk, "a", nil)
	if err := w.append(j, journal.Ordinary, 3); err != nil {
		t.Fatal(err)
	}
	p := w.promise()
	var mu sync.Mutex
	syncs := 0
	disk.Hook(func(op statefstest.Op) statefstest.Outcome {
		if op.Kind != statefstest.Datasync || !isFile(op.Name, "", ".log") {
			return statefstest.Outcome{}
		}
		mu.Lock()
		defer mu.Unlock()
		syncs++
		return statefstest.Outcome{Err: unix.EIO}
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := j.Append(journal.Reserved, entry(1<<30)); !errors.Is(err, journal.ErrFailed) || !errors.Is(err, unix.EIO) {
				t.Errorf("error is %v", err)
			}
		})
	}
	wg.Wait()
	if err := w.snapshot(j); !errors.Is(err, journal.ErrFailed) {
		t.Errorf("a snapshot after the failure: %v", err)
	}
	if j.NeedsSnapshot() {
		t.Error("a failed journal asks for a snapshot")
	}
	mustClose(t, j)
	if syncs != 1 {
		t.Errorf("%d syncs were tried, want 1", syncs)
	}
	if got := j.LastSeq(); got != 3 {
		t.Errorf("last durable record is %d, want 3", got)
	}
	disk.Hook(nil)
	showsOnlyDurable(t, disk, p)
}

// showsOnlyDurable: pages that are clean in the cache and missing on the disk, as a failed fdatasync leaves them, are
// made durable before a restart shows them.
func showsOnlyDurable(t *testing.T, disk *statefstest.Disk, p promise) {
	t.Helper()
	var got replayed
	j, _ := mustOpen(t, disk, "a", got.take)
	cut := disk.Cut(rand.New(rand.NewPCG(1, 1)))
	mustClose(t, j)
	var after replayed
	j, _ = mustOpen(t, cut, "b", after.take)
	mustClose(t, j)
	if len(got.records) != len(after.records) || len(after.records) < p.ackedN {
		t.Errorf("%d records replayed after the failure, %d of them survive a power cut", len(got.records), len(after.records))
	}
}

// TestShortAndInterruptedCalls lets every read and write be short or interrupted.
func TestShortAndInterruptedCalls(t *testing.T) {
	t.Parallel()
	disk := statefstest.New()
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(4, 4))
	disk.Hook(func(op statefstest.Op) statefstest.Outcome {
		if op.Kind != statefstest.Read && op.Kind != statefstest.Write {
			return statefstest.Outcome{}
		}
		mu.Lock()
		defer mu.Unlock()
		switch r.IntN(4) {
		case 0:
			return statefstest.Outcome{Err: unix.EINTR}
		case 1:
			return statefstest.Outcome{}
		}
		return statefstest.Outcome{Short: true, Bytes: 1 + r.IntN(op.Len)}
	})
	var w world
	j, _ := mustOpen(t, disk, "a", nil)
	if err := w.work(j, rand.New(rand.NewPCG(2, 2)), 30); err != nil {
		t.Fatal(err)
	}
	mustClose(t, j)
	if err := reopen(disk, "a", w.promise(), true); err != nil {
		t.Error(err)
	}
}
