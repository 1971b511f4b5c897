package record

import "google.golang.org/protobuf/encoding/protowire"

// Append appends s's encoding to dst and returns the extended slice.
func (s Spec) Append(dst []byte) []byte {
	dst = putUint(dst, fieldVersion, Version)
	dst = putString(dst, 2, s.Session)
	dst = putString(dst, 3, s.Digest)
	dst = putStrings(dst, 4, s.Command)
	dst = putStrings(dst, 5, s.Env)
	dst = putString(dst, 6, s.Workspace)
	dst = putString(dst, 7, s.Provider)
	dst = putBool(dst, 8, s.Terminal)
	dst = putUint(dst, 9, uint64(s.Rows))
	dst = putUint(dst, 10, uint64(s.Cols))
	dst = putDuration(dst, 11, s.Grace)
	dst = putUint(dst, 12, s.ReserveBytes)
	dst = putUint(dst, 13, s.ReserveInodes)
	dst = putUint(dst, 14, s.MaxProcesses)
	dst = putUint(dst, 15, s.MaxMemoryBytes)
	dst = putUint(dst, 16, s.MaxCPUPercent)
	dst = putUint(dst, 17, s.MaxOpenFiles)
	dst = putSource(dst, 18, s.Source)
	dst = putStrings(dst, 19, s.Setup)
	dst = putBool(dst, 20, s.Pinned)
	dst = putString(dst, 30, s.Allocation)
	return putDuration(dst, 31, s.Retention)
}

// DecodeSpec decodes what Spec.Append has written, as DecodeLease does.
func DecodeSpec(body []byte) (Spec, error) {
	var s Spec
	r := newReader(body)
	for r.next() {
		s.take(&r)
	}
	if err := r.end(TypeSpec); err != nil {
		return Spec{}, err
	}
	return s, nil
}

func (s *Spec) take(r *reader) {
	switch r.num {
	case fieldVersion:
		r.takeVersion()
	case 2:
		s.Session = r.string()
	case 3:
		s.Digest = r.string()
	case 4:
		s.Command = r.strings(s.Command)
	case 5:
		s.Env = r.strings(s.Env)
	case 6:
		s.Workspace = r.string()
	case 7:
		s.Provider = r.string()
	case 8:
		s.Terminal = r.bool()
	case 9:
		s.Rows = r.uint16()
	case 10:
		s.Cols = r.uint16()
	case 11:
		s.Grace = r.duration()
	case 12:
		s.ReserveBytes = r.uint()
	case 13:
		s.ReserveInodes = r.uint()
	case 14:
		s.MaxProcesses = r.uint()
	case 15:
		s.MaxMemoryBytes = r.uint()
	case 16:
		s.MaxCPUPercent = r.uint()
	case 17:
		s.MaxOpenFiles = r.uint()
	case 18:
		s.Source = takeSource(r)
	case 19:
		s.Setup = r.strings(s.Setup)
	case 20:
		s.Pinned = r.bool()
	case 31:
		s.Retention = r.duration()
	case 30:
		s.Allocation = r.string()
	}
}

func putSource(dst []byte, num protowire.Number, s *Source) []byte {
	if s == nil {
		return dst
	}
	dst, start := message(dst, num)
	dst = putString(dst, 1, s.Copy)
	dst = putString(dst, 2, s.Clone)
	dst = putString(dst, 3, s.Branch)
	dst = putString(dst, 4, s.WorkBranch)
	dst = putUint(dst, 5, s.Depth)
	return messageEnd(dst, start)
}

func takeSource(r *reader) *Source {
	m := r.message()
	s := new(Source)
	for m.next() {
		switch m.num {
		case 1:
			s.Copy = m.string()
		case 2:
			s.Clone = m.string()
		case 3:
			s.Branch = m.string()
		case 4:
			s.WorkBranch = m.string()
		case 5:
			s.Depth = m.uint()
		}
	}
	r.join(&m)
	return s
}
