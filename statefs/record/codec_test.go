package record

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"
)

// draw makes any value of typ.
func draw(t *rapid.T, typ reflect.Type) reflect.Value {
	v := reflect.New(typ).Elem()
	drawInto(t, v)
	return v
}

func drawInto(t *rapid.T, v reflect.Value) {
	switch {
	case v.Type() == timeType:
		if rapid.Bool().Draw(t, "set") {
			v.Set(reflect.ValueOf(time.Unix(0, rapid.Int64().Draw(t, "time")).UTC()))
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			drawInto(t, v.Field(i))
		}
	case v.Kind() == reflect.Pointer:
		if rapid.Bool().Draw(t, "set") {
			v.Set(reflect.New(v.Type().Elem()))
			drawInto(t, v.Elem())
		}
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		if b := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "bytes"); len(b) > 0 {
			v.SetBytes(b)
		}
	case v.Kind() == reflect.Slice:
		for range rapid.IntRange(0, 3).Draw(t, "len") {
			v.Set(reflect.Append(v, draw(t, v.Type().Elem())))
		}
	case v.Kind() == reflect.String:
		v.SetString(string(rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "text")))
	case v.Kind() == reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case v.CanInt():
		v.SetInt(rapid.Int64().Draw(t, "int"))
	case v.Kind() == reflect.Uint64:
		v.SetUint(rapid.Uint64().Draw(t, "uint"))
	case v.Kind() == reflect.Uint32:
		v.SetUint(uint64(rapid.Uint32().Draw(t, "uint")))
	case v.Kind() == reflect.Uint16:
		v.SetUint(uint64(rapid.Uint16().Draw(t, "uint")))
	default:
		t.Fatalf("no value for a %v", v.Type())
	}
}

// Whatever a record holds comes back.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, rt := range recordTypes {
		t.Run(rt.typ.String(), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				want := draw(t, reflect.TypeOf(rt.zero)).Interface()
				got, err := Decode(rt.typ, want.(appender).Append(nil))
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Fatalf("err %v\n got %+v\nwant %+v", err, got, want)
				}
			})
		})
	}
}

// A field of a later version is skipped, wherever it stands, whatever it is.
func TestUnknownFieldsAreSkipped(t *testing.T) {
	t.Parallel()
	unknown := map[string][]byte{
		"varint":  protowire.AppendVarint(protowire.AppendTag(nil, 63, protowire.VarintType), math.MaxUint64),
		"fixed32": protowire.AppendFixed32(protowire.AppendTag(nil, 1000, protowire.Fixed32Type), 7),
		"fixed64": protowire.AppendFixed64(protowire.AppendTag(nil, 1000, protowire.Fixed64Type), 7),
		"bytes":   protowire.AppendString(protowire.AppendTag(nil, protowire.MaxValidNumber, protowire.BytesType), "x"),
		"twice":   {0xf8, 0x03, 1, 0xf8, 0x03, 1},
	}
	stop := protowire.AppendTag(nil, 16, protowire.BytesType)
	want := Lease{Session: "s", Stop: &Stop{Reason: "operator"}}
	for name, field := range unknown {
		inner := putString(append([]byte(nil), field...), 3, "operator")
		body := putUint(append([]byte(nil), field...), fieldVersion, Version)
		body = protowire.AppendBytes(append(body, stop...), inner)
		body = append(body, field...)
		body = putString(body, 2, "s")
		got, err := DecodeLease(body)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestStrictness(t *testing.T) {
	t.Parallel()
	version := putUint(nil, fieldVersion, Version)
	with := func(fields ...[]byte) []byte {
		out := append([]byte(nil), version...)
		for _, f := range fields {
			out = append(out, f...)
		}
		return out
	}
	varint := func(num protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), v)
	}
	tests := map[string]struct {
		body []byte
		want error
	}{
		"no version":          {putString(nil, 2, "s"), ErrMalformed},
		"version 0":           {varint(1, 0), ErrMalformed},
		"newer version":       {varint(1, Version+1), ErrVersion},
		"two versions":        {with(version), ErrMalformed},
		"newer with new wire": {append(varint(1, Version+1), 0xff), ErrVersion},
		"field 0":             {with([]byte{0x00, 0x01}), ErrMalformed},
		"group":               {with([]byte{0x13}), ErrMalformed},
		"end of group":        {with([]byte{0x14}), ErrMalformed},
		"wire type 6":         {with([]byte{0x16}), ErrMalformed},
		"session as varint":   {with(varint(2, 1)), ErrMalformed},
		"uid as string":       {with(putString(nil, 3, "x")), ErrMalformed},
		"debt as varint":      {with(varint(23, 1)), ErrMalformed},
		"stop as varint":      {with(varint(16, 1)), ErrMalformed},
		"uid over 32 bits":    {with(varint(3, 1<<32)), ErrMalformed},
		"bool of 2":           {with(varint(12, 2)), ErrMalformed},
		"two sessions":        {with(putString(nil, 2, "a"), putString(nil, 2, "b")), ErrMalformed},
		"two stops":           {with(putStop(nil, 16, &Stop{}), putStop(nil, 16, &Stop{})), ErrMalformed},
		"two reasons":         {with(protowire.AppendBytes([]byte{0x82, 0x01}, append(putString(nil, 3, "a"), putString(nil, 3, "b")...))), ErrMalformed},
		"cut string":          {with([]byte{0x12, 5, 'a'}), ErrMalformed},
		"length over all":     {with([]byte{0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}), ErrMalformed},
		"varint of 11 bytes":  {with(append([]byte{0x48}, []byte(strings.Repeat("\xff", 11))...)), ErrMalformed},
		"damage within":       {with(protowire.AppendBytes([]byte{0x82, 0x01}, []byte{0x0a, 9})), ErrMalformed},
	}
	for name, tt := range tests {
		l, err := DecodeLease(tt.body)
		if !errors.Is(err, tt.want) || !reflect.DeepEqual(l, Lease{}) {
			t.Errorf("%s: %+v, %v; want %v", name, l, err, tt.want)
		}
	}
}

func TestDecodeByType(t *testing.T) {
	t.Parallel()
	if v, err := Decode(TypeForget, nil); v != nil || err != nil {
		t.Errorf("forget: %v, %v", v, err)
	}
	if _, err := Decode(TypeForget, []byte{8, 1}); !errors.Is(err, ErrMalformed) {
		t.Errorf("forget with a body: %v", err)
	}
	for _, typ := range []Type{0, 7, math.MaxUint16} {
		if _, err := Decode(typ, nil); !errors.Is(err, ErrType) {
			t.Errorf("type %d: %v", typ, err)
		}
	}
}

// The zero time and 1970 are different; what nanoseconds cannot tell becomes
// the nearest that they can; zone and monotonic part do not come back.
func TestTimes(t *testing.T) {
	t.Parallel()
	lowest, highest := time.Unix(0, math.MinInt64).UTC(), time.Unix(0, math.MaxInt64).UTC()
	tests := []struct{ in, want time.Time }{
		{time.Time{}, time.Time{}},
		{time.Unix(0, 0), time.Unix(0, 0).UTC()},
		{lowest, lowest},
		{highest, highest},
		{time.Date(1500, 1, 1, 0, 0, 0, 0, time.UTC), lowest},
		{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), highest},
		{time.Date(2026, 11, 29, 19, 0, 0, 5, time.FixedZone("x", 3600)), time.Date(2026, 11, 29, 18, 0, 0, 5, time.UTC)},
	}
	for _, tt := range tests {
		got, err := DecodeTombstone(Tombstone{Wall: tt.in}.Append(nil))
		if err != nil || got.Wall != tt.want {
			t.Errorf("%v: %v, %v; want %v", tt.in, got.Wall, err, tt.want)
		}
	}
}
