package journal_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/berthd/berth/statefs/journal"
)

// world is what one writer did: entry number id is made by make, and each session's generation rises with every entry.
type world struct {
	mu     sync.Mutex
	next   uint64            // id of the next entry
	calls  [][2]uint64       // first and last id of every append, acknowledged or not
	acked  uint64            // highest id that was acknowledged
	ackedN int               // appends
	live   map[string]uint64 // session: id of its newest acknowledged entry
	seq    uint64            // of the newest acknowledged entry
}

const sessions = 5

// made caches entries by id.
var made sync.Map

// entry makes entry id. Ids are from 1; everything about it follows from its id.
func entry(id uint64) journal.Entry {
	if e, ok := made.Load(id); ok {
		return e.(journal.Entry)
	}
	e := makeEntry(id)
	made.Store(id, e)
	return e
}

func makeEntry(id uint64) journal.Entry {
	r := rand.New(rand.NewPCG(id, 7))
	size := 8 + r.IntN(60)
	switch r.IntN(12) {
	case 0:
		size = 600 + r.IntN(1500)
	case 1:
		size = 8
	}
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(r.Uint32())
	}
	binary.LittleEndian.PutUint64(body, id)
	return journal.Entry{
		Type: uint16(1 + id%3), Session: fmt.Sprintf("session-%d", id%sessions), Generation: 1 + id/sessions, Body: body,
	}
}

func idOf(e journal.Entry) uint64 {
	if len(e.Body) < 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(e.Body)
}

func genuine(e journal.Entry) bool {
	want := makeEntry(idOf(e))
	return e.Type == want.Type && e.Session == want.Session && e.Generation == want.Generation && bytes.Equal(e.Body, want.Body)
}

// append appends n entries in one call.
func (w *world) append(j *journal.Journal, class journal.Class, n int) error {
	w.mu.Lock()
	first := w.next + 1
	var entries []journal.Entry
	for range n {
		w.next++
		entries = append(entries, entry(w.next))
	}
	last := w.next
	w.calls = append(w.calls, [2]uint64{first, last})
	w.mu.Unlock()
	seq, err := j.Append(class, entries...)
	if err != nil {
		if errors.Is(err, journal.ErrFull) { // nothing was written: the ids are used again
			w.mu.Lock()
			w.next, w.calls = first-1, w.calls[:len(w.calls)-1]
			w.mu.Unlock()
		}
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked, w.seq = last, seq
	w.ackedN = len(w.calls)
	for id := first; id <= last; id++ {
		if w.live == nil {
			w.live = map[string]uint64{}
		}
		w.live[entry(id).Session] = id
	}
	return nil
}

// snapshot writes what is live.
func (w *world) snapshot(j *journal.Journal) error {
	w.mu.Lock()
	live, seq := maps.Clone(w.live), w.seq
	w.mu.Unlock()
	return j.Snapshot(context.Background(), entriesOf(live), seq)
}

func entriesOf(live map[string]uint64) iter.Seq[journal.Entry] {
	return func(yield func(journal.Entry) bool) {
		for _, id := range live {
			if !yield(entry(id)) {
				return
			}
		}
	}
}

// work does steps appends of 1 to 4 entries with a snapshot now and then, until something fails.
func (w *world) work(j *journal.Journal, r *rand.Rand, steps int) error {
	for i := range steps {
		class := journal.Ordinary
		if i%4 == 3 {
			class = journal.Reserved
		}
		if err := w.append(j, class, 1+r.IntN(4)); err != nil {
			return err
		}
		if r.IntN(25) == 0 || j.NeedsSnapshot() {
			if err := w.snapshot(j); err != nil {
				return err
			}
		}
	}
	return nil
}

// promise is what a later reader must find: at least the appends acknowledged when it was made.
type promise struct {
	calls  [][2]uint64
	ackedN int
}

func (w *world) promise() promise {
	w.mu.Lock()
	defer w.mu.Unlock()
	return promise{calls: slices.Clone(w.calls), ackedN: w.ackedN}
}

// replayed collects what a journal delivers.
type replayed struct {
	state   map[string]uint64
	records []uint64 // ids, snapshot and log
	seqs    []uint64 // of the log
	fake    error
}

func (r *replayed) take(rec journal.Record) error {
	if !genuine(rec.Entry) {
		r.fake = fmt.Errorf("record %d is not what was written: session %q, %d bytes", rec.Seq, rec.Session, len(rec.Body))
	}
	if r.state == nil {
		r.state = map[string]uint64{}
	}
	id := idOf(rec.Entry)
	r.state[rec.Session] = id
	r.records = append(r.records, id)
	if !rec.Snapshot {
		r.seqs = append(r.seqs, rec.Seq)
	}
	return nil
}

// check says what is wrong with got: it must be the state after some number of whole appends, not fewer than were acknowledged.
func (p promise) check(got *replayed) error {
	if got.fake != nil {
		return got.fake
	}
	for i := 1; i < len(got.seqs); i++ {
		if got.seqs[i] != got.seqs[i-1]+1 {
			return fmt.Errorf("record %d follows record %d", got.seqs[i], got.seqs[i-1])
		}
	}
	state := map[string]uint64{}
	for n := 0; ; n++ {
		if n >= p.ackedN && maps.Equal(state, orEmpty(got.state)) {
			return nil
		}
		if n == len(p.calls) {
			return fmt.Errorf("%d appends were acknowledged; what is found is the state after no number of appends from there on: %v", p.ackedN, got.state)
		}
		for id := p.calls[n][0]; id <= p.calls[n][1]; id++ {
			state[entry(id).Session] = id
		}
	}
}

func orEmpty(m map[string]uint64) map[string]uint64 {
	if m == nil {
		return map[string]uint64{}
	}
	return m
}

// noLower says which session's generation has fallen below what was acknowledged without being reported.
func (p promise) noLower(got *replayed, rec journal.Recovery) error {
	if got.fake != nil {
		return got.fake
	}
	if rec.Ambiguous {
		return nil
	}
	told := map[string]bool{}
	for _, d := range rec.Damages {
		if d.SessionKnown {
			told[d.Session] = true
		}
	}
	for _, c := range p.calls[:p.ackedN] {
		for id := c[0]; id <= c[1]; id++ {
			e := entry(id)
			have := uint64(0)
			if at, ok := got.state[e.Session]; ok {
				have = entry(at).Generation
			}
			if have < e.Generation && !told[e.Session] {
				return fmt.Errorf("session %q is at generation %d, %d was acknowledged; nothing is said about it (torn %v, damages %v)",
					e.Session, have, e.Generation, rec.TornTail, rec.Damages)
			}
		}
	}
	return nil
}

// effort is n, or ten times that with BERTH_LONG_TESTS set.
func effort(n int) int {
	if os.Getenv("BERTH_LONG_TESTS") != "" {
		return 10 * n
	}
	return n
}

const small = journal.LeastSegment

func mustOpen(t *testing.T, fs journal.FS, boot string, replay func(journal.Record) error) (*journal.Journal, journal.Recovery) {
	t.Helper()
	j, rec, err := journal.Open("disk", journal.Options{FS: fs, BootID: boot, SegmentBytes: small}, replay)
	if err != nil {
		t.Fatal(err)
	}
	return j, rec
}

func mustClose(t *testing.T, j *journal.Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}
