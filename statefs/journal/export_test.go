package journal

import "encoding/binary"

// For tests in journal_test, which may import statefstest.

func ReadFS(f FS, bootID string, fn func(Record) error, all bool) (Recovery, error) {
	return readFS(f, func() (bool, error) { return false, nil }, hashBoot(bootID), fn, all)
}

func ReadLiveFS(f FS, bootID string, fn func(Record) error) (Recovery, error) {
	return readFS(f, func() (bool, error) { return true, nil }, hashBoot(bootID), fn, false)
}

// Settle waits for a round of preparation that begins after the call.
func (j *Journal) Settle() {
	j.mu.Lock()
	defer j.mu.Unlock()
	_ = j.waitForRound() // its end is what counts
}

const (
	HeadArea     = headArea
	LeastSegment = leastSegment
)

// FrameOffsets returns where the records of a log file begin.
func FrameOffsets(data []byte) []int64 {
	h, _, _, _ := parseFileHeader(data, "")
	if h.state != stateLog {
		return nil
	}
	var offs []int64
	for off := int64(headArea); ; {
		f, ok := parseHead(data[min(off, int64(len(data))):], h.salt)
		if !ok {
			return offs
		}
		offs = append(offs, off)
		off += int64(f.size())
	}
}

var ParseHead = func(b []byte, salt uint32) bool { _, ok := parseHead(b, salt); return ok }

// SetVersion turns a file header into one of another version, with the right CRC.
func SetVersion(b []byte, v uint32) {
	binary.LittleEndian.PutUint32(b[8:], v)
	binary.LittleEndian.PutUint32(b[12:], headerSum(b[:fileHeadSize]))
}

// InUse reports whether a file is a log or a snapshot.
func InUse(data []byte) bool {
	h, _, _, _ := parseFileHeader(data, "")
	return h.state == stateLog || h.state == stateSnapshot
}

// NumberOf is the number of a log or snapshot.
func NumberOf(data []byte) uint64 {
	h, _, _, _ := parseFileHeader(data, "")
	return h.number
}

// SaltOf is the salt of a file.
func SaltOf(data []byte) uint32 {
	h, _, _, _ := parseFileHeader(data, "")
	return h.salt
}
