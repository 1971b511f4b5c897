package record

import (
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// reader steps through the fields of one message. After next has returned
// true, exactly one of the value methods takes the field's value; a field that
// none takes is unknown and thereby skipped. The first error is kept and ends
// the walk.
//
// All strings of a record share one copy of its body: one allocation instead
// of one for each. Bodies are short and live as long as their record.
type reader struct {
	body    []byte
	text    string // the same bytes as body
	pos     int
	num     protowire.Number
	typ     protowire.Type
	varint  uint64
	lo, hi  int    // the value of a bytes field within body
	seen    uint64 // singular fields met, by number
	version uint64
	err     error
}

func newReader(body []byte) reader { return reader{body: body, text: string(body)} }

// next moves to the next field. False at the end and after an error.
func (r *reader) next() bool {
	if r.err != nil || r.pos >= len(r.body) {
		return false
	}
	tag, n := consumeVarint(r.body[r.pos:])
	if n < 0 {
		return r.malformed("its tag", protowire.ParseError(n))
	}
	r.num, r.typ = protowire.DecodeTag(tag)
	if r.num < protowire.MinValidNumber {
		return r.malformed("its tag", errors.New("not a field number"))
	}
	r.pos += n
	rest := r.body[r.pos:]
	switch r.typ {
	case protowire.VarintType:
		r.varint, n = consumeVarint(rest)
	case protowire.BytesType:
		var size uint64
		if size, n = consumeVarint(rest); n >= 0 {
			if size > uint64(len(rest)-n) {
				return r.malformed("its value", errors.New("cut off"))
			}
			r.lo = r.pos + n
			n += int(size)
			r.hi = r.pos + n
		}
	case protowire.Fixed32Type, protowire.Fixed64Type:
		// Never written, so always an unknown field.
		n = protowire.ConsumeFieldValue(r.num, r.typ, rest)
	default:
		return r.malformed("its wire type", fmt.Errorf("%d", r.typ))
	}
	if n < 0 {
		return r.malformed("its value", protowire.ParseError(n))
	}
	r.pos += n
	return true
}

// consumeVarint is protowire.ConsumeVarint with a short way for one byte, which
// most tags, lengths and values take.
func consumeVarint(b []byte) (uint64, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	return protowire.ConsumeVarint(b)
}

// end returns the walk's error.
func (r *reader) end(t Type) error {
	if r.err == nil && r.version == 0 {
		r.err = fmt.Errorf("%w: it has no version", ErrMalformed)
	}
	if r.err != nil {
		return fmt.Errorf("decoding %v: %w", t, r.err)
	}
	return nil
}

func (r *reader) malformed(what string, detail error) bool {
	r.err = fmt.Errorf("%w: field %d at byte %d: %s: %v", ErrMalformed, r.num, r.pos, what, detail)
	return false
}

// single checks the wire type of a field that may come once.
func (r *reader) single(want protowire.Type) bool {
	if r.typ != want {
		return r.malformed("wire type", fmt.Errorf("%d instead of %d", r.typ, want))
	}
	bit := uint64(1) << (uint(r.num) % 64)
	if r.seen&bit != 0 {
		return r.malformed("more than one", errors.New("of a field that may come once"))
	}
	r.seen |= bit
	return true
}

func (r *reader) takeVersion() {
	r.version = r.uint()
	if r.err == nil && r.version > Version {
		r.err = fmt.Errorf("%w: %d, this program reads up to %d", ErrVersion, r.version, Version)
	}
}

func (r *reader) uint() uint64 {
	if !r.single(protowire.VarintType) {
		return 0
	}
	return r.varint
}

func (r *reader) uintUpTo(limit uint64) uint64 {
	v := r.uint()
	if v > limit {
		r.malformed("value", fmt.Errorf("%d is more than %d", v, limit))
		return 0
	}
	return v
}

func (r *reader) uint16() uint16 { return uint16(r.uintUpTo(math.MaxUint16)) }
func (r *reader) uint32() uint32 { return uint32(r.uintUpTo(math.MaxUint32)) }
func (r *reader) bool() bool     { return r.uintUpTo(1) == 1 }

func (r *reader) int() int {
	v := protowire.DecodeZigZag(r.uint())
	if v < math.MinInt || v > math.MaxInt {
		r.malformed("value", fmt.Errorf("%d does not fit", v))
		return 0
	}
	return int(v)
}

func (r *reader) duration() time.Duration {
	return time.Duration(protowire.DecodeZigZag(r.uint()))
}

// time returns wall time in UTC.
func (r *reader) time() time.Time {
	ns := protowire.DecodeZigZag(r.uint())
	if r.err != nil {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

func (r *reader) string() string {
	if !r.single(protowire.BytesType) {
		return ""
	}
	return r.text[r.lo:r.hi]
}

// bytes returns a copy: the caller may change it, and body is the journal's.
func (r *reader) bytes() []byte {
	if !r.single(protowire.BytesType) || r.lo == r.hi {
		return nil
	}
	return append([]byte(nil), r.body[r.lo:r.hi]...)
}

// strings appends one element of a repeated field to list.
func (r *reader) strings(list []string) []string {
	if !r.repeated() {
		return list
	}
	return append(list, r.text[r.lo:r.hi])
}

func (r *reader) repeated() bool {
	if r.typ != protowire.BytesType {
		return r.malformed("wire type", fmt.Errorf("%d instead of %d", r.typ, protowire.BytesType))
	}
	return true
}

// message returns a reader of the nested message that the field holds. Its
// error is taken over with join.
func (r *reader) message() reader {
	if !r.single(protowire.BytesType) {
		return reader{}
	}
	return r.element()
}

// element is message for a repeated field; the caller has asked repeated.
func (r *reader) element() reader {
	return reader{body: r.body[r.lo:r.hi], text: r.text[r.lo:r.hi]}
}

func (r *reader) join(nested *reader) {
	if r.err == nil && nested.err != nil {
		r.err = fmt.Errorf("in field %d: %w", r.num, nested.err)
	}
}
