package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Reader reads a spool from its oldest record on, or from where Seek or
// SeekOffset put it. It takes no lock and disturbs no writer. It is not safe
// for concurrent use.
type Reader struct {
	dir   string
	file  *os.File
	first uint64 // of file; 0 = none opened yet
	pos   int64  // in file
	salt  salt   // of file, or of the one before it when its header is damaged
	// sealed: a later file exists, or the writer is gone
	sealed bool
	ended  bool

	next   uint64 // the number that the next record should have
	damage string // what could not be decoded since the last record; empty = nothing
	held   *Record
	from   offsetFilter
}

// offsetFilter passes over everything before a byte of one stream.
type offsetFilter struct {
	stream Stream // 0 = no filter
	offset uint64
}

// Open returns a Reader at the start of the spool in dir. A missing directory
// is an empty spool: the wrapper may not have made it yet.
func Open(dir string) (*Reader, error) {
	if _, err := listFiles(dir); err != nil {
		return nil, fmt.Errorf("opening spool: %w", err)
	}
	return &Reader{dir: dir, next: 1}, nil
}

// Close releases the open file.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}

// SetEnded tells the Reader that the writer is gone: bytes at the end that do
// not decode are then a gap instead of a record that is still being written.
func (r *Reader) SetEnded() { r.ended = true }

// Seek makes seq the next record, or, where it is not kept any more, a gap from
// seq up to the first one that is. A seq of 0 or 1 is the start; one that does
// not exist yet is waited for.
func (r *Reader) Seek(seq uint64) error {
	seq = max(seq, 1)
	files, err := listFiles(r.dir)
	if err != nil {
		return fmt.Errorf("seeking in spool: %w", err)
	}
	r.Close() // read only, nothing can be lost
	r.first, r.pos, r.next, r.damage, r.held, r.from = 0, 0, seq, "", nil, offsetFilter{}
	for _, first := range files {
		if first > seq {
			break
		}
		// The file after r.first is opened next.
		r.first = first - 1
	}
	return nil
}

// SeekOffset makes the byte number offset of stream the next thing to be read;
// records of other streams before it are passed over. Where that byte is not
// kept any more, the gap comes first, then the first record of the stream.
func (r *Reader) SeekOffset(stream Stream, offset uint64) error {
	if err := r.Seek(1); err != nil {
		return err
	}
	r.from = offsetFilter{stream: stream, offset: offset}
	return nil
}

// Next returns the next record or gap. io.EOF means that there is nothing more
// now: call again after the spool has grown, or, when SetEnded was called, that
// this was all.
func (r *Reader) Next() (Record, error) {
	for {
		rec, err := r.nextRecord()
		if err != nil {
			return Record{}, err
		}
		if r.from.stream != 0 && rec.Gap == nil && !r.from.pass(&rec) {
			continue
		}
		return rec, nil
	}
}

// pass reports whether rec is at or after the wanted byte, cuts what is before
// it, and ends the filter.
func (f *offsetFilter) pass(rec *Record) bool {
	end := rec.Offset + uint64(len(rec.Data))
	if rec.Stream != f.stream || end <= f.offset {
		return false
	}
	if rec.Offset < f.offset {
		rec.Data = rec.Data[f.offset-rec.Offset:]
		rec.Offset = f.offset
	}
	f.stream = 0
	return true
}

// nextRecord returns the next record with the gap before it, if any.
func (r *Reader) nextRecord() (Record, error) {
	rec := r.held
	r.held = nil
	if rec == nil {
		read, err := r.read()
		if err != nil {
			return r.atEnd(err)
		}
		rec = read
	}
	if gap := r.gapBefore(rec.Seq); gap != nil {
		r.held = rec
		return *gap, nil
	}
	r.next = rec.Seq + 1
	return *rec, nil
}

// gapBefore returns the gap between what was read so far and record seq, and
// takes note of it.
func (r *Reader) gapBefore(seq uint64) *Record {
	if seq <= r.next && r.damage == "" {
		return nil
	}
	g := &Gap{Cause: CauseRotated}
	if r.damage != "" {
		g.Cause, g.Detail = CauseDamaged, r.damage
	}
	if seq > r.next {
		g.FromSeq, g.ToSeq = r.next, seq-1
	}
	r.damage, r.next = "", seq
	return &Record{Stream: GapRec, Gap: g}
}

// atEnd turns damage that no record follows into a last gap.
func (r *Reader) atEnd(err error) (Record, error) {
	if err != io.EOF || r.damage == "" || !r.ended {
		return Record{}, err
	}
	gap := &Gap{Cause: CauseDamaged, Detail: r.damage, FromSeq: r.next}
	r.damage = ""
	return Record{Stream: GapRec, Gap: gap}, nil
}

// read returns the next good record that is not before r.next. It opens the
// next file where the current one has ended.
func (r *Reader) read() (*Record, error) {
	for {
		if r.file == nil {
			if err := r.openNext(); err != nil {
				return nil, err
			}
		}
		rec, err := r.readAt()
		switch {
		case err == nil && rec.Seq < r.next:
		case err == nil:
			return rec, nil
		case !errors.Is(err, errIncomplete) && !errors.Is(err, errDamaged):
			return nil, fmt.Errorf("reading spool file %s: %w", fileName(r.first), err)
		case r.resync(err):
		case r.sealed:
			r.leaveFile()
		default:
			if err := r.seal(); err != nil {
				return nil, err
			}
		}
	}
}

// seal notes that nothing more comes into the current file, or returns io.EOF
// when it may. The writer fills a file before it makes the next, but may have
// done both since the last look: so the end is read once more after this.
func (r *Reader) seal() error {
	if !r.ended {
		later, err := r.laterFile()
		if err != nil {
			return err
		}
		if later == 0 {
			return io.EOF
		}
	}
	r.sealed = true
	return nil
}

// leaveFile closes a sealed file, and notes what in it does not decode.
func (r *Reader) leaveFile() {
	info, err := r.file.Stat()
	if err == nil && info.Size() > r.pos && r.damage == "" {
		r.damage = fmt.Sprintf("%d bytes at the end of %s do not decode", info.Size()-r.pos, fileName(r.first))
	}
	r.Close() // read only, nothing can be lost
}

// laterFile returns the first number of the file after the current one, 0 when
// there is none.
func (r *Reader) laterFile() (uint64, error) {
	files, err := listFiles(r.dir)
	if err != nil {
		return 0, fmt.Errorf("listing spool: %w", err)
	}
	i, _ := slices.BinarySearch(files, r.first+1)
	if i == len(files) {
		return 0, nil
	}
	return files[i], nil
}

// openNext opens the file after the current one. io.EOF = there is none yet.
func (r *Reader) openNext() error {
	for {
		first, err := r.laterFile()
		if err != nil {
			return err
		}
		if first == 0 {
			return io.EOF
		}
		f, err := os.Open(filepath.Join(r.dir, fileName(first)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // rotated away between listing and opening
		}
		if err != nil {
			return fmt.Errorf("opening spool file: %w", err)
		}
		r.file, r.first, r.pos, r.sealed = f, first, 0, false
		return nil
	}
}

// peek decodes the fixed part of what is at the current position.
func (r *Reader) peek() (head, error) {
	if r.pos == 0 {
		var b [fileHeaderSize]byte
		if err := r.readFull(b[:], 0); err != nil {
			return head{}, err
		}
		salt, err := parseFileHeader(b[:])
		if err != nil {
			return head{}, err
		}
		r.salt, r.pos = salt, fileHeaderSize
	}
	var b [recordHeaderSize]byte
	if err := r.readFull(b[:], r.pos); err != nil {
		return head{}, err
	}
	return parseHead(b[:])
}

// readAt decodes the record at the current position and steps over it. The
// data of records before r.next is not read.
func (r *Reader) readAt() (*Record, error) {
	h, err := r.peek()
	if err != nil {
		return nil, err
	}
	buf := make([]byte, recordHeaderSize+h.size)
	if err := r.readFull(buf, r.pos); err != nil {
		return nil, err
	}
	data := buf[recordHeaderSize:]
	if err := h.check(r.salt, buf, data); err != nil {
		return nil, err
	}
	r.pos += int64(len(buf))
	return h.record(data), nil
}

// record makes the record of a checked head and its data.
func (h head) record(data []byte) *Record {
	rec := &Record{Seq: h.seq, Time: time.Unix(0, h.nanos), Stream: h.stream, Offset: h.offset, Data: data}
	if h.stream == GapRec {
		rec.Data, rec.Gap = nil, &Gap{Cause: CauseDropped}
		if err := json.Unmarshal(data, rec.Gap); err != nil {
			rec.Gap.Detail = "gap record does not decode"
		}
	}
	return rec
}

func (r *Reader) readFull(b []byte, at int64) error {
	n, err := r.file.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == io.EOF {
		return errIncomplete
	}
	return err
}

// resync looks for a good record after what did not decode because of cause,
// and steps to it. Damage in the middle of a file costs what is damaged, not
// the rest of the file. In a file that still grows only damage is passed over,
// not what is incomplete.
func (r *Reader) resync(cause error) bool {
	if !r.sealed && !errors.Is(cause, errDamaged) {
		return false
	}
	info, err := r.file.Stat()
	if err != nil || info.Size() <= r.pos {
		return false
	}
	rest := make([]byte, info.Size()-r.pos)
	if err := r.readFull(rest, r.pos); err != nil {
		return false
	}
	for i := 1; i+recordHeaderSize <= len(rest); i++ {
		h, err := parseHead(rest[i:])
		if err != nil || h.seq < r.first || i+recordHeaderSize+h.size > len(rest) {
			continue
		}
		if h.check(r.salt, rest[i:], rest[i+recordHeaderSize:i+recordHeaderSize+h.size]) != nil {
			continue
		}
		r.damage = fmt.Sprintf("%d bytes of %s do not decode", i, fileName(r.first))
		r.pos += int64(i)
		return true
	}
	return false
}
