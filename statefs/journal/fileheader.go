package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Version is the format version that this package writes, and the highest that it reads.
const Version = 1

const (
	fileMagic      = "berthjnl"
	fileHeadSize   = 64
	fileHeadSecond = 2048 // offset of the second copy
	headArea       = 4096 // records begin here
)

// fileState is what a file is at the moment.
type fileState uint32

const (
	stateLog fileState = iota + 1
	stateSnapshot
	stateDirty // a log file that is being zeroed
	stateBlank // ready for use
)

// fileHeader is the header of a file (FORMAT.md 2.1).
type fileHeader struct {
	state  fileState
	salt   uint32
	number uint64 // of a log or a snapshot
	seq    uint64 // first record of a log, last covered record of a snapshot
	chain  uint32 // header CRC of the last record before a log
	length int64  // of the file
	crc    uint32 // as read or encoded: the chain value of the first record
}

// encode returns the whole header area and sets h.crc.
func (h *fileHeader) encode() []byte {
	area := make([]byte, headArea)
	b := area[:fileHeadSize]
	le := binary.LittleEndian
	copy(b, fileMagic)
	le.PutUint32(b[8:], Version)
	le.PutUint32(b[16:], uint32(h.state))
	le.PutUint32(b[20:], h.salt)
	le.PutUint64(b[24:], h.number)
	le.PutUint64(b[32:], h.seq)
	le.PutUint32(b[40:], h.chain)
	le.PutUint64(b[48:], uint64(h.length))
	h.crc = headerSum(b)
	le.PutUint32(b[12:], h.crc)
	copy(area[fileHeadSecond:], b)
	return area
}

// headerSum is the CRC that a 64-byte header of any version carries at offset 12.
func headerSum(b []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, b[:12]), castagnoli, b[16:fileHeadSize])
}

// NewerVersionError says that a file was written by a later release. Nothing has been changed.
type NewerVersionError struct {
	File    string
	Version uint32 // as found; this package reads up to the constant Version
}

func (e *NewerVersionError) Error() string {
	return fmt.Sprintf("file %q has format version %d, this program knows versions up to %d; use the newer program", e.File, e.Version, Version)
}

// parseFileHeader reads the first valid copy in area. ok is false when there is none; settled when both copies say the
// same. The error is a *NewerVersionError.
func parseFileHeader(area []byte, name string) (h fileHeader, ok, settled bool, err error) {
	for _, at := range []int{fileHeadSecond, 0} { // the first one last
		if len(area) < at+fileHeadSize {
			continue
		}
		b := area[at : at+fileHeadSize]
		le := binary.LittleEndian
		crc := le.Uint32(b[12:])
		if !bytes.HasPrefix(b, []byte(fileMagic)) || headerSum(b) != crc {
			continue
		}
		if v := le.Uint32(b[8:]); v > Version {
			return fileHeader{}, false, false, &NewerVersionError{File: name, Version: v}
		}
		other := h
		h = fileHeader{
			state: fileState(le.Uint32(b[16:])), salt: le.Uint32(b[20:]), number: le.Uint64(b[24:]),
			seq: le.Uint64(b[32:]), chain: le.Uint32(b[40:]), length: int64(le.Uint64(b[48:])), crc: crc,
		}
		ok, settled = true, h == other
	}
	return h, ok, settled, nil
}

// writeHeader gives f a new header, durably.
func writeHeader(f File, h fileHeader) error {
	if err := writeFull(f, h.encode(), 0); err != nil {
		return err
	}
	return f.Datasync()
}
