package journal

import "fmt"

// scan reads the records of one file in order and says what every bad place means (FORMAT.md 5).
type scan struct {
	win      *window
	name     string
	head     fileHeader
	snapshot bool
	last     bool // the last log file: its end may be unfinished
	live     bool // a writer is at work on it
	mark     mark
	boot     bootHash

	deliver func(h *head, frame []byte) error
	damage  func(Damage)
	torn    func(Damage)

	off       int64
	expect    uint64 // next record number
	chain     uint32
	chained   bool   // chain is known
	call      []held // records of an append whose last one has not come yet
	broken    bool   // part of the append at hand is lost: deliver the rest of it one by one
	commitOff int64  // where the last commit begins
	latest    uint64 // highest commit start behind the first bad place
	looked    bool   // latest is known
	count     int
	ended     bool // snapshot: the end record was there
	damaged   bool
	cut       bool // the tail from off on is torn
}

// held is a record that waits for the rest of its append.
type held struct {
	head
	off int64
}

// run reads to the end of the file, or of what can be made sense of. The error is deliver's or the file system's.
func (s *scan) run() error {
	s.off, s.commitOff = headArea, headArea
	s.chain, s.chained = s.head.crc, true
	for {
		more, err := s.step()
		if err == nil {
			err = s.win.err
		}
		if err != nil {
			return fmt.Errorf("reading %q at %d: %w", s.name, s.off, err)
		}
		if !more {
			return nil
		}
	}
}

func (s *scan) step() (more bool, err error) {
	h, ok := parseHead(s.win.at(s.off, frameHeadSize), s.head.salt)
	if !ok || h.seq < s.expect {
		return s.badPlace()
	}
	if h.seq > s.expect {
		s.report(Damage{Kind: RecordsMissing, Seq: s.expect, Lost: h.seq - s.expect})
		return true, s.resume(s.off, &h)
	}
	frame := s.win.at(s.off, h.size())
	sessionOK, bodyOK := h.intact(frame)
	switch {
	case h.flags&flagInternal != 0:
		return false, s.end(&h, frame, sessionOK && bodyOK)
	case !sessionOK || !bodyOK:
		return s.badRecord(&h, frame, sessionOK)
	}
	return true, s.accept(&h, frame)
}

// end takes the end record of a snapshot. No other internal record exists in this version.
func (s *scan) end(h *head, frame []byte, intact bool) error {
	if !s.snapshot || h.kind != typeSnapshotEnd {
		return fmt.Errorf("internal record of type %d: not known to version %d", h.kind, Version)
	}
	if intact {
		count, bytes, sane := parseSnapshotEnd(h.body(frame))
		intact = sane && count == s.expect-1 && bytes == s.off-headArea
	}
	if !intact {
		s.report(Damage{Kind: RecordsMissing, Detail: "the end record does not fit the records"})
		return nil
	}
	s.checkChain(h)
	s.ended = true
	return nil
}

func (s *scan) accept(h *head, frame []byte) error {
	s.checkChain(h)
	if h.index == 0 {
		s.commitOff = s.off
	}
	off := s.off
	s.off += int64(h.size())
	s.expect++
	s.count++
	if h.whole() && len(s.call) == 0 {
		s.broken = false
		return s.deliver(h, frame)
	}
	s.call = append(s.call, held{head: *h, off: off})
	if h.flags&flagLast != 0 || s.broken {
		s.broken = s.broken && h.flags&flagLast == 0
		return s.release()
	}
	return nil
}

func (s *scan) checkChain(h *head) {
	if s.chained && h.chain != s.chain {
		s.report(Damage{Kind: ChainBroken, Seq: h.seq, Type: h.kind, Generation: h.generation})
	}
	s.chain, s.chained = h.crc, true
}

// release delivers the held records of an append.
func (s *scan) release() error {
	for i := range s.call {
		h := &s.call[i]
		if err := s.deliver(&h.head, s.win.at(h.off, h.size())); err != nil {
			return err
		}
	}
	s.call = s.call[:0]
	return nil
}

// resume goes on at a valid record behind a loss.
func (s *scan) resume(off int64, h *head) error {
	if err := s.release(); err != nil {
		return err
	}
	s.off, s.expect, s.chained = off, h.seq, false
	s.broken = h.flags&flagFirst == 0
	return nil
}

// badRecord deals with a record whose header is valid and the rest is not.
func (s *scan) badRecord(h *head, frame []byte, sessionOK bool) (more bool, err error) {
	d := Damage{Kind: BodyUnreadable, File: s.name, Offset: s.off, Seq: h.seq, Lost: 1, Type: h.kind, Generation: h.generation}
	if sessionOK {
		d.Session, d.SessionKnown = string(h.session(frame)), true
	} else {
		d.Detail = "the session is damaged too"
	}
	if s.isTorn(h.size()) {
		s.cutTail(&d)
		return false, nil
	}
	s.report(d)
	s.checkChain(h)
	if h.index == 0 {
		s.commitOff = s.off
	}
	if err := s.release(); err != nil {
		return false, err
	}
	s.broken = h.flags&flagLast == 0
	s.off += int64(h.size())
	s.expect++
	return true, nil
}

// badPlace deals with a place that holds no record of the number expected: the end of the log, or a loss.
func (s *scan) badPlace() (more bool, err error) {
	clean := s.win.zeroFrom(s.off)
	if clean && len(s.call) == 0 && !s.snapshot {
		return false, nil
	}
	if s.isTorn(frameHeadSize) {
		s.cutTail(nil)
		return false, nil
	}
	at, h, found := s.win.next(s.off+frameAlign, s.expect, s.head.salt)
	d := Damage{Kind: HeaderUnreadable, Seq: s.expect}
	switch {
	case found:
		d.Lost = h.seq - s.expect
	case s.snapshot:
		d.Detail = "nothing valid follows, the end record is missing"
	case clean:
		d.Detail = "the rest of its append is missing"
	default:
		d.Detail = "nothing valid follows"
	}
	s.report(d)
	if !found {
		s.expect++ // at least one record is taken to be lost, so that a later snapshot can cover the place
		return false, s.release()
	}
	return true, s.resume(at, &h)
}

// cutTail drops the append at hand and everything behind it.
func (s *scan) cutTail(d *Damage) {
	if len(s.call) > 0 {
		s.off, s.expect = s.call[0].off, s.call[0].seq
		s.chain = s.call[0].head.chain
		s.commitOff = min(s.commitOff, s.off)
		s.count -= len(s.call)
		s.call = s.call[:0]
	}
	s.cut = true
	if d != nil {
		s.torn(*d)
	}
}

// isTorn applies FORMAT.md 5 to a bad place at s.off where need bytes are wanted.
func (s *scan) isTorn(need int) bool {
	if !s.last || s.mark.valid && s.mark.seq >= s.expect {
		return false
	}
	if s.live { // what lies behind may have been written after this place was read, so it proves nothing
		return true
	}
	return s.latestCommit() <= s.expect && (s.mark.sameBoot(s.boot) || s.hole(need))
}

// latestCommit is the highest commit start of all valid headers from s.off on. It is looked for once: if it is above a
// later bad place's number, then the record that it came from lies behind that place too.
func (s *scan) latestCommit() uint64 {
	if s.looked {
		return s.latest
	}
	s.looked = true
	for off := s.off; ; {
		at, h, ok := s.win.next(off, s.expect, s.head.salt)
		if !ok {
			return s.latest
		}
		s.latest = max(s.latest, h.commit())
		off = at + frameHeadSize
	}
}

// hole reports whether one of the sectors that hold the need bytes at s.off is zero from there on.
func (s *scan) hole(need int) bool {
	end := min(s.off+int64(need), s.win.size)
	for sector := s.off &^ (sectorSize - 1); sector < end; sector += sectorSize {
		if s.win.zeroBetween(max(sector, s.off), min(sector+sectorSize, s.win.size)) {
			return true
		}
	}
	return false
}

func (s *scan) report(d Damage) {
	d.File = s.name
	if d.Offset == 0 {
		d.Offset = s.off
	}
	s.damaged = true
	s.damage(d)
}
