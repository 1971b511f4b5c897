package journal

import (
	"errors"
	"fmt"
	"io/fs"
)

// adopt takes over what recovery found and makes it ready for writing. Every step can be repeated after a crash.
func (j *Journal) adopt(r *recoverer) error {
	// 1. The names that were read are on disk before anything follows from them.
	if err := j.fs.Sync(); err != nil {
		return err
	}
	j.nextSeq, j.durable = r.tail.next, r.tail.next-1
	j.chain = r.tail.chain
	// 2. So are the records.
	if err := j.adoptTail(&r.tail); err != nil {
		return err
	}
	if err := j.adoptMark(r); err != nil {
		return err
	}
	j.adoptFiles(r)
	// 3. Finish what a snapshot had begun.
	if err := j.dropOld(false); err != nil {
		return err
	}
	if err := j.adoptPool(r); err != nil {
		return err
	}
	// 4. Have the reserve before the first append. Without room for it the journal opens all the same.
	j.round()
	return nil
}

// adoptTail makes sure that the last log file is on disk as it was read, and goes on in it if it is sound.
func (j *Journal) adoptTail(t *tail) error {
	s := t.source
	if s == nil {
		return nil
	}
	f, err := j.fs.Open(s.name, ReadWrite)
	if err != nil {
		return fmt.Errorf("opening %q for writing: %w", s.name, err)
	}
	if err := settleTail(f, t); err != nil {
		_ = f.Close()
		return fmt.Errorf("settling the end of %q: %w", s.name, err)
	}
	if !t.usable {
		return f.Close()
	}
	j.seg = &segment{
		number: s.head.number, name: s.name, file: f, started: true, base: s.head.seq,
		off: t.off, size: s.head.length, salt: s.head.salt,
	}
	return nil
}

// settleTail zeroes a torn end, and writes header and last commit once more: their pages may be marked clean though an
// earlier fdatasync failed, or be dirty because the process was killed before it.
func settleTail(f File, t *tail) error {
	if t.torn {
		if err := writeZeroes(f, t.off, t.source.info.Bytes); err != nil {
			return err
		}
	}
	last := make([]byte, t.off-t.commitOff)
	n, err := readFull(f, last, t.commitOff)
	if err == nil {
		err = writeFull(f, last[:n], t.commitOff)
	}
	if err != nil {
		return err
	}
	head := t.source.head
	return writeHeader(f, head)
}

// adoptMark opens or makes the mark. An end that is not settled keeps the old mark until the first commit of the next
// file, or a second crash would find it "written in this boot" and take the unsettled end for a torn one.
func (j *Journal) adoptMark(r *recoverer) error {
	f, err := j.fs.Open(markName, ReadWrite)
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = j.fs.Open(markName, Create); isFull(err) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("opening mark: %w", err)
	}
	j.markFile = f
	if begun := len(r.logs)+len(r.snaps)+len(r.unknown) > 0 || r.mark.seq > 0; begun && !r.tail.usable {
		return nil
	}
	switch err := j.writeMark(j.durable, false); {
	case isFull(err): // a new file without a block: do without
		_ = f.Close()
		j.markFile = nil
		return j.fs.Remove(markName)
	case err != nil:
		return err
	}
	if r.names.mark {
		return nil
	}
	return errors.Join(f.Datasync(), j.fs.Sync())
}

// adoptFiles fills the books about files that are in use.
func (j *Journal) adoptFiles(r *recoverer) {
	for _, s := range r.logs {
		j.number = max(j.number, s.head.number)
		if j.seg != nil && s == r.tail.source {
			continue
		}
		j.sealed = append(j.sealed, sealedLog{
			name: s.name, number: s.head.number, size: s.info.Bytes, last: s.last, damaged: s.damaged,
		})
	}
	for _, s := range r.snaps {
		j.number = max(j.number, s.head.number)
		j.snaps = append(j.snaps, snapshotFile{
			name: s.name, number: s.head.number, upTo: s.head.seq, size: s.info.Bytes, damaged: s.damaged,
		})
		if s.head.seq == r.rec.SnapshotSeq {
			j.snapBytes = s.used
		}
	}
	for _, s := range r.unknown {
		j.unknown = append(j.unknown, s.name)
	}
	j.bad = r.names.bad
	j.laid = r.rec.LogBytes
	j.pool.next = r.names.highest
}

// adoptPool takes over room that an earlier process prepared. What has holes (a sparse copy) or another length is made anew.
func (j *Journal) adoptPool(r *recoverer) error {
	for _, name := range r.names.fresh {
		if err := j.fs.Remove(name); err != nil {
			return err
		}
	}
	for _, s := range r.blanks {
		var err error
		switch whole := s.info.AllocatedBytes >= s.info.Bytes && s.info.Bytes == s.head.length; {
		case !whole, isLogName(s.name) && s.info.Bytes != j.segBytes:
			err = j.fs.Remove(s.name)
		case !isLogName(s.name):
			j.pool.slots = append(j.pool.slots, slot{name: s.name, size: s.info.Bytes})
		case s.head.state == stateDirty || !s.settled:
			j.pool.dirty = append(j.pool.dirty, s.name)
		default:
			if f, err := j.fs.Open(s.name, ReadWrite); err == nil { // else do without
				j.pool.logs = append(j.pool.logs, spareLog{name: s.name, file: f, size: s.info.Bytes})
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
