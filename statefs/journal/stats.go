package journal

import (
	"math/bits"
	"time"
)

// SyncBuckets is the number of classes that fdatasync times are counted in.
const SyncBuckets = 24

// Stats is a view of a journal at one instant. Counters start at Open.
type Stats struct {
	Commits, Records, Bytes uint64 // acknowledged: fdatasyncs, records, bytes of records
	Snapshots               uint64
	LastSeq                 uint64

	// Syncs counts fdatasyncs by time: bucket 0 is below 2 µs, bucket n from 2ⁿ µs to below 2ⁿ⁺¹ µs, the last is open.
	Syncs    [SyncBuckets]uint64
	LastSync time.Duration
	MaxSync  time.Duration
	SyncTime time.Duration // sum
	// Flushing is how long the commit that is being written has taken so far; 0 if none is. A watchdog looks here.
	Flushing time.Duration

	LogBytes      int64 // of records that the snapshot in force does not cover
	SnapshotBytes int64 // of its records: what is live, as of then
	SegmentLeft   int64 // bytes left in the log file in use
	SpareSegments int   // log files ready, with the reserved one
	SlotBytes     int64 // room for the next snapshot
	Segments      int   // log files in use
	// RoomErr says why not all the room that is wanted could be made, as of the last try; nil if it could.
	RoomErr error
}

// counters are the parts of Stats that are counted as they happen. Guarded by Journal.mu.
type counters struct {
	Commits, Records, Bytes, Snapshots uint64
	Syncs                              [SyncBuckets]uint64
	last, max, sum                     time.Duration
	flushing                           time.Time // since when; zero if not
}

func (s *counters) add(c *commit, took time.Duration) {
	s.Commits++
	s.Records += uint64(c.count)
	s.Bytes += uint64(len(c.buf))
	s.last, s.max, s.sum = took, max(s.max, took), s.sum+took
	class := bits.Len64(uint64(took.Microseconds())) - 1
	s.Syncs[min(max(class, 0), SyncBuckets-1)]++
}

// Stats never waits for the disk.
func (j *Journal) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := &j.stats
	s := Stats{
		Commits: c.Commits, Records: c.Records, Bytes: c.Bytes, Snapshots: c.Snapshots, LastSeq: j.durable,
		Syncs: c.Syncs, LastSync: c.last, MaxSync: c.max, SyncTime: c.sum,
		LogBytes: j.laid - j.covered, SnapshotBytes: j.snapBytes,
		SpareSegments: len(j.pool.logs), SlotBytes: j.slotLocked(), Segments: len(j.sealed), RoomErr: j.pool.err,
	}
	if j.seg != nil {
		s.SegmentLeft = j.seg.left()
		s.Segments++
	}
	if !c.flushing.IsZero() {
		s.Flushing = time.Since(c.flushing)
	}
	return s
}
