package record

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// wireNumber returns the field number under which the last step of path is
// written, by setting nothing else and looking at the bytes.
func wireNumber(t *testing.T, typ reflect.Type, path []int) protowire.Number {
	t.Helper()
	body := only(t, typ, path).Interface().(appender).Append(nil)
	var num protowire.Number
	for depth := range path {
		for first := true; len(body) > 0; first = false {
			n, wt, size := protowire.ConsumeTag(body)
			value := protowire.ConsumeFieldValue(n, wt, body[size:])
			if size < 0 || value < 0 {
				t.Fatalf("path %v: %x does not parse", path, body)
			}
			rest := body[size+value:]
			if depth == 0 && first {
				if n != fieldVersion {
					t.Fatalf("path %v: the first field is %d, not the version", path, n)
				}
				body = rest
				continue
			}
			num = n
			if depth < len(path)-1 {
				body, _ = protowire.ConsumeBytes(body[size:])
			}
			break
		}
	}
	return num
}

func kindOf(t reflect.Type) string {
	switch {
	case t == timeType:
		return "time"
	case t == durationType:
		return "duration"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return "bytes"
	case t.Kind() == reflect.Slice:
		return "list of " + kindOf(t.Elem())
	case t.Kind() == reflect.Pointer:
		return "optional " + kindOf(t.Elem())
	case t.Kind() == reflect.Struct:
		return "message " + strings.ToLower(t.Name())
	case t.Kind() == reflect.Uint64:
		return "uint"
	}
	return t.Kind().String()
}

// formatTable is the table of FORMAT.md, from the structs and the bytes.
func formatTable(t *testing.T) string {
	t.Helper()
	var out bytes.Buffer
	for _, rt := range recordTypes {
		typ := reflect.TypeOf(rt.zero)
		owners := []string{rt.typ.String()}
		rows := map[string]map[protowire.Number]string{
			owners[0]: {fieldVersion: fmt.Sprintf("| %v | %d | 1 | version | uint |\n", rt.typ, rt.typ)},
		}
		leaves(typ, nil, func(path []int, field reflect.StructField) {
			num := wireNumber(t, typ, path)
			owner, kind := owners[0], fmt.Sprint(uint16(rt.typ))
			if len(path) > 1 {
				owner, kind = strings.ToLower(messageType(typ.Field(path[0]).Type).Name()), ""
			}
			if rows[owner] == nil {
				owners, rows[owner] = append(owners, owner), map[protowire.Number]string{}
			}
			if other := rows[owner][num]; other != "" {
				t.Errorf("%s.%s has the number of %s", owner, field.Name, other)
			}
			if num >= 64 {
				t.Errorf("%s.%s: field %d; the reader finds doubles only below 64", owner, field.Name, num)
			}
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			rows[owner][num] = fmt.Sprintf("| %s | %s | %d | %s | %s |\n", owner, kind, num, name, kindOf(field.Type))
		})
		for _, owner := range owners {
			for _, num := range slices.Sorted(maps.Keys(rows[owner])) {
				out.WriteString(rows[owner][num])
			}
		}
	}
	return out.String()
}

// FORMAT.md says what is written. With -update it is made so; look at the
// difference: a number that changed is a mistake.
func TestFormatTable(t *testing.T) {
	t.Parallel()
	const head = "|---|---|---|---|---|\n"
	doc, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	before, table, ok := strings.Cut(string(doc), head)
	if !ok {
		t.Fatal("FORMAT.md has no table of fields")
	}
	want := formatTable(t)
	if *update {
		if err := os.WriteFile("FORMAT.md", []byte(before+head+want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != want {
		t.Errorf("the table of FORMAT.md is not what is written (go test -run TestFormatTable -update):\n%s", want)
	}
}
