package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// recoverer reads a whole directory. It changes nothing.
type recoverer struct {
	fs   FS
	boot bootHash
	live bool
	all  bool // read every file, also what a snapshot covers (verify)
	fn   func(Record) error

	names   listing
	mark    mark
	buf     []byte    // of the window in use
	logs    []*source // by number
	snaps   []*source // by number
	blanks  []*source // blank and dirty ones
	unknown []*source // no readable header
	rec     Recovery
	tail    tail
}

// source is one file of the journal.
type source struct {
	name    string
	file    File
	info    FileInfo
	area    []byte // header area
	head    fileHeader
	settled bool // both copies of the header agree
	damaged bool
	used    int64  // snapshot: bytes of its records, once read
	last    uint64 // log: number of its last record
}

// tail is where the log ends and a writer may go on.
type tail struct {
	source    *source // the last log file; nil without one
	usable    bool    // the file is sound up to off and takes more records
	torn      bool    // what follows off must become zero
	off       int64
	commitOff int64
	chain     uint32
	next      uint64 // number of the next record
}

func (r *recoverer) close() {
	for _, s := range slices.Concat(r.logs, r.snaps, r.blanks, r.unknown) {
		_ = s.file.Close() // read-only
	}
	r.logs, r.snaps, r.blanks, r.unknown = nil, nil, nil, nil
}

// open lists and opens everything, and refuses newer versions before anything is delivered.
// The mark is read first, so beside a live writer it is not ahead of what is found.
func (r *recoverer) open() (err error) {
	if err := r.readMark(); err != nil {
		return err
	}
	if r.names, err = list(r.fs); err != nil {
		return err
	}
	for _, name := range r.names.files {
		if err := r.openSource(name); err != nil {
			return err
		}
	}
	for _, s := range []*[]*source{&r.logs, &r.snaps} {
		slices.SortStableFunc(*s, func(a, b *source) int { return cmp.Compare(a.head.number, b.head.number) })
		r.dropTwins(s)
	}
	return nil
}

func (r *recoverer) readMark() error {
	f, err := r.fs.Open(markName, ReadOnly)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening mark: %w", err)
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, markSize)
	n, err := readFull(f, b, 0)
	if err != nil && !isMediumError(err) {
		return fmt.Errorf("reading mark: %w", err)
	}
	r.mark = parseMark(b[:n])
	return nil
}

// openSource opens a file and sorts it by its header.
func (r *recoverer) openSource(name string) error {
	f, err := r.fs.Open(name, ReadOnly)
	if err != nil {
		return fmt.Errorf("opening %q: %w", name, err)
	}
	s := &source{name: name, file: f}
	if err := s.readHeader(); err != nil {
		_ = f.Close() // read-only
		return err
	}
	switch {
	case s.head.state == stateLog && isLogName(name) && s.head.seq > 0:
		r.logs = append(r.logs, s)
	case s.head.state == stateSnapshot && !isLogName(name):
		r.snaps = append(r.snaps, s)
	case s.head.state == stateBlank || s.head.state == stateDirty && isLogName(name):
		r.blanks = append(r.blanks, s)
	default:
		r.unknown = append(r.unknown, s)
	}
	return nil
}

func (s *source) readHeader() (err error) {
	if s.info, err = s.file.Info(); err != nil {
		return fmt.Errorf("asking about %q: %w", s.name, err)
	}
	win := window{f: s.file, size: min(s.info.Bytes, headArea), buf: make([]byte, headArea)}
	s.area = win.at(0, headArea)
	if win.err != nil {
		return fmt.Errorf("reading %q: %w", s.name, win.err)
	}
	s.head, _, s.settled, err = parseFileHeader(s.area, s.name)
	return err
}

// dropTwins moves files whose number another one has to the unknown ones: somebody copied them here.
func (r *recoverer) dropTwins(files *[]*source) {
	var one []*source
	for _, s := range *files {
		if len(one) > 0 && one[len(one)-1].head.number == s.head.number {
			r.unknown = append(r.unknown, s)
		} else {
			one = append(one, s)
		}
	}
	*files = one
}

// run delivers the snapshot and the log behind it. open comes first.
func (r *recoverer) run() error {
	used, err := r.readSnapshot()
	if err != nil {
		return err
	}
	if used != nil {
		r.rec.SnapshotSeq = used.head.seq
	}
	if err := r.readLogs(); err != nil {
		return err
	}
	next := max(r.tail.next, r.rec.SnapshotSeq+1)
	if r.mark.valid {
		next = max(next, r.mark.seq+1)
	}
	r.tail.usable = r.tail.usable && r.tail.next == next // else the numbers would have a gap
	r.tail.next = next
	r.rec.LastSeq = next - 1
	r.rec.Live = r.live
	return nil
}

// record makes what is delivered. The body aliases the window.
func record(h *head, frame []byte, snapshot bool, seq uint64) Record {
	return Record{
		Seq: seq, Snapshot: snapshot,
		Entry: Entry{Type: h.kind, Session: string(h.session(frame)), Generation: h.generation, Body: h.body(frame)},
	}
}

func (r *recoverer) window(s *source) *window {
	want := int(min(max(s.info.Bytes, headArea), windowSize))
	if len(r.buf) < want {
		r.buf = make([]byte, want)
	}
	w := &window{f: s.file, size: s.info.Bytes, buf: r.buf}
	if r.live {
		w.check = s.unchanged
	}
	return w
}

// unchanged fails with ErrCompacted unless s still has the header that it had: only then what was just read of it was
// not being used for something else already.
func (s *source) unchanged() error {
	now := source{name: s.name, file: s.file}
	if err := now.readHeader(); err != nil {
		return err
	}
	if now.head != s.head {
		return ErrCompacted
	}
	return nil
}
