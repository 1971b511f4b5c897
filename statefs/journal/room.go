package journal

import (
	"fmt"
	"time"
)

// pool is the room that is ready: written once, so that using it allocates nothing. Guarded by Journal.mu.
type pool struct {
	logs  []spareLog
	slots []slot   // for snapshots
	dirty []string // log files whose zeroes are not written yet
	lent  int64    // size of a slot that is on its way back: a running snapshot's, or that of the snapshot being dropped; else 0
	next  uint64   // highest N of a file name
	least int64    // somebody needed a slot of this size since the last snapshot; 0 if nobody did

	begun, ended uint64 // rounds of prepareLoop
	err          error  // of the last round
	at           time.Time
}

// milestone says how much of the log there was at a record, so that a snapshot knows what it leaves.
type milestone struct {
	seq  uint64
	laid int64
}

const milestonesPerSegment = 32

// spareLog is a log file to be.
type spareLog struct {
	name string
	file File
	size int64
}

// slot is room for a snapshot.
type slot struct {
	name string
	size int64
}

const (
	wantLogs  = 2 // the next one, and the reserve
	wantSlots = 3 // places for snapshots: current, previous, next
	// retryRoom is how long a refusal stands before another append may try again to make room: making it is a write of
	// a whole log file until the disk is full.
	retryRoom = time.Second
)

// fitsLocked reports whether an append of need bytes may be accepted (FORMAT.md 3, "room").
func (j *Journal) fitsLocked(class Class, need int64) bool {
	logs := len(j.pool.logs)
	if j.seg == nil || need > j.seg.left() {
		logs--
	}
	if logs < 0 || class == Reserved {
		return logs >= 0
	}
	return logs >= wantLogs-1 && j.boundLocked()+need+j.segBytes <= j.slotLocked()
}

// boundLocked is the size that the next snapshot cannot exceed if every record of the log is still live.
func (j *Journal) boundLocked() int64 {
	return headArea + j.snapBytes + j.laid - j.covered + int64(frameSize(0, 16))
}

// slotLocked is the size of the place for the next snapshot.
func (j *Journal) slotLocked() int64 {
	size := j.pool.lent
	for _, s := range j.pool.slots {
		size = max(size, s.size)
	}
	return size
}

// thresholdLocked is the log length from which a snapshot is due: bounded by live state.
func (j *Journal) thresholdLocked() int64 {
	return max(j.segBytes, 2*j.snapBytes)
}

// wantSlotLocked is how large a new slot is made: for the log until the next snapshot is due, the reserve, and some delay.
func (j *Journal) wantSlotLocked() int64 {
	want := headArea + j.snapBytes + j.thresholdLocked() + 2*j.segBytes
	if tight := j.boundLocked() + j.segBytes + j.segBytes/4; tight > want {
		want = tight + tight/2 // snapshots are late
	}
	return (max(want, j.pool.least) + headArea - 1) &^ (headArea - 1)
}

// waitForRoom returns when an append of need bytes may go ahead, with j.mu held; it releases it meanwhile.
func (j *Journal) waitForRoom(class Class, need int64) error {
	for {
		switch {
		case j.err != nil:
			return j.err
		case j.closed:
			return ErrClosed
		case j.fitsLocked(class, need):
			return nil
		case j.pool.err != nil && time.Since(j.pool.at) < retryRoom:
			return fmt.Errorf("%w: %w", ErrFull, j.pool.err)
		}
		if class == Ordinary {
			j.pool.least = max(j.pool.least, j.boundLocked()+need+j.segBytes)
		}
		if err := j.waitForRound(); err != nil {
			return err
		}
		if p := &j.pool; p.err == nil && !j.fitsLocked(class, need) && !j.lackingLocked() {
			return fmt.Errorf("%w: %d bytes in %d log files, %d for a snapshot", ErrFull, need, len(p.logs), j.slotLocked())
		}
	}
}

// waitForRound asks for a round of preparation that begins after the call and waits until it has ended. It expects
// j.mu to be held and releases it meanwhile.
func (j *Journal) waitForRound() error {
	want := j.pool.begun + 1
	j.wake()
	for j.pool.ended < want && j.err == nil && !j.closed {
		j.room.Wait()
	}
	switch {
	case j.err != nil:
		return j.err
	case j.closed:
		return ErrClosed
	}
	return nil
}

// wake asks prepareLoop for a round.
func (j *Journal) wake() {
	select {
	case j.kick <- struct{}{}:
	default: // one is asked for already, and has not begun
	}
}
