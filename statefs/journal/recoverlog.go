package journal

// baseOf is the number of the first record in log file i, 0 if there is no such file.
func (r *recoverer) baseOf(i int) uint64 {
	if i < len(r.logs) {
		return r.logs[i].head.seq
	}
	return 0
}

// readLogs delivers what the snapshot does not cover.
func (r *recoverer) readLogs() error {
	if len(r.logs) == 0 {
		r.noLogs()
		return nil
	}
	expect := r.rec.SnapshotSeq + 1
	var prev *scan
	for i, s := range r.logs {
		next := r.baseOf(i + 1)
		if !r.all && next != 0 && next <= r.rec.SnapshotSeq {
			s.last = next - 1
			continue // everything in it is covered, and so is the beginning of the next
		}
		if prev == nil && s.head.seq < expect {
			expect = s.head.seq
		}
		sc, err := r.readLog(i, expect, prev)
		if err != nil {
			return err
		}
		expect, prev = sc.expect, sc
		if next > expect {
			r.rec.report(Damage{Kind: RecordsMissing, File: s.name, Offset: sc.off, Seq: expect, Lost: next - expect}, r.rec.SnapshotSeq)
			s.damaged, expect = true, next
		}
		s.last = expect - 1
	}
	r.finish(expect, prev)
	return nil
}

// noLogs judges a directory without a log file: a new one, or a loss.
func (r *recoverer) noLogs() {
	r.tail.next = r.rec.SnapshotSeq + 1
	if r.rec.SnapshotSeq == 0 && len(r.unknown) == 0 && (!r.mark.valid || r.mark.seq == 0) {
		return
	}
	d := Damage{Kind: FileMissing, Seq: r.tail.next, Detail: "there is no log file"}
	if r.mark.valid && r.mark.seq >= d.Seq {
		d.Lost = r.mark.seq - d.Seq + 1
	}
	r.tail.next = d.Seq + max(d.Lost, 1)
	r.rec.Damages = append(r.rec.Damages, d)
	r.rec.Ambiguous = true
	r.reportUnknown(0)
}

// readLog reads log file i. expect is the number that should come, prev the scan of the file before it or nil.
func (r *recoverer) readLog(i int, expect uint64, prev *scan) (*scan, error) {
	s, covered := r.logs[i], r.rec.SnapshotSeq
	if s.head.seq > expect {
		r.rec.report(Damage{Kind: FileMissing, File: s.name, Seq: expect, Lost: s.head.seq - expect, Detail: "records before this file"}, covered)
	}
	if prev != nil && prev.chained && s.head.chain != prev.chain && s.head.chain != 0 {
		r.rec.report(Damage{Kind: ChainBroken, File: s.name, Seq: s.head.seq, Detail: "not the continuation of the file before"}, covered)
	}
	sc := &scan{
		win: r.window(s), name: s.name, head: s.head, expect: s.head.seq,
		last: i == len(r.logs)-1, live: r.live, mark: r.mark, boot: r.boot,
		torn:   func(d Damage) { r.rec.Torn = append(r.rec.Torn, d) },
		damage: func(d Damage) { r.rec.report(d, covered) },
		deliver: func(h *head, frame []byte) error {
			if h.seq <= covered {
				return nil
			}
			r.rec.LogBytes += int64(h.size())
			r.rec.Records++
			if r.fn == nil {
				return nil
			}
			return r.fn(record(h, frame, false, h.seq))
		},
	}
	if err := sc.run(); err != nil {
		return nil, err
	}
	s.damaged = sc.damaged
	return sc, nil
}

// finish judges the end of the log. expect is the number behind the last record, sc the scan of the last file.
func (r *recoverer) finish(expect uint64, sc *scan) {
	s := r.logs[len(r.logs)-1]
	next := expect
	if r.mark.valid && r.mark.seq >= expect {
		s.damaged = true
		r.rec.report(Damage{Kind: RecordsMissing, File: s.name, Offset: sc.off, Seq: expect, Lost: r.mark.seq - expect + 1,
			Detail: "they were acknowledged"}, r.rec.SnapshotSeq)
	}
	proven := r.mark.sameBoot(r.boot) && r.mark.seq < expect
	if s.info.Bytes < s.head.length && !proven {
		s.damaged = true
		r.rec.report(Damage{Kind: FileTruncated, File: s.name, Offset: s.info.Bytes, Seq: expect}, r.rec.SnapshotSeq)
		next++
	}
	if r.reportUnknown(expect); len(r.unknown) > 0 && !proven {
		next++
	}
	r.rec.TornTail = sc.cut && !r.live
	r.tail = tail{
		source: s, torn: sc.cut, off: sc.off, commitOff: sc.commitOff, chain: sc.chain, next: next,
		usable: !s.damaged && s.info.Bytes >= s.head.length && next == expect,
	}
}

// reportUnknown reports the files without a readable header. end is the number behind the last record, 0 without any.
// Nothing is lost with them if the numbers have no gap and the mark proves that nothing is missing at the end.
func (r *recoverer) reportUnknown(end uint64) {
	whole := end != 0 && !r.rec.Ambiguous
	for _, s := range r.unknown {
		if r.live { // a header may be half written
			continue
		}
		d := Damage{Kind: FileHeaderUnreadable, File: s.name, Detail: "it may have been any file"}
		switch {
		case whole && (!isLogName(s.name) || r.mark.sameBoot(r.boot) && r.mark.seq < end):
			r.rec.Covered = append(r.rec.Covered, d)
		default:
			d.Seq = end
			r.rec.Damages = append(r.rec.Damages, d)
			r.rec.Ambiguous = true
		}
	}
}
