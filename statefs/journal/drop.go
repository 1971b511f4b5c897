package journal

import (
	"errors"
	"fmt"
	"github.com/berthd/berth/statefs/failpoint"
	"slices"
)

// dropOld turns what no kept snapshot needs into room again. Kept are the two newest intact snapshots and every log file
// with a record above the older of them. published tells that a snapshot has been written since Open.
// Callers hold j.snapshots, or are Open.
func (j *Journal) dropOld(published bool) error {
	defer j.wake()
	defer j.returnSlot()
	j.mu.Lock()
	logs, snaps := j.dropPlanLocked()
	j.mu.Unlock()
	for _, l := range logs { // Oldest first: whatever a crash leaves is without a gap.
		if err := failpoint.Hit("journal.drop.log"); err != nil {
			return err
		}
		if err := j.dropLog(l); err != nil {
			return fmt.Errorf("dropping old log file %q: %w", l.name, err)
		}
	}
	for _, s := range snaps {
		if err := failpoint.Hit("journal.drop.snapshot"); err != nil {
			return err
		}
		if err := j.dropSnap(s); err != nil {
			return fmt.Errorf("dropping old snapshot %q: %w", s.name, err)
		}
	}
	for published && len(j.unknown) > 0 {
		if _, err := j.keepBad(j.unknown[0]); err != nil {
			return fmt.Errorf("putting %q aside: %w", j.unknown[0], err)
		}
		j.unknown = j.unknown[1:]
	}
	return nil
}

// returnSlot ends the time in which a slot counts that is on its way back: it is there, or it does not come.
func (j *Journal) returnSlot() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pool.lent = 0
}

// dropPlanLocked says what is no longer needed, oldest first.
func (j *Journal) dropPlanLocked() (logs []sealedLog, snaps []snapshotFile) {
	var intact []snapshotFile
	for _, s := range j.snaps {
		if !s.damaged {
			intact = append(intact, s)
		}
	}
	if len(intact) == 0 {
		return nil, nil
	}
	for _, s := range j.snaps {
		switch {
		case s.damaged && (len(intact) >= 2 || s.number > intact[0].number): // not the one in use
			snaps = append(snaps, s)
		case !s.damaged && len(intact) >= 2 && s.number < intact[len(intact)-2].number:
			snaps = append(snaps, s)
		}
	}
	if len(intact) < 2 {
		return nil, snaps
	}
	previous := intact[len(intact)-2].upTo
	for _, l := range j.sealed {
		if l.last > previous {
			break
		}
		logs = append(logs, l)
	}
	return logs, snaps
}

func (j *Journal) dropLog(l sealedLog) error {
	gone, err := l.damaged, error(nil)
	if l.damaged {
		gone, err = j.keepBad(l.name)
	}
	if err == nil && !gone {
		err = j.giveUp(l.name, fileHeader{state: stateDirty, salt: newSalt(), length: l.size})
	}
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sealed = slices.DeleteFunc(j.sealed, func(o sealedLog) bool { return o.name == l.name })
	if !gone {
		j.pool.dirty = append(j.pool.dirty, l.name)
	}
	return nil
}

func (j *Journal) dropSnap(s snapshotFile) error {
	gone, err := s.damaged, error(nil)
	if s.damaged {
		gone, err = j.keepBad(s.name)
	}
	if err == nil && !gone {
		err = j.giveUp(s.name, fileHeader{state: stateBlank, salt: newSalt(), length: s.size})
	}
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.snaps = slices.DeleteFunc(j.snaps, func(o snapshotFile) bool { return o.name == s.name })
	if !gone {
		j.pool.slots, j.pool.lent = append(j.pool.slots, slot{name: s.name, size: s.size}), 0
	}
	return nil
}

// giveUp writes a header that says that the file is no log and no snapshot any more.
func (j *Journal) giveUp(name string, h fileHeader) error {
	f, err := j.fs.Open(name, ReadWrite)
	if err != nil {
		return err
	}
	return errors.Join(writeHeader(f, h), f.Close())
}

// keepBad puts a damaged file aside for people, and removes the one of its kind that was kept before. It answers false,
// and the file is where it was, if the file system has no room for that: then its room is worth more.
func (j *Journal) keepBad(name string) (kept bool, err error) {
	if err := j.fs.Rename(name, badName(name)); isFull(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	older := slices.Clone(j.bad)
	j.bad = append(j.bad, badName(name))
	for _, b := range older {
		if isLogName(b) != isLogName(name) {
			continue
		}
		if err := j.fs.Remove(b); err != nil {
			return true, err
		}
		j.bad = slices.DeleteFunc(j.bad, func(o string) bool { return o == b })
	}
	return true, nil
}
