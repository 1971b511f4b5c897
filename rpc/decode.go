package rpc

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// decodeBody reads one JSON object into v, a pointer to a request struct, and
// refuses with CodeInvalidRequest whatever it cannot keep: unknown fields,
// names in another case, duplicate keys, nulls for what has no null, strings
// that are not Unicode, anything after the object. encoding/json alone lets
// all of those through in one form or another. An empty body is {}.
func decodeBody(data []byte, v any) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return syntaxError(err)
	}
	w := walker{data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	w.dec.UseNumber()
	if err := w.value("", reflect.TypeOf(v).Elem()); err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return typeError(err)
	}
	return nil
}

// walker checks a syntactically valid text against a type, token by token.
type walker struct {
	data []byte
	dec  *json.Decoder
	// raw is the text of the last token, with what separated it from the one before.
	raw []byte
}

func (w *walker) next() (json.Token, error) {
	from := w.dec.InputOffset()
	tok, err := w.dec.Token()
	if err != nil {
		return nil, syntaxError(err)
	}
	w.raw = w.data[from:w.dec.InputOffset()]
	return tok, nil
}

// value checks the next value, which stands at path ("" = the body).
func (w *walker) value(path string, t reflect.Type) error {
	tok, err := w.next()
	if err != nil {
		return err
	}
	if tok == nil {
		if t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			return nil // absent and empty are one for these
		}
		return fieldError(path, "must not be null")
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	d, isDelim := tok.(json.Delim)
	switch {
	case t.Kind() == reflect.Struct:
		if d != '{' {
			return fieldError(path, "must be an object")
		}
		return w.object(path, t)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		if d != '[' {
			return fieldError(path, "must be an array")
		}
		return w.array(path, t.Elem())
	case isDelim:
		return fieldError(path, "must be "+typeName(t))
	}
	if s, ok := tok.(string); ok {
		return w.text(path, t, s)
	}
	return nil
}

func (w *walker) object(path string, t reflect.Type) error {
	seen := map[string]bool{}
	for w.dec.More() {
		tok, err := w.next()
		if err != nil {
			return err
		}
		key := tok.(string) // syntax was checked
		at := joinPath(path, key)
		if !unicodeText(w.raw, key) {
			return fieldError(at, "has a name that is not valid Unicode")
		}
		if seen[key] {
			return fieldError(at, "is given twice")
		}
		seen[key] = true
		ft, ok := jsonField(t, key)
		if !ok {
			return fieldError(at, "is unknown; known are "+strings.Join(jsonNames(t), ", "))
		}
		if err := w.value(at, ft); err != nil {
			return err
		}
	}
	_, err := w.next() // the closing brace
	return err
}

func (w *walker) array(path string, elem reflect.Type) error {
	for i := 0; w.dec.More(); i++ {
		if err := w.value(fmt.Sprintf("%s[%d]", path, i), elem); err != nil {
			return err
		}
	}
	_, err := w.next() // the closing bracket
	return err
}

func (w *walker) text(path string, t reflect.Type, s string) error {
	if !unicodeText(w.raw, s) {
		return fieldError(path, "is not valid UTF-8 or holds half a surrogate pair")
	}
	if t.Kind() == reflect.Slice {
		if _, err := base64.StdEncoding.DecodeString(s); err != nil {
			return fieldError(path, "must be base64: "+err.Error())
		}
	}
	return nil
}

// unicodeText tells whether decoding raw to s has replaced nothing:
// encoding/json turns bytes that are not UTF-8 and lone surrogates into U+FFFD.
func unicodeText(raw []byte, s string) bool {
	if !utf8.Valid(raw) {
		return false
	}
	given := bytes.Count(raw, []byte("\uFFFD")) + bytes.Count(bytes.ToLower(raw), []byte(`\ufffd`))
	return strings.Count(s, "\uFFFD") <= given
}

// jsonField returns the type of the field with exactly that JSON name.
func jsonField(t reflect.Type, name string) (reflect.Type, bool) {
	for f := range t.Fields() {
		if jsonName(f) == name && name != "" {
			return f.Type, true
		}
	}
	return nil, false
}

// jsonNames lists the JSON names of t's fields in the order of declaration.
func jsonNames(t reflect.Type) []string {
	var names []string
	for f := range t.Fields() {
		if n := jsonName(f); n != "" {
			names = append(names, n)
		}
	}
	return names
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "-" || !f.IsExported() {
		return ""
	}
	return name
}

func joinPath(path, key string) string {
	if len(key) > 64 {
		key = key[:64] + "…"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func syntaxError(err error) error {
	var se *json.SyntaxError
	if errors.As(err, &se) {
		return Errorf(CodeInvalidRequest, "the body is not one JSON object: %s at byte %d", se.Error(), se.Offset)
	}
	return Errorf(CodeInvalidRequest, "the body is not one JSON object: %s", err)
}

func typeError(err error) error {
	var te *json.UnmarshalTypeError
	if !errors.As(err, &te) {
		return Errorf(CodeInvalidRequest, "the body does not fit the request: %s", err)
	}
	return fieldError(te.Field, fmt.Sprintf("must be %s, not %s", typeName(te.Type), te.Value))
}

func fieldError(path, what string) error {
	if path == "" {
		return Errorf(CodeInvalidRequest, "the body %s", what)
	}
	return Errorf(CodeInvalidRequest, "field %q %s", path, what).with("field", path)
}

func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a whole number from 0 to 2^%d-1", t.Bits())
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Struct:
		return "an object"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a base64 string"
		}
		return "an array"
	}
	return "a string"
}
