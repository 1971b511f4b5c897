package record

import (
	"flag"
	"reflect"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write new golden files and the table of FORMAT.md; never changes an old golden file")

// appender is what every record type has.
type appender interface{ Append(dst []byte) []byte }

// recordTypes lists every record type with a body; what follows the list
// (reflection, goldens, fuzzing) covers all of them.
var recordTypes = []struct {
	typ  Type
	zero appender
}{
	{TypeHost, Host{}},
	{TypeSpec, Spec{}},
	{TypeLease, Lease{}},
	{TypeOperation, Operation{}},
	{TypeTombstone, Tombstone{}},
}

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
)

// fill sets v and everything below it to values that are not zero and differ.
func fill(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	switch {
	case v.Type() == timeType:
		v.Set(reflect.ValueOf(time.Unix(1_700_000_000+int64(*n), int64(*n)).UTC()))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), n)
		}
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), n)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		v.SetBytes([]byte{0, byte(*n), 0xff})
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0), n)
		fill(t, v.Index(1), n)
	case v.Kind() == reflect.String:
		v.SetString("text " + time.Duration(*n).String())
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(int64(-1000 * *n)) // negative: the sign must survive
	case v.CanUint():
		v.SetUint(uint64(1000 + *n))
	default:
		t.Fatalf("no value for a %v: teach this test and the codec", v.Type())
	}
}

// leaves calls f with every field of typ, and of the messages in it, and its path.
func leaves(typ reflect.Type, path []int, f func(path []int, field reflect.StructField)) {
	for i := range typ.NumField() {
		field := typ.Field(i)
		at := append(append([]int(nil), path...), i)
		f(at, field)
		if sub := messageType(field.Type); sub != nil {
			leaves(sub, at, f)
		}
	}
}

// messageType returns the struct that a field holds, or nil.
func messageType(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() == reflect.Struct && t != timeType {
		return t
	}
	return nil
}

// only returns a value of typ in which nothing is set but the field at path.
func only(t *testing.T, typ reflect.Type, path []int) reflect.Value {
	t.Helper()
	root := reflect.New(typ).Elem()
	v := root
	n := 0
	for depth, i := range path {
		v = v.Field(i)
		if depth == len(path)-1 {
			break
		}
		switch v.Kind() {
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			v = v.Elem()
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			v = v.Index(0)
		}
	}
	fill(t, v, &n)
	return root
}

func mustDecode(t *testing.T, typ Type, body []byte) any {
	t.Helper()
	v, err := Decode(typ, body)
	if err != nil {
		t.Fatalf("%x: %v", body, err)
	}
	return v
}

// Every field of every record, and of every message in it, survives alone and
// together with all others. A new field without an encoding fails here.
func TestEveryFieldIsEncoded(t *testing.T) {
	t.Parallel()
	for _, rt := range recordTypes {
		typ := reflect.TypeOf(rt.zero)
		full := reflect.New(typ).Elem()
		n := 0
		fill(t, full, &n)
		want := full.Interface()
		if got := mustDecode(t, rt.typ, want.(appender).Append(nil)); !reflect.DeepEqual(got, want) {
			t.Errorf("%v, all fields:\n got %+v\nwant %+v", rt.typ, got, want)
		}
		leaves(typ, nil, func(path []int, field reflect.StructField) {
			want := only(t, typ, path).Interface()
			if got := mustDecode(t, rt.typ, want.(appender).Append(nil)); !reflect.DeepEqual(got, want) {
				t.Errorf("%v.%s is not encoded:\n got %+v\nwant %+v", rt.typ, field.Name, got, want)
			}
		})
		if got := mustDecode(t, rt.typ, rt.zero.Append(nil)); !reflect.DeepEqual(got, rt.zero) {
			t.Errorf("%v, zero: %+v", rt.typ, got)
		}
	}
}

// What Append adds does not depend on, or touch, what is there already.
func TestAppendAppends(t *testing.T) {
	t.Parallel()
	for _, rt := range recordTypes {
		v := reflect.New(reflect.TypeOf(rt.zero)).Elem()
		n := 0
		fill(t, v, &n)
		rec := v.Interface().(appender)
		alone := rec.Append(nil)
		for _, room := range []int{0, 1, len(alone) / 2, 2 * len(alone)} {
			dst := append(make([]byte, 0, 3+room), "abc"...)
			if got := rec.Append(dst); string(got) != "abc"+string(alone) {
				t.Errorf("%v with room %d: %x", rt.typ, room, got)
			}
		}
	}
}
