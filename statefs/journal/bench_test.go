package journal_test

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/berthd/berth/statefs/journal"
)

// The gates of a release. BenchmarkGates fails below them.
const (
	gateOneWriter   = 1.0  // commits/s, times bbolt with one Update per record
	gateManyWriters = 40.0 // the same with manyWriters
	gateBare        = 0.8  // commits/s, times a loop that does nothing but group-commit zeroed bytes
	gateReplay      = 1500 * time.Millisecond

	manyWriters   = 64
	benchRounds   = 11
	benchTime     = 400 * time.Millisecond
	replayRecords = 1_000_000
	recordBytes   = 256
)

// contestant is one thing that is measured.
type contestant struct {
	name    string
	writers int
	run     func(testing.TB, string, int, []byte) float64
}

func (c contestant) String() string { return fmt.Sprintf("%s, %d writers", c.name, c.writers) }

// report collects the table, and what is below a gate.
type report struct {
	*tabwriter.Writer
	rates  map[string][]float64 // commits/s, by contestant and round
	failed []string
}

func (r *report) row(what string, v []float64, gate string) {
	fmt.Fprintf(r, "%s\t%.2f\t%.2f\t%.2f\t%s\t\n", what, median(v), slices.Min(v), slices.Max(v), gate)
}

// ratio compares round by round: neighbours share the weather.
func (r *report) ratio(above, below contestant, gate float64) {
	var each []float64
	for i := range r.rates[above.String()] {
		each = append(each, r.rates[above.String()][i]/r.rates[below.String()][i])
	}
	what := fmt.Sprintf("%s / %s", above, below.name)
	r.row(what, each, fmt.Sprintf("≥ %.1f", gate))
	if m := median(each); m < gate {
		r.failed = append(r.failed, fmt.Sprintf("%s: %.2f, want at least %.1f", what, m, gate))
	}
}

// BenchmarkGates measures everything in turns, several times, and prints medians: go test -bench Gates -benchtime 1x
func BenchmarkGates(b *testing.B) {
	var all []contestant
	for _, n := range []int{1, manyWriters} {
		all = append(all, contestant{"bare", n, benchBare}, contestant{"journal", n, benchJournal}, contestant{"bbolt", n, benchBolt})
	}
	for b.Loop() {
		var out strings.Builder
		r := &report{Writer: tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0), rates: map[string][]float64{}}
		for range benchRounds {
			for _, c := range all {
				r.rates[c.String()] = append(r.rates[c.String()], c.run(b, b.TempDir(), c.writers, leaseBody(1)))
			}
		}
		fmt.Fprintln(r, "what\tmedian\tlowest\thighest\tgate\t")
		for _, c := range all {
			r.row(c.String()+", commits/s", r.rates[c.String()], "")
		}
		r.ratio(all[1], all[2], gateOneWriter)
		r.ratio(all[1], all[0], gateBare)
		r.ratio(all[4], all[5], gateManyWriters)
		r.ratio(all[4], all[3], gateBare)
		wall, cpu := benchReplay(b)
		r.row(fmt.Sprintf("replay of %d records, s", replayRecords), wall, fmt.Sprintf("< %.1f", gateReplay.Seconds()))
		r.row("the same, s of processor", cpu, "")
		if m := median(wall); m > gateReplay.Seconds() {
			r.failed = append(r.failed, fmt.Sprintf("replay took %.3f s, want less than %v", m, gateReplay))
		}
		_ = r.Flush()                 // into memory
		fmt.Print("\n", out.String()) // a benchmark's log is cut short
		for _, f := range r.failed {
			b.Error(f)
		}
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// leaseBody is about what a lease encodes to: a few numbers, ids and paths.
func leaseBody(id uint64) []byte {
	b := protowire.AppendTag(nil, 1, protowire.VarintType)
	b = protowire.AppendVarint(b, id)
	b = protowire.AppendTag(b, 2, protowire.VarintType)
	b = protowire.AppendVarint(b, 3)
	for i, s := range []string{
		"0123456789abcdef0123456789abcdef", "6f1c8a52-8e39-4b0f-9d0a-1c2d3e4f5a6b:4026531836",
		"/sys/fs/cgroup/berth-0123456789ab/berth-session-g12", "process",
	} {
		b = protowire.AppendTag(b, protowire.Number(3+i), protowire.BytesType)
		b = protowire.AppendString(b, s)
	}
	b = protowire.AppendTag(b, 15, protowire.BytesType)
	return protowire.AppendBytes(b, make([]byte, recordBytes-len(b)-2))
}

// lease is what a body decodes to.
type lease struct {
	session                         string
	generation, id, state           uint64
	instance, epoch, leaf, provider string
}

func decodeLease(r journal.Record) (lease, error) {
	l := lease{session: r.Session, generation: r.Generation}
	for b := r.Body; len(b) > 0; {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return lease{}, protowire.ParseError(n)
		}
		b = b[n:]
		switch kind {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return lease{}, protowire.ParseError(n)
			}
			if b = b[n:]; num == 1 {
				l.id = v
			} else {
				l.state = v
			}
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return lease{}, protowire.ParseError(n)
			}
			b = b[n:]
			switch num {
			case 3:
				l.instance = string(v)
			case 4:
				l.epoch = string(v)
			case 5:
				l.leaf = string(v)
			case 6:
				l.provider = string(v)
			}
		default:
			return lease{}, fmt.Errorf("field %d has wire type %d", num, kind)
		}
	}
	return l, nil
}

// perSecond lets writers call commit until the time is over.
func perSecond(writers int, commit func(writer int) error) (float64, error) {
	var done atomic.Bool
	var count atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	begin := time.Now()
	for w := range writers {
		wg.Go(func() {
			for !done.Load() {
				if err := commit(w); err != nil {
					failed.Store(&err)
					return
				}
				count.Add(1)
			}
		})
	}
	time.Sleep(benchTime)
	done.Store(true)
	wg.Wait()
	rate := float64(count.Load()) / time.Since(begin).Seconds()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return rate, nil
}

func benchJournal(b testing.TB, dir string, writers int, body []byte) float64 {
	j, _, err := journal.Open(filepath.Join(dir, "journal"), journal.Options{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	live := func(yield func(journal.Entry) bool) {
		for w := range writers {
			if !yield(journal.Entry{Type: 1, Session: fmt.Sprint("session-", w), Body: body}) {
				return
			}
		}
	}
	stop := compactWhenDue(b, j, live)
	names := make([]string, writers)
	for w := range names {
		names[w] = fmt.Sprint("session-", w)
	}
	rate, err := perSecond(writers, func(w int) error {
		_, err := j.Append(journal.Ordinary, journal.Entry{Type: 1, Session: names[w], Generation: 1, Body: body})
		return err
	})
	stop()
	if err == nil {
		err = j.Close()
	}
	if err != nil {
		b.Fatal(err)
	}
	return rate
}

// compactWhenDue takes snapshots beside the appends, as the engine does.
func compactWhenDue(b testing.TB, j *journal.Journal, live iter.Seq[journal.Entry]) (stop func()) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				if j.NeedsSnapshot() {
					if err := j.Snapshot(b.Context(), live, j.LastSeq()); err != nil {
						b.Error(err)
						return
					}
				}
			}
		}
	})
	return func() { close(end); wg.Wait() }
}

func benchBolt(b testing.TB, dir string, writers int, body []byte) float64 {
	db, err := bolt.Open(filepath.Join(dir, "bolt"), 0o600, nil)
	if err != nil {
		b.Fatal(err)
	}
	bucket := []byte("leases")
	if err := db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket(bucket); return err }); err != nil {
		b.Fatal(err)
	}
	rate, err := perSecond(writers, func(w int) error {
		return db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucket).Put(fmt.Append(nil, "session-", w), body) })
	})
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		b.Fatal(err)
	}
	return rate
}

// bareLog is the least that a group commit can be: copy bytes into a buffer, pwrite over zeroed blocks, fdatasync, wake.
type bareLog struct {
	f    *os.File
	some chan struct{} // there is something to write
	end  chan struct{}

	mu     sync.Mutex
	open   *bareBatch
	failed error
}

type bareBatch struct {
	buf  []byte
	done chan struct{}
}

const bareSize = 32 << 20

func (l *bareLog) writeLoop() {
	var off int64
	var spare []byte
	for {
		select {
		case <-l.end:
			return
		case <-l.some:
		}
		l.mu.Lock()
		c := l.open
		l.open = &bareBatch{buf: spare[:0], done: make(chan struct{})}
		l.mu.Unlock()
		if off+int64(len(c.buf)) > bareSize {
			off = 0
		}
		_, err := l.f.WriteAt(c.buf, off)
		if err = errors.Join(err, unix.Fdatasync(int(l.f.Fd()))); err != nil {
			l.mu.Lock()
			l.failed = err
			l.mu.Unlock()
		}
		off += int64(len(c.buf))
		spare = c.buf
		close(c.done)
	}
}

func (l *bareLog) append(frame []byte) {
	l.mu.Lock()
	c := l.open
	c.buf = append(c.buf, frame...)
	l.mu.Unlock()
	select {
	case l.some <- struct{}{}:
	default:
	}
	<-c.done
}

func benchBare(b testing.TB, dir string, writers int, body []byte) float64 {
	f, err := os.Create(filepath.Join(dir, "bare"))
	if err != nil {
		b.Fatal(err)
	}
	_, err = f.Write(make([]byte, bareSize))
	if err = errors.Join(err, f.Sync()); err != nil {
		b.Fatal(err)
	}
	l := &bareLog{f: f, some: make(chan struct{}, 1), end: make(chan struct{}), open: &bareBatch{done: make(chan struct{})}}
	var wg sync.WaitGroup
	wg.Go(l.writeLoop)
	frame := make([]byte, 48+16+len(body))
	rate, err := perSecond(writers, func(int) error { l.append(frame); return nil })
	close(l.end)
	wg.Wait()
	if err = errors.Join(err, l.failed, f.Close()); err != nil {
		b.Fatal(err)
	}
	return rate
}

// benchReplay writes a log of a million records once and opens it several times.
func benchReplay(b testing.TB) (wall, cpu []float64) {
	dir := filepath.Join(b.TempDir(), "journal")
	opts := journal.Options{SegmentBytes: 8 << 20}
	j, _, err := journal.Open(dir, opts, nil)
	if err != nil {
		b.Fatal(err)
	}
	entries := make([]journal.Entry, 1000)
	for n := 0; n < replayRecords; {
		for i := range entries {
			n++
			entries[i] = journal.Entry{Type: 1, Session: fmt.Sprint("session-", n%5000), Generation: uint64(n), Body: leaseBody(uint64(n))}
		}
		if _, err := j.Append(journal.Ordinary, entries...); err != nil {
			b.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		b.Fatal(err)
	}
	for range 5 {
		state := make(map[string]lease, 5000)
		begin, used := time.Now(), processorTime()
		j, rec, err := journal.Open(dir, opts, func(r journal.Record) error {
			l, err := decodeLease(r)
			state[r.Session] = l
			return err
		})
		wall, cpu = append(wall, time.Since(begin).Seconds()), append(cpu, processorTime()-used)
		if err != nil || rec.Records != replayRecords || len(state) != 5000 {
			b.Fatalf("%+v, %v", rec, err)
		}
		if err := j.Close(); err != nil {
			b.Fatal(err)
		}
	}
	return wall, cpu
}

// processorTime is what this process has used so far, in seconds.
func processorTime() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// BenchmarkAppend is one goroutine with a small batch, as the engine appends. Its allocations are what counts.
func BenchmarkAppend(b *testing.B) {
	j, _, err := journal.Open(filepath.Join(b.TempDir(), "journal"), journal.Options{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	body := leaseBody(1)
	entries := make([]journal.Entry, 10)
	for i := range entries {
		entries[i] = journal.Entry{Type: 1, Session: fmt.Sprint("session-", i), Generation: 1, Body: body}
	}
	live := func(yield func(journal.Entry) bool) {
		for _, e := range entries {
			if !yield(e) {
				return
			}
		}
	}
	stop := compactWhenDue(b, j, live)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := j.Append(journal.Ordinary, entries...); err != nil {
			b.Fatal(err)
		}
	}
	stop()
	if err := j.Close(); err != nil {
		b.Fatal(err)
	}
}
