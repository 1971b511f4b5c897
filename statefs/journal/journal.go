package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Entry is one durable fact.
type Entry struct {
	Type       uint16 // opaque here; 0 is invalid, the high bit means that readers who do not know it may skip it
	Session    string // at most MaxSession bytes; "" for facts about the host
	Generation uint64
	Body       []byte // at most MaxBody bytes
}

// Skippable reports whether a reader that does not know e's type may pass over it.
func (e *Entry) Skippable() bool { return e.Type&0x8000 != 0 }

// Record is an entry as it was read back. Body is valid until the function that it was given to returns.
type Record struct {
	Seq      uint64 // for a record of a snapshot: the last number that the snapshot covers
	Snapshot bool
	Entry
}

// Class says which room an append may use.
type Class uint8

// Classes of appends.
const (
	Ordinary Class = iota + 1 // refused with ErrFull while the reserve is all there is
	Reserved                  // stop, delete, compaction: may use the reserve too
)

// Errors of a journal.
var (
	// ErrFull: the prepared room is used up and no more can be made. Nothing was written; the journal is sound and the
	// same append may succeed later.
	ErrFull = errors.New("no room left in the journal")
	// ErrFailed: a write or fdatasync has failed. It is final for this Journal; what was appended since the last
	// acknowledgement may or may not be found by the next Open.
	ErrFailed = errors.New("the journal has failed and acknowledges nothing any more")
	// ErrLocked: another process, or another Open, writes this journal.
	ErrLocked = errors.New("another process has the journal open")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("the journal is closed")
	// ErrTooLarge: an entry, or the entries of one append together, do not fit a log file or the limits of Entry.
	ErrTooLarge = errors.New("too large for the journal")
	// ErrBusy: a snapshot is being written already.
	ErrBusy = errors.New("a snapshot is being written")
)

// Options of [Open]. The zero value is right for the daemon.
type Options struct {
	// SegmentBytes is the length of a log file, a multiple of 4096: 0 means 2 MiB, the least is 16 KiB.
	SegmentBytes int64
	// FS replaces the real file system, and with it the directory and its lock. For tests.
	FS FS
	// BootID replaces /proc/sys/kernel/random/boot_id. For tests.
	BootID string
}

const (
	defaultSegment = 2 << 20
	leastSegment   = 16 << 10
)

// Journal is an open journal. All methods may be called by several goroutines at once.
type Journal struct {
	fs       FS
	dir      *directory // nil with Options.FS
	segBytes int64
	boot     bootHash

	kick chan struct{} // asks prepareLoop for a round
	stop chan struct{} // ends prepareLoop
	done chan struct{} // prepareLoop has ended

	markFile File // nil if it could not be made; used by the flushing goroutine, and by Close after it
	markBuf  [markSize]byte

	snapshots sync.Mutex // held while a snapshot is written or old files are dropped; guards the next two
	unknown   []string   // files without a readable header, put aside after the next snapshot
	bad       []string   // damaged files kept for people, oldest first

	mu         sync.Mutex
	room       *sync.Cond // a round of prepareLoop has ended, or the journal has
	err        error
	closed     bool
	nextSeq    uint64
	durable    uint64
	chain      uint32
	seg        *segment // where the next record goes; nil until one is needed
	open       *commit  // takes more records
	newest     *commit
	expected   int       // appends that were waiting or released when the last commit was done
	releasedAt time.Time // when that was
	spares     [][]byte  // buffers of earlier commits
	number     uint64    // highest file number in use
	sealed     []sealedLog
	snaps      []snapshotFile // oldest first
	snapBytes  int64          // records of the snapshot in force
	laid       int64          // bytes of records laid out since Open, with those that were replayed from the log
	covered    int64          // of laid, by the snapshot in force
	milestones []milestone    // above covered, rising
	pool       pool
	stats      counters
}

// segment is the log file that is being written.
type segment struct {
	number  uint64
	name    string
	file    File
	area    []byte // header area until it is started
	started bool
	base    uint64 // number of its first record
	off     int64  // where the next record goes
	size    int64
	salt    uint32
	prev    *segment // until this one is started
}

func (s *segment) left() int64 { return s.size - s.off }

// sealedLog is a log file that takes no more records.
type sealedLog struct {
	name    string
	number  uint64
	size    int64
	last    uint64 // number of its last record
	damaged bool
}

// snapshotFile is a published snapshot.
type snapshotFile struct {
	name    string
	number  uint64
	upTo    uint64
	size    int64 // of the file
	damaged bool
}

// Open opens the journal in dir, making the directory if only that is missing, and replays it: replay gets every record
// in order, those of the snapshot first, and an error of it ends Open before anything has been changed.
//
// The Recovery is valid with a nil error, and tells what was lost; damage is no error. Errors: ErrLocked,
// *NewerVersionError, replay's, the file system's (a read-only one too). A full disk is no error: appends then answer ErrFull.
func Open(dir string, opts Options, replay func(Record) error) (*Journal, Recovery, error) {
	j, rec, err := open(dir, opts, replay)
	if err != nil {
		return nil, Recovery{}, fmt.Errorf("opening journal %q: %w", dir, err)
	}
	return j, rec, nil
}

func open(dir string, opts Options, replay func(Record) error) (_ *Journal, _ Recovery, err error) {
	if opts.SegmentBytes == 0 {
		opts.SegmentBytes = defaultSegment
	}
	if opts.SegmentBytes < leastSegment || opts.SegmentBytes%headArea != 0 {
		return nil, Recovery{}, fmt.Errorf("segment size %d: not a multiple of %d from %d on", opts.SegmentBytes, headArea, leastSegment)
	}
	j := &Journal{
		fs: opts.FS, segBytes: opts.SegmentBytes, boot: hashBoot(opts.BootID),
		kick: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	j.room = sync.NewCond(&j.mu)
	if j.fs == nil {
		if err := makeDirectory(dir); err != nil {
			return nil, Recovery{}, err
		}
		if j.dir, err = openDirectory(dir, lockExclusive); err != nil {
			return nil, Recovery{}, err
		}
		j.fs = j.dir
	}
	rec, err := j.recover(replay)
	if err != nil {
		j.closeFiles()
		return nil, Recovery{}, err
	}
	// Owned by j, stopped by Close.
	go j.prepareLoop()
	return j, rec, nil
}

// makeDirectory makes dir, mode 0700, and its name durable.
func makeDirectory(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	parent, err := openDirectory(filepath.Dir(filepath.Clean(dir)), lockNone)
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

// recover reads everything, and only then makes the directory ready for writing.
func (j *Journal) recover(replay func(Record) error) (Recovery, error) {
	r := &recoverer{fs: j.fs, boot: j.boot, fn: replay}
	defer r.close()
	if err := r.open(); err != nil {
		return Recovery{}, err
	}
	if err := r.run(); err != nil {
		return Recovery{}, err
	}
	if err := j.adopt(r); err != nil {
		return Recovery{}, err
	}
	return r.rec, nil
}

// LastSeq is the number of the last record that is durable.
func (j *Journal) LastSeq() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.durable
}

// Err is nil, or matches ErrFailed and says why, for ever.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

// failLocked makes err the journal's last word.
func (j *Journal) failLocked(err error) error {
	if j.err == nil {
		j.err = fmt.Errorf("%w: %w", ErrFailed, err)
		j.room.Broadcast()
	}
	return j.err
}

// Close waits for appends and a snapshot that are under way, marks an orderly end and releases the lock. Later calls
// answer ErrClosed. The error tells that the orderly end could not be marked; what was acknowledged is safe all the same.
func (j *Journal) Close() error {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return ErrClosed
	}
	j.closed = true
	j.room.Broadcast()
	last := j.newest
	j.mu.Unlock()
	if last != nil {
		<-last.done
	}
	close(j.stop)
	<-j.done
	j.snapshots.Lock()
	defer j.snapshots.Unlock()
	var err error
	if j.Err() == nil && j.markFile != nil {
		if err = j.writeMark(j.durable, true); err == nil {
			err = j.markFile.Datasync()
		}
		if err != nil {
			err = fmt.Errorf("closing journal: %w", err)
		}
	}
	j.closeFiles()
	return err
}

// closeFiles closes descriptors; everything that had to be durable is.
func (j *Journal) closeFiles() {
	for s := j.seg; s != nil; s = s.prev {
		if s.file != nil {
			_ = s.file.Close()
		}
	}
	for _, f := range j.pool.logs {
		_ = f.file.Close()
	}
	if j.markFile != nil {
		_ = j.markFile.Close()
	}
	if j.dir != nil {
		_ = j.dir.Close()
	}
}

// writeMark rewrites the mark without syncing it.
func (j *Journal) writeMark(seq uint64, clean bool) error {
	m := mark{valid: true, seq: seq, boot: j.boot, clean: clean}
	m.encode(j.markBuf[:])
	if err := writeFull(j.markFile, j.markBuf[:], 0); err != nil {
		return fmt.Errorf("writing mark: %w", err)
	}
	return nil
}

// isFull tells the want of room from other failures.
func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
