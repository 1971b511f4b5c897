package record

import (
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Version is the version of the encoding that this package writes and the
// newest that it reads. It rises only for a change that an older reader must
// not overlook; adding a field that it may overlook does not raise it.
const Version = 1

// fieldVersion is the version's field in every record; it comes first.
const fieldVersion = 1

// Errors of decoding; match with errors.Is.
var (
	// ErrMalformed is a body that no version of this package has written:
	// damage. The record is to be quarantined, never taken as empty.
	ErrMalformed = errors.New("malformed record")
	// ErrVersion is a body of a newer version.
	ErrVersion = errors.New("record of a newer version")
	// ErrType is a record type that this package does not know.
	ErrType = errors.New("unknown record type")
)

// String returns the type's name as FORMAT.md has it.
func (t Type) String() string {
	switch t {
	case TypeHost:
		return "host"
	case TypeSpec:
		return "spec"
	case TypeLease:
		return "lease"
	case TypeOperation:
		return "operation"
	case TypeTombstone:
		return "tombstone"
	case TypeForget:
		return "forget"
	}
	return fmt.Sprintf("type %d", uint16(t))
}

// Decode decodes the body of a record of any type, for dumps. The result is a
// Host, Spec, Lease, Operation or Tombstone, or nil for TypeForget, which has
// no body. Errors wrap ErrMalformed, ErrVersion or ErrType.
func Decode(t Type, body []byte) (any, error) {
	switch t {
	case TypeHost:
		return boxed(DecodeHost(body))
	case TypeSpec:
		return boxed(DecodeSpec(body))
	case TypeLease:
		return boxed(DecodeLease(body))
	case TypeOperation:
		return boxed(DecodeOperation(body))
	case TypeTombstone:
		return boxed(DecodeTombstone(body))
	case TypeForget:
		if len(body) != 0 {
			return nil, fmt.Errorf("decoding %v: %w: %d bytes of a body that must be empty", t, ErrMalformed, len(body))
		}
		return nil, nil
	}
	return nil, fmt.Errorf("decoding a record: %w: %d", ErrType, uint16(t))
}

func boxed[T any](v T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

// The writers below leave zero values out, so an absent field and a zero one
// are the same. They allocate only when dst must grow.

func putUint(dst []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return dst
	}
	dst = protowire.AppendTag(dst, num, protowire.VarintType)
	return protowire.AppendVarint(dst, v)
}

func putInt(dst []byte, num protowire.Number, v int64) []byte {
	return putUint(dst, num, protowire.EncodeZigZag(v))
}

func putDuration(dst []byte, num protowire.Number, d time.Duration) []byte {
	return putInt(dst, num, int64(d))
}

func putBool(dst []byte, num protowire.Number, v bool) []byte {
	return putUint(dst, num, protowire.EncodeBool(v))
}

func putString(dst []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return dst
	}
	dst = protowire.AppendTag(dst, num, protowire.BytesType)
	return protowire.AppendString(dst, s)
}

func putBytes(dst []byte, num protowire.Number, b []byte) []byte {
	if len(b) == 0 {
		return dst
	}
	dst = protowire.AppendTag(dst, num, protowire.BytesType)
	return protowire.AppendBytes(dst, b)
}

// putStrings writes every element, empty ones too.
func putStrings(dst []byte, num protowire.Number, list []string) []byte {
	for _, s := range list {
		dst = protowire.AppendTag(dst, num, protowire.BytesType)
		dst = protowire.AppendString(dst, s)
	}
	return dst
}

// putTime writes wall time as nanoseconds since 1970. The zero time is left
// out, 1970-01-01T00:00:00Z is not. Times that nanoseconds cannot tell (before
// 1678, after 2262) become the nearest that they can: wall time is for people.
func putTime(dst []byte, num protowire.Number, t time.Time) []byte {
	if t.IsZero() {
		return dst
	}
	ns := t.UnixNano()
	switch year := t.UTC().Year(); {
	case year < 1678:
		ns = math.MinInt64
	case year > 2261:
		ns = math.MaxInt64
	}
	dst = protowire.AppendTag(dst, num, protowire.VarintType)
	return protowire.AppendVarint(dst, protowire.EncodeZigZag(ns))
}

// message begins a nested message and returns where it begins. It is ended by
// messageEnd, which puts the length in front.
func message(dst []byte, num protowire.Number) (out []byte, start int) {
	dst = protowire.AppendTag(dst, num, protowire.BytesType)
	return dst, len(dst)
}

// messageEnd moves the message that begins at start to make room for its
// length: a nested message is short, and its length is not known before.
func messageEnd(dst []byte, start int) []byte {
	n := len(dst) - start
	size := protowire.SizeVarint(uint64(n))
	for range size {
		dst = append(dst, 0)
	}
	copy(dst[start+size:], dst[start:start+n])
	protowire.AppendVarint(dst[:start], uint64(n))
	return dst
}
