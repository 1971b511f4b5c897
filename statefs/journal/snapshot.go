package journal

import (
	"context"
	"errors"
	"fmt"
	"github.com/berthd/berth/statefs/failpoint"
	"iter"
	"slices"
)

// snapshotChunk is how much of a snapshot is laid out before it is written.
const snapshotChunk = 256 << 10

// errSlotSmall: the snapshot does not fit the room that is ready.
var errSlotSmall = errors.New("snapshot larger than the room prepared for it")

// NeedsSnapshot reports whether a snapshot is due: the log has become long in comparison with what is live, or the disk
// is full and a snapshot would give log files back. It may stay true after one snapshot; the second gives them back.
func (j *Journal) NeedsSnapshot() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil || j.closed {
		return false
	}
	return j.laid-j.covered >= j.thresholdLocked() || j.pool.err != nil && len(j.sealed) > 0
}

// Snapshot writes live, every fact that is still true as of record upTo, and drops what the snapshot before this one
// covers. Appends go on meanwhile. It returns when the snapshot is durable.
//
// upTo is at most LastSeq; live may be ranged over more than once, and its bodies are only read. On a full disk it uses
// room kept for it, as long as live holds no more than the records that were replayed and appended.
// Errors: ctx's, ErrBusy, ErrFull (nothing changed), ErrFailed, ErrClosed, ErrTooLarge, the file system's. After an
// error the previous snapshot is still in force; only failure to drop old files comes after the new one is.
func (j *Journal) Snapshot(ctx context.Context, live iter.Seq[Entry], upTo uint64) error {
	if !j.snapshots.TryLock() {
		return ErrBusy
	}
	defer j.snapshots.Unlock()
	if err := j.snapshot(ctx, live, upTo); err != nil {
		return fmt.Errorf("writing a snapshot of the journal: %w", err)
	}
	return nil
}

func (j *Journal) snapshot(ctx context.Context, live iter.Seq[Entry], upTo uint64) error {
	for {
		w, err := j.borrow(upTo)
		if err != nil {
			return err
		}
		err = w.write(ctx, live)
		if err == nil {
			j.publish(w)
			return j.dropOld(true) // from here on nothing is lent
		}
		if err := j.giveBack(w, err); err != nil {
			return err
		}
	}
}

// snapshotWriter is one attempt.
type snapshotWriter struct {
	fs      FS
	slot    slot
	file    File
	head    fileHeader
	chain   uint32
	buf     []byte
	off     int64 // of buf in the file
	count   uint64
	covers  int64 // of Journal.laid
	spoiled bool  // a write or sync has failed: the file is not used again
}

// borrow takes the largest slot for a snapshot.
func (j *Journal) borrow(upTo uint64) (*snapshotWriter, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for {
		switch newest := j.newestSnapLocked(); {
		case j.err != nil:
			return nil, j.err
		case j.closed:
			return nil, ErrClosed
		case upTo > j.durable:
			return nil, fmt.Errorf("record %d is not durable yet, %d is the last", upTo, j.durable)
		case upTo < newest:
			return nil, fmt.Errorf("record %d is older than the last snapshot, %d", upTo, newest)
		}
		if len(j.pool.slots) > 0 {
			break
		}
		if err := j.waitForRound(); err != nil {
			return nil, err
		}
		if j.pool.err != nil && len(j.pool.slots) == 0 {
			return nil, fmt.Errorf("%w: %w", ErrFull, j.pool.err)
		}
	}
	i := 0
	for k, s := range j.pool.slots {
		if s.size > j.pool.slots[i].size {
			i = k
		}
	}
	s := j.pool.slots[i]
	j.pool.slots = slices.Delete(j.pool.slots, i, i+1)
	j.pool.lent = s.size
	j.number++
	return &snapshotWriter{
		fs: j.fs, slot: s, covers: j.coveredLocked(upTo),
		head: fileHeader{state: stateSnapshot, salt: newSalt(), number: j.number, seq: upTo, length: s.size}, off: headArea,
	}, nil
}

func (j *Journal) newestSnapLocked() uint64 {
	for _, s := range slices.Backward(j.snaps) {
		if !s.damaged {
			return s.upTo
		}
	}
	return 0
}

// coveredLocked is how much of j.laid lies at or before record upTo, rounded down to the last milestone.
func (j *Journal) coveredLocked(upTo uint64) int64 {
	if upTo == j.nextSeq-1 {
		return j.laid
	}
	covered := j.covered
	for _, m := range j.milestones {
		if m.seq <= upTo {
			covered = m.laid
		}
	}
	return covered
}

// write lays live out in the slot and syncs it.
func (w *snapshotWriter) write(ctx context.Context, live iter.Seq[Entry]) (err error) {
	if w.file, err = w.fs.Open(w.slot.name, ReadWrite); err != nil {
		return err
	}
	area := w.head.encode()
	w.chain = w.head.crc
	for e := range live {
		if err := e.check(); err != nil {
			return err
		}
		if err := w.add(flagFirst|flagLast, &e); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	end := Entry{Type: typeSnapshotEnd, Body: snapshotEnd(w.count, w.off+int64(len(w.buf))-headArea)}
	if err := w.add(flagFirst|flagLast|flagInternal, &end); err != nil {
		return err
	}
	if err := failpoint.Hit("journal.snapshot.before"); err != nil {
		return err
	}
	if err := w.flush(); err != nil { // 1.
		return err
	}
	w.spoiled = true                          // until the rest has succeeded
	if err := w.file.Datasync(); err != nil { // 2.
		return err
	}
	if err := failpoint.Hit("journal.snapshot.content"); err != nil {
		return err
	}
	if err := writeFull(w.file, area, 0); err != nil { // 3.
		return err
	}
	if err := w.file.Datasync(); err != nil { // 4.
		return err
	}
	if err := failpoint.Hit("journal.snapshot.headed"); err != nil {
		return err
	}
	w.spoiled = false
	err = w.file.Close()
	w.file = nil
	return err
}

func (w *snapshotWriter) add(flags uint8, e *Entry) error {
	w.count++
	h := head{chain: w.chain, flags: flags, seq: w.count}
	w.buf, w.chain = appendFrame(w.buf, w.head.salt, &h, e)
	if w.off+int64(len(w.buf)) > w.slot.size {
		return errSlotSmall
	}
	if len(w.buf) >= snapshotChunk {
		return w.flush()
	}
	return nil
}

func (w *snapshotWriter) flush() error {
	if err := writeFull(w.file, w.buf, w.off); err != nil {
		w.spoiled = true
		return err
	}
	w.off += int64(len(w.buf))
	w.buf = w.buf[:0]
	return nil
}

// publish makes the snapshot, which is on disk, the one in force.
func (j *Journal) publish(w *snapshotWriter) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pool.lent, j.pool.least = 0, 0
	if len(j.snaps) >= wantSlots-1 {
		j.pool.lent = j.snaps[0].size // dropOld brings it back; appends need not wait for that
	}
	j.snaps = append(j.snaps, snapshotFile{name: w.slot.name, number: w.head.number, upTo: w.head.seq, size: w.slot.size})
	j.snapBytes, j.covered = w.off-headArea, w.covers
	j.milestones = slices.DeleteFunc(j.milestones, func(m milestone) bool { return m.laid <= w.covers })
	j.stats.Snapshots++
}

// giveBack ends an attempt that failed with err. It returns nil if another one is worth while.
func (j *Journal) giveBack(w *snapshotWriter, err error) error {
	if w.file != nil {
		_ = w.file.Close() // its content means nothing
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pool.lent = 0
	if j.err != nil {
		return j.err
	}
	if w.spoiled {
		if isFull(err) {
			err = fmt.Errorf("%w: %w", ErrFull, err)
		}
		return errors.Join(err, j.fs.Remove(w.slot.name))
	}
	j.pool.slots = append(j.pool.slots, w.slot)
	if !errors.Is(err, errSlotSmall) {
		return err
	}
	j.pool.least = 2 * w.slot.size
	if err := j.waitForRound(); err != nil {
		return err
	}
	if j.pool.err != nil && j.slotLocked() <= w.slot.size {
		return fmt.Errorf("%w: %w", ErrFull, j.pool.err)
	}
	return nil
}
