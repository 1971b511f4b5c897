package record

import "google.golang.org/protobuf/encoding/protowire"

// Field numbers are part of the format: see FORMAT.md, which a test compares
// with what is written here. A number is never changed and never used again.

// Append appends l's encoding to dst and returns the extended slice. It
// allocates only when dst must grow.
func (l Lease) Append(dst []byte) []byte {
	dst = putUint(dst, fieldVersion, Version)
	dst = putString(dst, 2, l.Session)
	dst = putUint(dst, 3, uint64(l.UID))
	dst = putUint(dst, 4, uint64(l.GID))
	dst = putString(dst, 5, l.Epoch)
	dst = putString(dst, 6, l.Event)
	dst = putTime(dst, 7, l.Wall)
	dst = putString(dst, 8, l.State)
	dst = putUint(dst, 9, l.NextGeneration)
	dst = putString(dst, 10, l.Instance)
	dst = putUint(dst, 11, l.Generation)
	dst = putBool(dst, 12, l.Reuse)
	dst = putDuration(dst, 13, l.Deadline)
	dst = putBool(dst, 14, l.Frozen)
	dst = putDuration(dst, 15, l.LinkLostAt)
	dst = putStop(dst, 16, l.Stop)
	dst = putWrapper(dst, 17, &l.Wrapper)
	dst = putString(dst, 18, l.Workspace)
	dst = putBool(dst, 19, l.WorkspaceMade)
	dst = putUint(dst, 20, l.ReservedBytes)
	dst = putUint(dst, 21, l.ReservedInodes)
	dst = putDeletion(dst, 22, l.Deletion)
	for i := range l.Debts {
		dst = putDebt(dst, 23, &l.Debts[i])
	}
	dst = putExit(dst, 24, l.Exit)
	dst = putTime(dst, 25, l.ReleasedWall)
	dst = putString(dst, 26, l.Unreadable)
	dst = putDuration(dst, 27, l.FrozenAt)
	dst = putUint(dst, 28, l.ReservedDevice)
	dst = putPreparation(dst, 29, l.Preparation)
	dst = putDuration(dst, 30, l.ReleasedAt)
	dst = putString(dst, 31, l.ReleasedBoot)
	dst = putString(dst, 32, l.Reclaim)
	dst = putString(dst, 33, l.Note)
	dst = putStrings(dst, 34, l.Abandoned)
	return putDuration(dst, 35, l.ActiveAge)
}

// DecodeLease decodes what Lease.Append has written. Strings share one copy of
// body, nothing refers to body itself; times are UTC; empty slices are nil.
// Errors wrap ErrMalformed or ErrVersion. Unknown fields are skipped.
func DecodeLease(body []byte) (Lease, error) {
	var l Lease
	r := newReader(body)
	for r.next() {
		l.take(&r)
	}
	if err := r.end(TypeLease); err != nil {
		return Lease{}, err
	}
	return l, nil
}

func (l *Lease) take(r *reader) {
	switch r.num {
	case fieldVersion:
		r.takeVersion()
	case 2:
		l.Session = r.string()
	case 3:
		l.UID = r.uint32()
	case 4:
		l.GID = r.uint32()
	case 5:
		l.Epoch = r.string()
	case 6:
		l.Event = r.string()
	case 7:
		l.Wall = r.time()
	case 8:
		l.State = r.string()
	case 9:
		l.NextGeneration = r.uint()
	case 10:
		l.Instance = r.string()
	case 11:
		l.Generation = r.uint()
	case 12:
		l.Reuse = r.bool()
	case 13:
		l.Deadline = r.duration()
	case 14:
		l.Frozen = r.bool()
	case 15:
		l.LinkLostAt = r.duration()
	default:
		l.takeRest(r)
	}
}

func (l *Lease) takeRest(r *reader) {
	switch r.num {
	case 16:
		l.Stop = takeStop(r)
	case 17:
		takeWrapper(r, &l.Wrapper)
	case 18:
		l.Workspace = r.string()
	case 19:
		l.WorkspaceMade = r.bool()
	case 20:
		l.ReservedBytes = r.uint()
	case 21:
		l.ReservedInodes = r.uint()
	case 22:
		l.Deletion = takeDeletion(r)
	case 23:
		if r.repeated() {
			l.Debts = append(l.Debts, takeDebt(r))
		}
	case 24:
		l.Exit = takeExit(r)
	case 25:
		l.ReleasedWall = r.time()
	case 26:
		l.Unreadable = r.string()
	case 27:
		l.FrozenAt = r.duration()
	case 28:
		l.ReservedDevice = r.uint()
	case 29:
		l.Preparation = takePreparation(r)
	case 30:
		l.ReleasedAt = r.duration()
	case 31:
		l.ReleasedBoot = r.string()
	case 35:
		l.ActiveAge = r.duration()
	case 32:
		l.Reclaim = r.string()
	case 33:
		l.Note = r.string()
	case 34:
		l.Abandoned = r.strings(l.Abandoned)
	}
}

func putStop(dst []byte, num protowire.Number, s *Stop) []byte {
	if s == nil {
		return dst
	}
	dst, start := message(dst, num)
	dst = putString(dst, 1, s.Instance)
	dst = putUint(dst, 2, s.Generation)
	dst = putString(dst, 3, s.Reason)
	dst = putDuration(dst, 4, s.RequestedAt)
	dst = putDuration(dst, 5, s.NextAttemptAt)
	dst = putInt(dst, 6, int64(s.Attempts))
	dst = putString(dst, 7, s.LastError)
	dst = putString(dst, 8, s.AttemptID)
	dst = putDuration(dst, 9, s.AttemptStart)
	dst = putDuration(dst, 10, s.AttemptDeadline)
	dst = putDuration(dst, 11, s.ExhaustedAt)
	dst = putDuration(dst, 12, s.NextRecheckAt)
	dst = putString(dst, 13, s.By)
	dst = putString(dst, 14, s.Why)
	dst = putDuration(dst, 15, s.JoinBy)
	dst = putBool(dst, 16, s.Stuck)
	return messageEnd(dst, start)
}

func takeStop(r *reader) *Stop {
	m := r.message()
	s := new(Stop)
	for m.next() {
		switch m.num {
		case 1:
			s.Instance = m.string()
		case 2:
			s.Generation = m.uint()
		case 3:
			s.Reason = m.string()
		case 4:
			s.RequestedAt = m.duration()
		case 5:
			s.NextAttemptAt = m.duration()
		case 6:
			s.Attempts = m.int()
		case 7:
			s.LastError = m.string()
		case 8:
			s.AttemptID = m.string()
		case 9:
			s.AttemptStart = m.duration()
		case 10:
			s.AttemptDeadline = m.duration()
		case 11:
			s.ExhaustedAt = m.duration()
		case 12:
			s.NextRecheckAt = m.duration()
		case 13:
			s.By = m.string()
		case 14:
			s.Why = m.string()
		case 15:
			s.JoinBy = m.duration()
		case 16:
			s.Stuck = m.bool()
		}
	}
	r.join(&m)
	return s
}

func putWrapper(dst []byte, num protowire.Number, w *Wrapper) []byte {
	before := len(dst)
	dst, start := message(dst, num)
	dst = putInt(dst, 1, int64(w.PID))
	dst = putUint(dst, 2, w.StartTicks)
	dst = putUint(dst, 3, w.PidfdInode)
	dst = putString(dst, 4, w.BootID)
	dst = putString(dst, 5, w.Leaf)
	dst = putUint(dst, 6, w.LeafParentInode)
	dst = putStrings(dst, 7, w.Extra)
	dst = putString(dst, 8, w.TokenHash)
	dst = putString(dst, 9, w.RecipeDigest)
	dst = putString(dst, 10, w.Provider)
	dst = putString(dst, 11, w.Handle)
	dst = putInt(dst, 12, int64(w.Protocol))
	dst = putInt(dst, 13, int64(w.AgentPID))
	dst = putInt(dst, 14, int64(w.Since))
	if len(dst) == start {
		return dst[:before] // it is empty: a value, not a pointer
	}
	return messageEnd(dst, start)
}

func takeWrapper(r *reader, w *Wrapper) {
	m := r.message()
	for m.next() {
		switch m.num {
		case 1:
			w.PID = m.int()
		case 2:
			w.StartTicks = m.uint()
		case 3:
			w.PidfdInode = m.uint()
		case 4:
			w.BootID = m.string()
		case 5:
			w.Leaf = m.string()
		case 6:
			w.LeafParentInode = m.uint()
		case 7:
			w.Extra = m.strings(w.Extra)
		case 8:
			w.TokenHash = m.string()
		case 9:
			w.RecipeDigest = m.string()
		case 10:
			w.Provider = m.string()
		case 11:
			w.Handle = m.string()
		case 12:
			w.Protocol = m.int()
		case 13:
			w.AgentPID = m.int()
		case 14:
			w.Since = m.duration()
		}
	}
	r.join(&m)
}
