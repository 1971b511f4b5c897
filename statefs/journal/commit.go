package journal

import (
	"encoding/binary"
	"fmt"
	"github.com/berthd/berth/statefs/failpoint"
	"runtime"
	"time"
)

// commitLimit closes a commit to more records; what waits longer goes into the next one.
const commitLimit = 1 << 20

// gatherMax bounds what gather spends: it keeps a processor busy.
const gatherMax = 50 * time.Microsecond

// commit is one write and one fdatasync, shared by the appends that came while the one before was under way.
type commit struct {
	after <-chan struct{} // done of the commit before, nil if that is long over
	done  chan struct{}   // closed when err is final
	err   error

	seg   *segment
	off   int64
	buf   []byte
	count uint32 // records
	last  uint64 // number of the last record

	appends int
}

// Append makes entries durable and returns the number of the last one. They get consecutive numbers, lie together, and
// are replayed all or not at all, except where later damage to the disk takes some.
//
// It may be called by many goroutines: appends that wait share one fdatasync. The entries are copied before it blocks.
// Errors: ErrFull, ErrFailed, ErrTooLarge, ErrClosed. After ErrFailed the outcome of this append is unknown.
func (j *Journal) Append(class Class, entries ...Entry) (lastSeq uint64, err error) {
	need, err := j.check(class, entries)
	if err != nil {
		return 0, fmt.Errorf("appending to the journal: %w", err)
	}
	j.mu.Lock()
	if err := j.waitForRoom(class, need); err != nil {
		j.mu.Unlock()
		return 0, fmt.Errorf("appending to the journal: %w", err)
	}
	c, lead := j.joinLocked(need)
	j.layLocked(c, entries)
	seq := c.last
	j.mu.Unlock()
	if lead {
		j.lead(c)
	} else {
		<-c.done
	}
	if c.err != nil {
		return 0, fmt.Errorf("appending to the journal: %w", c.err)
	}
	return seq, nil
}

// check returns the bytes that entries take.
func (j *Journal) check(class Class, entries []Entry) (int64, error) {
	if class != Ordinary && class != Reserved {
		return 0, fmt.Errorf("class %d is not defined", class)
	}
	if len(entries) == 0 {
		return 0, fmt.Errorf("nothing to append")
	}
	var need int64
	for i := range entries {
		e := &entries[i]
		if err := e.check(); err != nil {
			return 0, fmt.Errorf("entry %d of %d: %w", i+1, len(entries), err)
		}
		need += int64(frameSize(len(e.Session), len(e.Body)))
	}
	if limit := j.segBytes - headArea; need > limit {
		return 0, fmt.Errorf("%d bytes in one append, a log file holds %d: %w", need, limit, ErrTooLarge)
	}
	return need, nil
}

func (e *Entry) check() error {
	switch {
	case e.Type == 0:
		return fmt.Errorf("type 0 is not valid")
	case len(e.Session) > MaxSession:
		return fmt.Errorf("session id of %d bytes, at most %d: %w", len(e.Session), MaxSession, ErrTooLarge)
	case len(e.Body) > MaxBody:
		return fmt.Errorf("body of %d bytes, at most %d: %w", len(e.Body), MaxBody, ErrTooLarge)
	}
	return nil
}

// joinLocked returns the commit that takes need more bytes, and whether the caller has to write it.
func (j *Journal) joinLocked(need int64) (c *commit, lead bool) {
	if j.seg == nil || need > j.seg.left() {
		j.nextSegmentLocked()
	}
	if c = j.open; c != nil && c.seg == j.seg && len(c.buf)+int(need) <= commitLimit {
		return c, false
	}
	c = &commit{seg: j.seg, off: j.seg.off, done: make(chan struct{})}
	if n := len(j.spares); n > 0 {
		c.buf, j.spares = j.spares[n-1][:0], j.spares[:n-1]
	}
	if j.newest != nil {
		c.after = j.newest.done
	}
	j.open, j.newest = c, c
	return c, true
}

// layLocked lays entries out behind what c has.
func (j *Journal) layLocked(c *commit, entries []Entry) {
	before := len(c.buf)
	c.appends++
	h := head{flags: flagFirst}
	for i := range entries {
		if i == len(entries)-1 {
			h.flags |= flagLast
		}
		h.chain, h.seq, h.index = j.chain, j.nextSeq, c.count
		c.buf, j.chain = appendFrame(c.buf, j.seg.salt, &h, &entries[i])
		c.last = j.nextSeq
		c.count++
		j.nextSeq++
		h.flags = 0
	}
	grown := int64(len(c.buf) - before)
	j.seg.off += grown
	j.laid += grown
	if n := len(j.milestones); j.laid-j.covered >= j.segBytes/milestonesPerSegment &&
		(n == 0 || j.laid-j.milestones[n-1].laid >= j.segBytes/milestonesPerSegment) {
		j.milestones = append(j.milestones, milestone{seq: c.last, laid: j.laid})
	}
}

// lead writes c when its turn has come.
func (j *Journal) lead(c *commit) {
	if c.after != nil {
		<-c.after
		c.after = nil
	}
	j.gather(c)
	j.mu.Lock()
	if j.open == c {
		j.open = nil // what comes from now on goes into the next commit
	}
	err := j.err
	if err == nil {
		j.stats.flushing = time.Now()
	}
	j.mu.Unlock()

	var took time.Duration
	if err == nil {
		took, err = j.flush(c)
	}

	j.mu.Lock()
	j.stats.flushing = time.Time{}
	if err != nil {
		c.err = j.failLocked(err)
	} else {
		j.durable = c.last
		j.expected, j.releasedAt = c.appends, time.Now()
		if j.open != nil {
			j.expected += j.open.appends
		}
		j.stats.add(c, took)
	}
	if j.newest == c {
		j.newest = nil
	}
	if len(j.spares) < 2 && cap(c.buf) <= 2*commitLimit {
		j.spares = append(j.spares, c.buf)
	}
	c.buf = nil
	j.mu.Unlock()
	close(c.done)
}

// gather lets the appends that the commit before has just released come back before c is closed to them. Without it the
// first one back commits alone, and all others wait for that and then for their own. It yields until as many are there
// as were waiting or released then, for an eighth of an fdatasync and gatherMax at most, and not at all after a single append.
func (j *Journal) gather(c *commit) {
	j.mu.Lock()
	want, since, limit := j.expected, j.releasedAt, min(j.stats.last/8, gatherMax)
	j.mu.Unlock()
	if want < 2 {
		return
	}
	for time.Since(since) < limit {
		runtime.Gosched()
		j.mu.Lock()
		enough := c.appends >= want || j.open != c
		j.mu.Unlock()
		if enough {
			return
		}
	}
}

// flush puts c on the disk. Only one runs at a time. Its error is final for the journal.
func (j *Journal) flush(c *commit) (time.Duration, error) {
	if !c.seg.started {
		if err := j.start(c.seg); err != nil {
			return 0, fmt.Errorf("beginning %q: %w", c.seg.name, err)
		}
	}
	if err := failpoint.Hit("journal.commit.before"); err != nil {
		return 0, err
	}
	// Crash here or below: part of one commit is there, and nobody was told.
	if err := writeFull(c.seg.file, c.buf, c.off); err != nil {
		return 0, fmt.Errorf("writing %q: %w", c.seg.name, err)
	}
	if err := failpoint.Hit("journal.commit.written"); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := c.seg.file.Datasync(); err != nil {
		return 0, fmt.Errorf("syncing %q: %w", c.seg.name, err)
	}
	took := time.Since(begin)
	if err := failpoint.Hit("journal.commit.synced"); err != nil {
		return 0, err
	}
	if j.markFile != nil {
		if err := j.writeMark(c.last, false); err != nil {
			return 0, err
		}
	}
	return took, nil
}

// nextSegmentLocked plans the next log file; the commit that first uses it begins it. There must be one in the pool.
func (j *Journal) nextSegmentLocked() {
	n := len(j.pool.logs) - 1
	spare := j.pool.logs[n]
	j.pool.logs = j.pool.logs[:n]
	j.number++
	h := fileHeader{
		state: stateLog, salt: newSalt(), number: j.number, seq: j.nextSeq, chain: j.chain, length: spare.size,
	}
	area := h.encode()
	j.seg = &segment{
		number: j.number, name: spare.name, file: spare.file, area: area, salt: h.salt,
		base: j.nextSeq, off: headArea, size: spare.size, prev: j.seg,
	}
	j.chain = h.crc
	j.wake()
}

// start begins the log file s: FORMAT.md 3, "next file".
func (j *Journal) start(s *segment) error {
	// 1. The commits of the file before are complete: this is the only flush.
	if err := writeFull(s.file, s.area, 0); err != nil { // 2.
		return err
	}
	if err := s.file.Datasync(); err != nil { // 3.
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s.started, s.area = true, nil
	if old := s.prev; old != nil {
		_ = old.file.Close() // synced
		j.sealed = append(j.sealed, sealedLog{name: old.name, number: old.number, size: old.size, last: s.base - 1})
		s.prev = nil
	}
	return nil
}

// snapshotEnd is the body of a snapshot's end record.
func snapshotEnd(count uint64, bytes int64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, count)
	return binary.LittleEndian.AppendUint64(b, uint64(bytes))
}

func parseSnapshotEnd(b []byte) (count uint64, bytes int64, ok bool) {
	if len(b) != 16 {
		return 0, 0, false
	}
	return binary.LittleEndian.Uint64(b), int64(binary.LittleEndian.Uint64(b[8:])), true
}
