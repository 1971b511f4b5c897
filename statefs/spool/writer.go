package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Defaults of Options.
const (
	DefaultFileBytes = 4 << 20
	DefaultFiles     = 4
)

// retryAfter is how long a Writer leaves a file system alone that has just
// refused a write: one failing open and write for every chunk of a chatty
// agent would only make a full disk slower.
const retryAfter = 200 * time.Millisecond

// Options bound a spool.
type Options struct {
	// FileBytes is the size at which the writer goes on in a new file; 0 means
	// DefaultFileBytes. A record is never split, so that a file may exceed it
	// by one record.
	FileBytes int64
	// Files is how many files are kept, the newest ones; 0 means DefaultFiles.
	// The least is 2: the file being written and the one before it.
	Files int
}

func (o Options) withDefaults() Options {
	if o.FileBytes <= 0 {
		o.FileBytes = DefaultFileBytes
	}
	if o.Files <= 0 {
		o.Files = DefaultFiles
	}
	o.Files = max(o.Files, 2)
	return o
}

// Writer appends to a spool. Append, Drop and the counters may be called
// concurrently.
//
// It never fails towards the source of the output: what cannot be written is
// counted, and a gap record follows as soon as writing works again.
type Writer struct {
	dir  string
	opt  Options
	salt salt

	lastSeq atomic.Uint64
	dropped atomic.Uint64
	late    [streams]atomic.Uint64 // by Drop, not yet in lost

	mu      sync.Mutex
	file    *os.File // nil = to be opened before the next record
	size    int64    // of file, up to the last whole record
	files   []uint64 // first sequence numbers of the files, oldest first
	offsets [streams]uint64
	lost    [streams]uint64 // bytes that no gap record tells of yet
	cause   error           // why they were lost
	retryAt time.Time
	buf     []byte
}

// Create opens the spool in dir for writing and makes the directory (mode 0700)
// if it is missing; on a full disk that is tried again later. In a directory
// that holds records it goes on after the last good one, in a new file. The
// error names the path; a Writer is returned only without one.
func Create(dir string, opt Options) (*Writer, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) && !full(err) {
		return nil, fmt.Errorf("making spool directory: %w", err)
	}
	w := &Writer{dir: dir, opt: opt.withDefaults(), salt: salt(rand.Uint32())}
	if err := w.resume(); err != nil {
		return nil, fmt.Errorf("resuming spool %q: %w", dir, err)
	}
	return w, nil
}

func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// resume takes over what an earlier writer left.
func (w *Writer) resume() error {
	files, err := listFiles(w.dir)
	if err != nil || len(files) == 0 {
		return err
	}
	w.files = files
	r, err := Open(w.dir)
	if err != nil {
		return err
	}
	defer r.Close()
	last := files[len(files)-1] - 1
	for {
		rec, err := r.Next()
		if err != nil {
			break
		}
		last = max(last, rec.Seq)
		if rec.Stream != GapRec {
			w.offsets[rec.Stream] = rec.Offset + uint64(len(rec.Data))
		} else {
			w.advance(rec.Gap)
		}
	}
	w.lastSeq.Store(last)
	return nil
}

// advance moves the offsets over bytes that a gap record tells of.
func (w *Writer) advance(g *Gap) {
	for name, n := range g.Bytes {
		if s, err := ParseStream(name); err == nil {
			w.offsets[s] += n
		}
	}
}

// LastSeq returns the number of the newest record, 0 before the first.
func (w *Writer) LastSeq() uint64 { return w.lastSeq.Load() }

// DroppedBytes returns how many bytes could not be kept so far.
func (w *Writer) DroppedBytes() uint64 { return w.dropped.Load() }

// Drop counts n bytes of stream that the caller threw away because Append was
// too slow; a gap record tells of them. It never blocks.
func (w *Writer) Drop(stream Stream, n int) {
	w.late[stream].Add(uint64(n))
	w.dropped.Add(uint64(n))
}

// Append writes one record with one write(2) and reports whether it was kept.
// Data longer than MaxData becomes several records. Data is not retained.
func (w *Writer) Append(stream Stream, data []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := true
	for {
		n := min(len(data), MaxData)
		kept = w.appendLocked(stream, data[:n]) && kept
		data = data[n:]
		if len(data) == 0 {
			return kept
		}
	}
}

func (w *Writer) appendLocked(stream Stream, data []byte) bool {
	now := time.Now()
	w.takeLate()
	if w.cause != nil && now.Before(w.retryAt) {
		w.lose(stream, len(data), nil, now)
		return false
	}
	if w.cause != nil {
		if err := w.writeGap(now); err != nil {
			w.lose(stream, len(data), err, now)
			return false
		}
	}
	if err := w.put(stream, data, now); err != nil {
		w.lose(stream, len(data), err, now)
		return false
	}
	return true
}

// errStalled is the cause of bytes that came in by Drop.
var errStalled = errors.New("the spool's file system did not keep up")

// takeLate turns what Drop counted into a loss to tell of.
func (w *Writer) takeLate() {
	for s := range w.late {
		if n := w.late[s].Swap(0); n > 0 {
			w.lost[s] += n
			if w.cause == nil {
				w.cause = errStalled
			}
		}
	}
}

// lose counts what was not written.
func (w *Writer) lose(stream Stream, n int, cause error, now time.Time) {
	w.lost[stream] += uint64(n)
	w.dropped.Add(uint64(n))
	if cause != nil {
		w.cause = cause
		w.retryAt = now.Add(retryAfter)
	}
}

// writeGap tells of the loss and forgets it when that is written.
func (w *Writer) writeGap(now time.Time) error {
	g := Gap{Cause: CauseDropped, Detail: w.cause.Error(), Bytes: map[string]uint64{}}
	for s, n := range w.lost {
		if n > 0 {
			g.Bytes[Stream(s).String()] = n
		}
	}
	data, err := json.Marshal(g)
	if err != nil {
		return fmt.Errorf("encoding gap record: %w", err)
	}
	if err := w.put(GapRec, data, now); err != nil {
		return err
	}
	for s, n := range w.lost {
		w.offsets[s] += n
	}
	w.lost, w.cause = [streams]uint64{}, nil
	return nil
}

// put writes one record, in a new file where the current one is full.
func (w *Writer) put(stream Stream, data []byte, now time.Time) error {
	seq := w.lastSeq.Load() + 1
	if w.file == nil || w.size >= w.opt.FileBytes {
		if err := w.rotate(seq, now); err != nil {
			return err
		}
	}
	h := head{stream: stream, seq: seq, nanos: now.UnixNano(), offset: w.offsets[stream]}
	w.buf = appendRecord(w.buf[:0], h, w.salt, data)
	n, err := w.file.Write(w.buf)
	if cap(w.buf) > keepBuffer {
		w.buf = nil
	}
	if err != nil {
		w.undo(n)
		return err
	}
	w.size += int64(n)
	w.offsets[stream] += uint64(len(data))
	w.lastSeq.Store(seq)
	return nil
}

// keepBuffer is the largest encoding buffer that a Writer keeps.
const keepBuffer = 64 << 10

// undo removes a part of a record that was written. Where that fails too the
// file is given up: a reader passes over its end, and the next record begins a
// new file.
func (w *Writer) undo(written int) {
	if written <= 0 {
		return
	}
	if err := w.file.Truncate(w.size); err == nil {
		return
	}
	w.file.Close() // the write error is what gets reported
	w.file = nil
}

// rotate makes the file that begins with record first the current one, and
// removes the oldest files beyond the bound: before it makes the new one, so
// that a spool at its bound needs no more room than it has.
func (w *Writer) rotate(first uint64, now time.Time) error {
	if w.file != nil {
		w.file.Close() // nothing is buffered in user space
		w.file = nil
	}
	for len(w.files) >= w.opt.Files {
		err := os.Remove(filepath.Join(w.dir, fileName(w.files[0])))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		w.files = w.files[1:]
	}
	f, err := w.newFile(first)
	if err != nil {
		return err
	}
	if _, err := f.Write(appendFileHeader(nil, first, w.salt, now)); err != nil {
		f.Close() // the write error is what gets reported
		return err
	}
	w.file, w.size = f, fileHeaderSize
	if n := len(w.files); n == 0 || w.files[n-1] != first {
		w.files = append(w.files, first)
	}
	return nil
}

// newFile opens a new file, and makes the directory again where it is missing.
func (w *Writer) newFile(first uint64) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC | os.O_APPEND
	path := filepath.Join(w.dir, fileName(first))
	f, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.Mkdir(w.dir, 0o700); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, flags, 0o600)
	}
	return f, err
}

// Sync flushes the current file to the disk. A loss that could not be told of
// yet is tried once more first.
func (w *Writer) Sync() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takeLate()
	if w.cause != nil {
		if err := w.writeGap(time.Now()); err != nil {
			return fmt.Errorf("writing gap record: %w", err)
		}
	}
	if w.file == nil {
		return nil
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	return syncDir(w.dir) // the name of a new file
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close() // read only
	return d.Sync()
}

// Close closes the current file. The Writer must not be used afterwards.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return nil
	}
	err := w.file.Close()
	w.file = nil
	return err
}
