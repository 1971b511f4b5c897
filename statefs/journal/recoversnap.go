package journal

// readSnapshot delivers the newest intact snapshot, else the newest. It returns nil without one.
func (r *recoverer) readSnapshot() (*source, error) {
	var choice *source
	for i := len(r.snaps) - 1; i >= 0 && (choice == nil || r.all); i-- {
		s := r.snaps[i]
		intact, err := r.scanSnapshot(s, nil, func(Damage) {})
		if err != nil {
			return nil, err
		}
		if s.damaged = !intact; intact && choice == nil {
			choice = s
		}
	}
	if choice == nil && len(r.snaps) > 0 {
		choice = r.snaps[len(r.snaps)-1]
	}
	for _, s := range r.snaps {
		if s.damaged && s != choice {
			r.rec.report(Damage{Kind: SnapshotUnreadable, File: s.name, Detail: "another one is used"}, 0)
		}
	}
	if choice == nil {
		return nil, nil // readLogs finds out whether one is missing
	}
	_, err := r.scanSnapshot(choice, r.fn, func(d Damage) { // a place in the snapshot in use is not covered by it
		r.rec.Damages = append(r.rec.Damages, d)
		r.rec.Ambiguous = r.rec.Ambiguous || !d.harmless()
	})
	return choice, err
}

// scanSnapshot reads s to its end and tells whether it is whole. With a nil fn it only looks.
func (r *recoverer) scanSnapshot(s *source, fn func(Record) error, damage func(Damage)) (intact bool, err error) {
	sc := scan{
		win: r.window(s), name: s.name, head: s.head, snapshot: true, expect: 1,
		damage: func(d Damage) {
			d.Seq, d.Lost = s.head.seq, 0 // positions in a snapshot mean nothing outside
			damage(d)
		},
		deliver: func(h *head, frame []byte) error {
			if fn == nil {
				return nil
			}
			r.rec.Records++
			return fn(record(h, frame, true, s.head.seq))
		},
	}
	if err := sc.run(); err != nil {
		return false, err
	}
	s.used = sc.off - headArea
	return sc.ended && !sc.damaged, nil
}
