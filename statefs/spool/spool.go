// Package spool is the durable output of one wrapper: numbered records of what
// an agent wrote and of what happened to it, in rotated files of one
// directory.
//
// It owns the format (FORMAT.md), the Writer that the wrapper appends with and
// the Reader that berthd and berthctl follow it with, also while the wrapper
// writes, after it died and across rotation. It refuses to know processes,
// sockets and sessions: the epoch of a sequence number is the generation whose
// directory this is. One Writer at a time; any number of Readers.
package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
)

// Stream says where a record's bytes come from. Zero is invalid. The values
// are part of the format.
type Stream uint8

// The streams.
const (
	Stdout Stream = 1 // the agent's standard output
	Stderr Stream = 2 // the agent's standard error
	PTY    Stream = 3 // the agent's terminal
	Event  Stream = 4 // one JSON object about the agent, by the wrapper
	GapRec Stream = 5 // what is missing here; Record.Gap says it
)

// streams bounds arrays that are indexed by Stream.
const streams = 6

var streamNames = [streams]string{"", "stdout", "stderr", "pty", "event", "gap"}

// String returns the stream's name as it is shown to people and in the API.
func (s Stream) String() string {
	if s.valid() {
		return streamNames[s]
	}
	return fmt.Sprintf("stream(%d)", uint8(s))
}

// ParseStream returns the stream called name, or an error.
func ParseStream(name string) (Stream, error) {
	for i, n := range streamNames {
		if i > 0 && n == name {
			return Stream(i), nil
		}
	}
	return 0, fmt.Errorf("no stream is called %q", name)
}

func (s Stream) valid() bool { return s > 0 && s < streams }

// Record is one entry of a spool.
type Record struct {
	// Seq numbers the records of a generation from 1, strictly rising.
	Seq uint64
	// Time is wall time, for people.
	Time   time.Time
	Stream Stream
	// Offset is the number of bytes that its stream had before this record,
	// bytes that could not be kept included.
	Offset uint64
	// Data is what was written, bytes as they came: a character may be split
	// between records. The slice belongs to the receiver.
	Data []byte
	// Gap is set on GapRec records, which have no Data.
	Gap *Gap
}

// The causes of a gap.
const (
	CauseDropped = "dropped" // the writer could not keep it (disk full, I/O error, stall)
	CauseRotated = "rotated" // it was there and the bounds of the spool removed it
	CauseDamaged = "damaged" // it does not decode: a torn write, a power cut, damage
)

// Gap says what is missing between the record before and the record after it.
type Gap struct {
	Cause string `json:"cause"`
	// Detail is one line for people.
	Detail string `json:"detail,omitempty"`
	// FromSeq and ToSeq are the first and last missing sequence number; both
	// are 0 for CauseDropped, where nothing was numbered. ToSeq is 0 where the
	// end is not known.
	FromSeq uint64 `json:"from_seq,omitempty"`
	ToSeq   uint64 `json:"to_seq,omitempty"`
	// Bytes counts what the writer dropped, by stream name.
	Bytes map[string]uint64 `json:"bytes,omitempty"`
}

// Sizes and names of the format, see FORMAT.md.
const (
	fileSuffix       = ".spool"
	fileHeaderSize   = 36
	recordHeaderSize = 36
	formatVersion    = 1
	// MaxData is the most bytes that one record holds.
	MaxData = 1 << 20
)

var magic = [8]byte{'B', 'E', 'R', 'T', 'H', 'S', 'P', 'L'}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Decoding errors. They stay inside the package: a Reader turns them into gaps
// or into waiting.
var (
	errIncomplete = errors.New("record is incomplete")
	errDamaged    = errors.New("record is damaged")
)

// salt is the start value of a file's checksums. It is random and the agent
// cannot read it, so that bytes that an agent wrote never pass for a record
// when a reader looks for the next good one after damage.
type salt uint32

// appendFileHeader appends the header of a file whose first record is number
// first.
func appendFileHeader(b []byte, first uint64, s salt, now time.Time) []byte {
	start := len(b)
	b = append(b, magic[:]...)
	b = binary.LittleEndian.AppendUint16(b, formatVersion)
	b = binary.LittleEndian.AppendUint16(b, fileHeaderSize)
	b = binary.LittleEndian.AppendUint32(b, uint32(s))
	b = binary.LittleEndian.AppendUint64(b, first)
	b = binary.LittleEndian.AppendUint64(b, uint64(now.UnixNano()))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// parseFileHeader checks a file header and returns its salt.
func parseFileHeader(b []byte) (salt, error) {
	if len(b) < fileHeaderSize {
		return 0, errIncomplete
	}
	if [8]byte(b[:8]) != magic || crc32.Checksum(b[:32], castagnoli) != binary.LittleEndian.Uint32(b[32:]) {
		return 0, errDamaged
	}
	if v := binary.LittleEndian.Uint16(b[8:]); v != formatVersion {
		return 0, fmt.Errorf("%w: spool format version %d, this program reads %d", errDamaged, v, formatVersion)
	}
	return salt(binary.LittleEndian.Uint32(b[12:])), nil
}

// head is the fixed part of a record.
type head struct {
	size   int // of the data
	stream Stream
	seq    uint64
	nanos  int64
	offset uint64
	sum    uint32
}

// appendRecord appends a whole record.
func appendRecord(b []byte, h head, s salt, data []byte) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
	b = append(b, byte(h.stream), 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, h.seq)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.nanos))
	b = binary.LittleEndian.AppendUint64(b, h.offset)
	sum := crc32.Update(crc32.Update(uint32(s), castagnoli, b[start:]), castagnoli, data)
	b = binary.LittleEndian.AppendUint32(b, sum)
	return append(b, data...)
}

// parseHead decodes the fixed part. It fails with errIncomplete or errDamaged;
// a header of zeros, which a power cut leaves, is damaged.
func parseHead(b []byte) (head, error) {
	if len(b) < recordHeaderSize {
		return head{}, errIncomplete
	}
	h := head{
		size:   int(binary.LittleEndian.Uint32(b)),
		stream: Stream(b[4]),
		seq:    binary.LittleEndian.Uint64(b[8:]),
		nanos:  int64(binary.LittleEndian.Uint64(b[16:])),
		offset: binary.LittleEndian.Uint64(b[24:]),
		sum:    binary.LittleEndian.Uint32(b[32:]),
	}
	if h.size > MaxData || h.seq == 0 || !h.stream.valid() || b[5]|b[6]|b[7] != 0 {
		return head{}, errDamaged
	}
	return h, nil
}

// check verifies the checksum over the fixed part and the data.
func (h head) check(s salt, fixed, data []byte) error {
	sum := crc32.Update(crc32.Update(uint32(s), castagnoli, fixed[:recordHeaderSize-4]), castagnoli, data)
	if sum != h.sum {
		return errDamaged
	}
	return nil
}
