package journal_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/statefstest"
)

// specimen is a small journal with two snapshots and records behind them, closed in good order or not.
func specimen(t *testing.T, orderly bool) (*statefstest.Disk, promise) {
	t.Helper()
	disk := statefstest.New()
	var w world
	j, _ := mustOpen(t, disk, "a", nil)
	for round := range 3 {
		for range 4 {
			if err := w.append(j, journal.Ordinary, 1+round); err != nil {
				t.Fatal(err)
			}
		}
		if round < 2 {
			if err := w.snapshot(j); err != nil {
				t.Fatal(err)
			}
		}
	}
	if orderly {
		mustClose(t, j)
		return disk, w.promise()
	}
	found := disk.Crash()
	mustClose(t, j)
	return found, w.promise()
}

// survives opens a damaged copy and checks that nothing was lost in silence, also for those who look a second time
// before anybody wrote, and that the journal goes on.
func survives(files map[string][]byte, boot string, p promise) error {
	disk := statefstest.New()
	for name, data := range files {
		disk.Put(name, data)
	}
	var got replayed
	j, rec, err := journal.Open("disk", journal.Options{FS: disk, BootID: boot, SegmentBytes: small}, got.take)
	if err != nil {
		return err
	}
	_ = j.Close()
	if err := p.noLower(&got, rec); err != nil {
		return err
	}
	var second replayed
	j, again, err := journal.Open("disk", journal.Options{FS: disk, BootID: boot, SegmentBytes: small}, second.take)
	if err != nil {
		return fmt.Errorf("second open: %w", err)
	}
	defer func() { _ = j.Close() }() // a second time in the good case
	if err := p.noLower(&second, again); err != nil {
		return fmt.Errorf("second open: %w", err)
	}
	seq, err := j.Append(journal.Ordinary, entry(1<<20))
	if err != nil || seq <= p.records() && !again.TornTail && !rec.TornTail {
		return fmt.Errorf("appending got number %d, %v", seq, err)
	}
	if err := j.Close(); err != nil {
		return err
	}
	var third replayed
	third3, err := journal.ReadFS(disk, boot, third.take, false)
	if err != nil {
		return fmt.Errorf("third look: %w", err)
	}
	if !slices.Contains(third.records, 1<<20) {
		return errors.New("what was appended afterwards is not there")
	}
	if again.Ambiguous && !third3.Ambiguous {
		return fmt.Errorf("no longer ambiguous without a snapshot: %+v, then %+v", again, third3)
	}
	return p.noLower(&third, third3)
}

// readable is the first half of survives: what a reader is told.
func readable(disk *statefstest.Disk, boot string, p promise) error {
	var got replayed
	rec, err := journal.ReadFS(disk, boot, got.take, false)
	if err != nil {
		return err
	}
	return p.noLower(&got, rec)
}

func (p promise) records() uint64 { return p.calls[p.ackedN-1][1] }

// used lists the places of a specimen that mean something.
func used(files map[string][]byte) (places []place) {
	for name, data := range files {
		if !inUse(name, data) {
			continue
		}
		end := len(data)
		for end > 0 && data[end-1] == 0 {
			end--
		}
		for off := range min(end+16, len(data)) {
			if off > 64 && off < journal.HeadArea-8 && off%512 > 64 {
				continue // zeroes of the header area
			}
			places = append(places, place{name, off})
		}
	}
	return places
}

func inUse(name string, data []byte) bool { return name == "mark" || journal.InUse(data) }

// firstLog is the oldest log file in use.
func firstLog(disk *statefstest.Disk) (name string, data []byte) {
	for n, d := range disk.Files() {
		if strings.HasSuffix(n, ".log") && journal.InUse(d) && (data == nil || journal.NumberOf(d) < journal.NumberOf(data)) {
			name, data = n, d
		}
	}
	return name, data
}

type place struct {
	name string
	off  int
}

// TestEveryBitFlip flips bits at every offset of every file that is in use, as the same boot and as a later one see it.
// case T42
func TestEveryBitFlip(t *testing.T) {
	t.Parallel()
	for _, boot := range []string{"a", "b"} {
		for _, orderly := range []bool{true, false} {
			t.Run(fmt.Sprintf("boot %s, orderly %v", boot, orderly), func(t *testing.T) {
				t.Parallel()
				found, p := specimen(t, orderly)
				disk := statefstest.New()
				for name, data := range found.Files() {
					if inUse(name, data) { // the rest only costs time
						disk.Put(name, data)
					}
				}
				for i, at := range used(disk.Files()) {
					if orderly && i%4 != 0 {
						continue // differs in the mark only
					}
					mask := byte(1) << (i % 8)
					disk.Flip(at.name, at.off, mask)
					err := readable(disk, boot, p)
					if err == nil && i%61 == 0 { // opening for writing costs fifty times as much
						err = survives(disk.Files(), boot, p)
					}
					if err != nil {
						t.Errorf("%s at %d, mask %#x: %v", at.name, at.off, mask, err)
					}
					disk.Flip(at.name, at.off, mask)
				}
			})
		}
	}
}

// TestEveryTruncation cuts every file in use short at every record and around it.
// case T42
func TestEveryTruncation(t *testing.T) {
	t.Parallel()
	for _, boot := range []string{"a", "b"} {
		disk, p := specimen(t, true)
		files := disk.Files()
		for i, at := range used(files) {
			if i%3 != 0 {
				continue
			}
			whole := files[at.name]
			disk.Put(at.name, whole[:at.off])
			err := readable(disk, boot, p)
			if err == nil && i%61 == 0 {
				err = survives(disk.Files(), boot, p)
			}
			if err != nil {
				t.Errorf("boot %s: %s cut to %d bytes: %v", boot, at.name, at.off, err)
			}
			disk.Put(at.name, whole)
		}
	}
}

// TestEveryRecordLost zeroes or scrambles each record, each file and each pair of places in turn.
// case T42
func TestEveryRecordLost(t *testing.T) {
	t.Parallel()
	disk, p := specimen(t, true)
	files := disk.Files()
	r := rand.New(rand.NewPCG(8, 8))
	for name, whole := range files {
		if !inUse(name, whole) {
			continue
		}
		without := copied(files)
		delete(without, name)
		if err := survives(without, "a", p); err != nil {
			t.Errorf("%s missing: %v", name, err)
		}
		offs := journal.FrameOffsets(whole)
		if len(offs) == 0 {
			continue
		}
		offs = append(offs, int64(len(whole)))
		for i, off := range offs[:len(offs)-1] {
			for kind, spoil := range map[string]func([]byte){
				"zeroed":    func(b []byte) { clear(b) },
				"scrambled": func(b []byte) { scramble(b, r) },
				"tail":      func([]byte) { clear(files[name][off:]) },
			} {
				files[name] = slices.Clone(whole)
				spoil(files[name][off:min(offs[i+1], off+600)])
				if err := survives(files, "a", p); err != nil {
					t.Errorf("%s, record %d %s: %v", name, i, kind, err)
				}
			}
			files[name] = whole
		}
	}
}

// TestManyPlacesDamaged scrambles several places at once.
func TestManyPlacesDamaged(t *testing.T) {
	t.Parallel()
	disk, p := specimen(t, true)
	files := disk.Files()
	places := used(files)
	for seed := range uint64(effort(300)) {
		r := rand.New(rand.NewPCG(seed, 21))
		spoilt := copied(files)
		for range 1 + r.IntN(5) {
			at := places[r.IntN(len(places))]
			data := slices.Clone(spoilt[at.name])
			b := data[at.off:min(len(data), at.off+1+r.IntN(80))]
			switch r.IntN(3) {
			case 0:
				scramble(b, r)
			case 1:
				clear(b)
			case 2:
				from := places[r.IntN(len(places))]
				copy(b, files[from.name][from.off:])
			}
			spoilt[at.name] = data
		}
		if err := survives(spoilt, []string{"a", "b"}[seed%2], p); err != nil {
			var spoiltBoth bool
			for _, name := range []string{"mark"} { // without the mark a zeroed end is invisible: FORMAT.md 8
				spoiltBoth = spoiltBoth || string(spoilt[name]) != string(files[name])
			}
			if !spoiltBoth {
				t.Errorf("seed %d: %v", seed, err)
			}
		}
	}
}

func copied(files map[string][]byte) map[string][]byte {
	c := map[string][]byte{}
	for name, data := range files {
		c[name] = data
	}
	return c
}

func scramble(b []byte, r *rand.Rand) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// TestDamagedBodyTellsWhose: one record in the middle is reported by session and generation, the rest is served.
func TestDamagedBodyTellsWhose(t *testing.T) {
	t.Parallel()
	disk := statefstest.New()
	j, _ := mustOpen(t, disk, "a", nil)
	for id := uint64(1); id <= 9; id++ {
		if _, err := j.Append(journal.Ordinary, entry(id)); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, j)
	name, data := firstLog(disk)
	off := journal.FrameOffsets(data)[4]
	data[off+48+16+3] ^= 1
	disk.Put(name, data)
	var got replayed
	j, rec := mustOpen(t, disk, "b", got.take)
	want := entry(5)
	if len(rec.Damages) != 1 || rec.Ambiguous || rec.TornTail || len(got.records) != 8 {
		t.Fatalf("%d records, %+v", len(got.records), rec)
	}
	d := rec.Damages[0]
	if d.Kind != journal.BodyUnreadable || !d.SessionKnown || d.Type != want.Type || d.Session != want.Session || d.Generation != want.Generation || d.Seq != 5 || d.Offset != off || d.File != name {
		t.Errorf("reported as %+v (%v)", d, d)
	}
	// The damaged file takes no more records, and is kept when it is no longer needed.
	if _, err := j.Append(journal.Ordinary, entry(10)); err != nil {
		t.Fatal(err)
	}
	w := world{live: map[string]uint64{"session-0": 10}, seq: 10}
	for range 2 {
		if err := w.snapshot(j); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, j)
	files := disk.Files()
	if string(files["bad-"+name]) != string(data) {
		t.Error("the damaged file was not kept as it was")
	}
	if rec, err := journal.ReadFS(disk, "b", nil, true); err != nil || len(rec.Damages)+len(rec.Covered) != 0 {
		t.Errorf("after two snapshots: %+v, %v", rec, err)
	}
}

// TestDamagedSnapshotFallsBack: the snapshot before it and the log files since give the same state.
func TestDamagedSnapshotFallsBack(t *testing.T) {
	t.Parallel()
	disk, p := specimen(t, true)
	var snaps []string
	files := disk.Files()
	for name, data := range files {
		if strings.HasSuffix(name, ".snap") && inUse(name, data) {
			snaps = append(snaps, name)
		}
	}
	slices.SortFunc(snaps, func(a, b string) int { return int(journal.NumberOf(files[a])) - int(journal.NumberOf(files[b])) })
	if len(snaps) != 2 {
		t.Fatalf("snapshots: %v", snaps)
	}
	newest := snaps[1]
	data := disk.Files()[newest]
	data[journal.HeadArea+70] ^= 4
	disk.Put(newest, data)
	var got replayed
	j, rec := mustOpen(t, disk, "b", got.take)
	mustClose(t, j)
	if err := p.check(&got); err != nil {
		t.Error(err)
	}
	if len(rec.Damages) != 0 || rec.Ambiguous || len(rec.Covered) != 1 || rec.Covered[0].File != newest {
		t.Errorf("%+v", rec)
	}
	if _, ok := disk.Files()["bad-"+newest]; !ok {
		t.Error("the damaged snapshot was not kept")
	}
}

// TestUnreadableSectors lets reads of one block fail with EIO, as a dying disk does.
func TestUnreadableSectors(t *testing.T) {
	t.Parallel()
	pristine, p := specimen(t, true)
	for name, data := range pristine.Files() {
		if !inUse(name, data) {
			continue
		}
		for block := int64(0); block < int64(len(data)); block += 4096 {
			disk := pristine.Crash()
			disk.Hook(func(op statefstest.Op) statefstest.Outcome {
				if op.Kind == statefstest.Read && op.Name == name && op.Off < block+4096 && op.Off+int64(op.Len) > block {
					return statefstest.Outcome{Err: unix.EIO}
				}
				return statefstest.Outcome{}
			})
			var got replayed
			rec, err := journal.ReadFS(disk, "a", got.take, false)
			if err != nil {
				t.Fatalf("%s block at %d: %v", name, block, err)
			}
			if err := p.noLower(&got, rec); err != nil {
				t.Errorf("%s block at %d: %v", name, block, err)
			}
		}
	}
}
