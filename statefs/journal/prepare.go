package journal

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"github.com/berthd/berth/statefs/failpoint"
	"slices"
	"time"
)

// prepareLoop makes room whenever asked, until Close.
func (j *Journal) prepareLoop() {
	defer close(j.done)
	for {
		select {
		case <-j.stop:
			return
		case <-j.kick:
			j.round()
		}
	}
}

// round makes all the room that is wanted, or learns why it cannot.
func (j *Journal) round() {
	j.mu.Lock()
	j.pool.begun++
	begun, failed := j.pool.begun, j.err != nil
	j.mu.Unlock()
	var err error
	if !failed {
		err = errors.Join(j.prepareLogs(), j.prepareSlots())
	}
	j.mu.Lock()
	j.pool.ended, j.pool.err, j.pool.at = begun, err, time.Now()
	j.room.Broadcast()
	j.mu.Unlock()
}

// wantLogsLocked is how many spare log files should be there.
func (j *Journal) wantLogsLocked() int {
	if j.seg == nil {
		return wantLogs + 1
	}
	return wantLogs
}

// lackingLocked reports whether a round would find something to do.
func (j *Journal) lackingLocked() bool {
	return len(j.pool.logs) < j.wantLogsLocked() || j.slotPlanLocked().size > 0
}

// prepareLogs turns dirty log files into spare ones, removes what is too many and makes what is missing.
func (j *Journal) prepareLogs() error {
	for {
		j.mu.Lock()
		name, want := "", len(j.pool.logs) < j.wantLogsLocked()
		if n := len(j.pool.dirty); n > 0 {
			name, j.pool.dirty = j.pool.dirty[n-1], j.pool.dirty[:n-1]
		}
		j.mu.Unlock()

		var spare spareLog
		var err error
		switch {
		case name != "" && !want:
			err = j.fs.Remove(name)
		case name != "":
			spare, err = j.clean(name)
		case want:
			spare, err = j.makeLog(logFile(j.freshNumber()))
		default:
			return nil
		}
		if err != nil {
			return fmt.Errorf("preparing a log file: %w", err)
		}
		if spare.file != nil {
			j.mu.Lock()
			j.pool.logs = append(j.pool.logs, spare)
			j.mu.Unlock()
		}
	}
}

// clean zeroes a dirty log file. One of another length, or that cannot be written, is removed.
func (j *Journal) clean(name string) (spareLog, error) {
	f, err := j.fs.Open(name, ReadWrite)
	if err != nil {
		return spareLog{}, err
	}
	info, err := f.Info()
	if err == nil && info.Bytes == j.segBytes {
		if err = fill(f, j.segBytes); err == nil {
			return spareLog{name: name, file: f, size: j.segBytes}, nil
		}
	}
	return spareLog{}, errors.Join(err, f.Close(), j.fs.Remove(name))
}

// makeLog makes a new spare log file.
func (j *Journal) makeLog(name string) (spareLog, error) {
	f, err := j.makeFile(name, j.segBytes)
	if err != nil {
		return spareLog{}, err
	}
	return spareLog{name: name, file: f, size: j.segBytes}, nil
}

// makeFile makes a blank file of size bytes, all of them written. What cannot be finished is removed: a full disk is not
// made fuller for nothing.
func (j *Journal) makeFile(name string, size int64) (File, error) {
	f, err := j.fs.Open(newName(name), Create)
	if err != nil {
		return nil, err
	}
	err = errors.Join(fill(f, size), failpoint.Hit("journal.prepare.filled"))
	if err == nil {
		err = j.fs.Rename(newName(name), name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), j.fs.Remove(newName(name)))
	}
	if err := j.fs.Sync(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// fill writes zeroes over f and gives it the state blank.
func fill(f File, size int64) error {
	if err := writeZeroes(f, headArea, size); err != nil {
		return err
	}
	if err := f.Datasync(); err != nil {
		return err
	}
	return writeHeader(f, fileHeader{state: stateBlank, salt: newSalt(), length: size})
}

// freshNumber is an N for a new file.
func (j *Journal) freshNumber() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pool.next++
	return j.pool.next
}

func newSalt() uint32 {
	var b [4]byte
	for {
		_, _ = rand.Read(b[:]) // never fails (crypto/rand)
		if n := binary.LittleEndian.Uint32(b[:]); n != 0 {
			return n
		}
	}
}

func writeZeroes(f File, from, to int64) error {
	for from < to {
		n := min(to-from, int64(len(zeroes)))
		if err := writeFull(f, zeroes[:n], from); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// prepareSlots makes the missing places for snapshots, replaces ones that are too small or far too large, and removes
// those that are too many.
func (j *Journal) prepareSlots() error {
	for {
		j.mu.Lock()
		p := j.slotPlanLocked()
		j.mu.Unlock()
		if p == (slotPlan{}) {
			return nil
		}
		if p.size > 0 {
			if err := j.makeSlot(p.size); err != nil {
				return fmt.Errorf("preparing room for a snapshot: %w", err)
			}
		}
		if err := j.removeSlot(p.remove); err != nil {
			return fmt.Errorf("removing room for a snapshot: %w", err)
		}
	}
}

// slotPlan is one step: a slot of a size to make, or none, and then one to remove, or none.
type slotPlan struct {
	size   int64
	remove string
}

func (j *Journal) slotPlanLocked() slotPlan {
	size := j.wantSlotLocked()
	have := len(j.pool.slots) + min(len(j.snaps), wantSlots-1)
	if j.pool.lent > 0 {
		have++
	}
	if have < wantSlots {
		return slotPlan{size: size}
	}
	if len(j.pool.slots) == 0 {
		return slotPlan{}
	}
	least := slices.MinFunc(j.pool.slots, func(a, b slot) int { return cmp.Compare(a.size, b.size) })
	// One slot must hold the next snapshot whatever the log brings until then. The others are enlarged when their turn comes.
	if tight := max(j.boundLocked()+j.segBytes+j.segBytes/4, j.pool.least); j.slotLocked() < tight {
		return slotPlan{size: size, remove: least.name}
	}
	if have > wantSlots && len(j.pool.slots) > 1 {
		return slotPlan{remove: least.name}
	}
	for _, s := range j.pool.slots {
		if s.size > 4*size && j.pool.lent == 0 {
			return slotPlan{size: size, remove: s.name}
		}
	}
	return slotPlan{}
}

func (j *Journal) makeSlot(size int64) error {
	name := snapFile(j.freshNumber())
	f, err := j.makeFile(name, size)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pool.slots = append(j.pool.slots, slot{name: name, size: size})
	return nil
}

// removeSlot removes a slot, unless a snapshot has taken it meanwhile; then there is one too many for a while.
func (j *Journal) removeSlot(name string) error {
	j.mu.Lock()
	before := len(j.pool.slots)
	j.pool.slots = slices.DeleteFunc(j.pool.slots, func(s slot) bool { return s.name == name })
	found := len(j.pool.slots) < before
	j.mu.Unlock()
	if !found {
		return nil
	}
	return j.fs.Remove(name)
}
