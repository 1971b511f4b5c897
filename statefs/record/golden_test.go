package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// The golden files are testdata/golden/NAME.SERIAL.bin, a body as it was once
// written, and .json, what it means. A file that is there is never changed:
// -update adds the next serial when the bytes of today are not those of the
// newest one. All of them must decode for ever.

const goldenDir = "testdata/golden"

func goldenFiles(t *testing.T, name string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(goldenDir, name+".*.bin"))
	if err != nil {
		t.Fatal(err)
	}
	return files // sorted; serials have two digits
}

func asJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

func TestGoldenEncoding(t *testing.T) {
	t.Parallel()
	for _, rt := range recordTypes {
		v := reflect.New(reflect.TypeOf(rt.zero)).Elem()
		n := 0
		fill(t, v, &n)
		now := v.Interface().(appender).Append(nil)
		files := goldenFiles(t, rt.typ.String())
		var newest []byte
		if len(files) > 0 {
			var err error
			if newest, err = os.ReadFile(files[len(files)-1]); err != nil {
				t.Fatal(err)
			}
		}
		if bytes.Equal(now, newest) {
			continue
		}
		if !*update {
			t.Errorf("%v: its encoding is not the newest golden one; if only a field was added, -update adds a golden file", rt.typ)
			continue
		}
		if err := os.MkdirAll(goldenDir, 0o755); err != nil {
			t.Fatal(err)
		}
		base := filepath.Join(goldenDir, fmt.Sprintf("%v.%02d", rt.typ, len(files)+1))
		for name, data := range map[string][]byte{base + ".bin": now, base + ".json": asJSON(t, v.Interface())} {
			if err := os.WriteFile(name, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Every body ever written decodes, and means what it meant then. A field that
// has been added since may show in the new meaning only as its zero value.
func TestGoldenDecode(t *testing.T) {
	t.Parallel()
	for _, rt := range recordTypes {
		files := goldenFiles(t, rt.typ.String())
		if len(files) == 0 {
			t.Errorf("%v has no golden file", rt.typ)
		}
		for _, file := range files {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			meaning, err := os.ReadFile(strings.TrimSuffix(file, ".bin") + ".json")
			if err != nil {
				t.Fatal(err)
			}
			want := reflect.New(reflect.TypeOf(rt.zero))
			if err := json.Unmarshal(meaning, want.Interface()); err != nil {
				t.Fatal(err)
			}
			if got := mustDecode(t, rt.typ, body); !reflect.DeepEqual(got, want.Elem().Interface()) {
				t.Errorf("%s:\n got %+v\nwant %+v", file, got, want.Elem().Interface())
			}
		}
	}
}

// Every cut of every golden body is an error or a record without its last
// fields, never a panic; every single changed byte likewise. case T42
func TestGoldenDamage(t *testing.T) {
	t.Parallel()
	for _, rt := range recordTypes {
		for _, file := range goldenFiles(t, rt.typ.String()) {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for i := range body {
				checkDecode(t, rt.typ, body[:i])
				for _, x := range []byte{0x01, 0x80, 0xff, body[i]} {
					damaged := bytes.Clone(body)
					damaged[i] ^= x
					checkDecode(t, rt.typ, damaged)
				}
			}
		}
	}
	for _, body := range [][]byte{nil, make([]byte, 256), bytes.Repeat([]byte{0xff}, 256)} {
		for _, rt := range recordTypes {
			if _, err := Decode(rt.typ, body); !errors.Is(err, ErrMalformed) {
				t.Errorf("%v: %x: err = %v", rt.typ, body, err)
			}
		}
	}
}

// checkDecode decodes anything. An error is typed and comes without a value; a
// value encodes and decodes to itself.
func checkDecode(t *testing.T, typ Type, body []byte) {
	t.Helper()
	kept := bytes.Clone(body)
	v, err := Decode(typ, body)
	if !bytes.Equal(kept, body) {
		t.Fatalf("%v: %x: the body was changed", typ, kept)
	}
	if err != nil {
		if v != nil || !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrVersion) && !errors.Is(err, ErrType) {
			t.Fatalf("%v: %x: %v, %v", typ, body, v, err)
		}
		return
	}
	if v == nil {
		return // forget
	}
	again, err := Decode(typ, v.(appender).Append(nil))
	if err != nil || !reflect.DeepEqual(v, again) {
		t.Fatalf("%v: %x:\n once %+v\n again %+v, %v", typ, body, v, again, err)
	}
	// A record keeps nothing of the body.
	clear(body)
	if !reflect.DeepEqual(v, again) {
		t.Fatalf("%v: %x: the record refers to the body", typ, kept)
	}
	copy(body, kept)
}
