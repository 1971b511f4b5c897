package journal

import (
	"encoding/binary"
	"hash/crc32"
)

// Sizes of the format (FORMAT.md 2.2).
const (
	// MaxSession is the longest session id in bytes.
	MaxSession = 128
	// MaxBody is the longest body in bytes.
	MaxBody = 1 << 20

	frameMagic    = 0x63657262
	frameHeadSize = 48
	frameAlign    = 8
	sectorSize    = 512
)

// Flags of a record.
const (
	flagFirst    = 1 << 0 // first record of its append
	flagLast     = 1 << 1 // last record of its append
	flagInternal = 1 << 7 // the journal's own
	flagsKnown   = flagFirst | flagLast | flagInternal
)

// typeSnapshotEnd is the internal record that closes a snapshot.
const typeSnapshotEnd = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// head is a record's header as data.
type head struct {
	crc, chain, bodyCRC, sessionCRC uint32
	bodyLen, sessionLen             int
	kind                            uint16
	flags                           uint8
	seq, generation                 uint64
	index                           uint32
}

func pad(n int) int { return (n + frameAlign - 1) &^ (frameAlign - 1) }

// frameSize is the length on disk of a record with a session and a body of these lengths.
func frameSize(session, body int) int { return frameHeadSize + pad(session) + pad(body) }

func (h *head) size() int { return frameSize(h.sessionLen, h.bodyLen) }

// commit is the number of the first record of h's commit.
func (h *head) commit() uint64 { return h.seq - uint64(h.index) }

func (h *head) whole() bool { return h.flags&(flagFirst|flagLast) == flagFirst|flagLast }

// appendFrame appends the record to buf, which must end at a multiple of 8 relative to the file, and returns its header
// CRC, the chain value for the next record. Of h it reads chain, flags, seq and index.
func appendFrame(buf []byte, salt uint32, h *head, e *Entry) ([]byte, uint32) {
	at := len(buf)
	var fixed [frameHeadSize]byte
	buf = append(buf, fixed[:]...)
	buf = append(buf, e.Session...)
	buf = append(buf, fixed[:pad(len(e.Session))-len(e.Session)]...)
	bodyAt := len(buf)
	buf = append(buf, e.Body...)
	buf = append(buf, fixed[:pad(len(e.Body))-len(e.Body)]...)

	b := buf[at : at+frameHeadSize]
	le := binary.LittleEndian
	le.PutUint32(b[0:], frameMagic)
	le.PutUint32(b[8:], h.chain)
	le.PutUint32(b[12:], crc32.Update(0, castagnoli, buf[bodyAt:]))
	le.PutUint32(b[16:], uint32(len(e.Body)))
	le.PutUint16(b[20:], e.Type)
	b[22] = uint8(len(e.Session))
	b[23] = h.flags
	le.PutUint64(b[24:], h.seq)
	le.PutUint64(b[32:], e.Generation)
	le.PutUint32(b[40:], h.index)
	le.PutUint32(b[44:], crc32.Update(0, castagnoli, buf[at+frameHeadSize:bodyAt]))
	crc := crc32.Update(salt, castagnoli, b[8:])
	le.PutUint32(b[4:], crc)
	return buf, crc
}

// parseHead reads the header at the start of b. It answers false for anything but a valid header of the file with this salt.
func parseHead(b []byte, salt uint32) (head, bool) {
	le := binary.LittleEndian
	if len(b) < frameHeadSize || le.Uint32(b) != frameMagic {
		return head{}, false
	}
	b = b[:frameHeadSize]
	h := head{
		crc: le.Uint32(b[4:]), chain: le.Uint32(b[8:]), bodyCRC: le.Uint32(b[12:]), sessionCRC: le.Uint32(b[44:]),
		bodyLen: int(le.Uint32(b[16:])), sessionLen: int(b[22]), kind: le.Uint16(b[20:]), flags: b[23],
		seq: le.Uint64(b[24:]), generation: le.Uint64(b[32:]), index: le.Uint32(b[40:]),
	}
	ok := h.bodyLen <= MaxBody && h.sessionLen <= MaxSession && h.kind != 0 && h.seq != 0 &&
		uint64(h.index) < h.seq && h.flags&^flagsKnown == 0 && crc32.Update(salt, castagnoli, b[8:]) == h.crc
	if !ok {
		return head{}, false
	}
	return h, true
}

// intact checks session and body in h's bytes.
func (h *head) intact(frame []byte) (session, body bool) {
	at := frameHeadSize + pad(h.sessionLen)
	session = len(frame) >= at && crc32.Update(0, castagnoli, frame[frameHeadSize:at]) == h.sessionCRC
	body = len(frame) == h.size() && crc32.Update(0, castagnoli, frame[at:]) == h.bodyCRC
	return session, body
}

// session and body are cut out of h's bytes, which are intact.
func (h *head) session(frame []byte) []byte {
	return frame[frameHeadSize : frameHeadSize+h.sessionLen]
}

func (h *head) body(frame []byte) []byte {
	at := frameHeadSize + pad(h.sessionLen)
	return frame[at : at+h.bodyLen : at+h.bodyLen]
}
