package rpc

import (
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// EncodeQuery returns the URL query of a query struct (LogsQuery, EventsQuery,
// AttachQuery), zero fields left out.
func EncodeQuery(q any) string {
	values := url.Values{}
	v := reflect.ValueOf(q)
	for f, fv := range v.Fields() {
		if fv.IsZero() {
			continue
		}
		switch fv.Kind() {
		case reflect.Bool:
			values.Set(queryName(f.Name), "true")
		case reflect.String:
			values.Set(queryName(f.Name), fv.String())
		default:
			values.Set(queryName(f.Name), strconv.FormatUint(fv.Uint(), 10))
		}
	}
	return values.Encode()
}

// decodeQuery reads a URL query into v, a pointer to a query struct or nil
// where the method takes none. Everything that it cannot keep is refused with
// CodeInvalidRequest.
func decodeQuery(raw string, v any) error {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return Errorf(CodeInvalidRequest, "the query is malformed: %s", err)
	}
	var known []string
	fields := map[string]reflect.Value{}
	if v != nil {
		for f, fv := range reflect.ValueOf(v).Elem().Fields() {
			known = append(known, queryName(f.Name))
			fields[queryName(f.Name)] = fv
		}
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names) // the same request gives the same refusal
	for _, name := range names {
		f, ok := fields[name]
		switch {
		case !ok && len(known) == 0:
			return queryError(name, "is unknown; this method takes none")
		case !ok:
			return queryError(name, "is unknown; known are "+strings.Join(known, ", "))
		case len(values[name]) > 1:
			return queryError(name, "is given twice")
		}
		if err := setQuery(f, name, values[name][0]); err != nil {
			return err
		}
	}
	return nil
}

func setQuery(f reflect.Value, name, text string) error {
	switch f.Kind() {
	case reflect.Bool:
		switch text {
		case "true", "1", "": // a bare ?follow asks for it
			f.SetBool(true)
		case "false", "0":
		default:
			return queryError(name, "must be "+typeName(f.Type()))
		}
	case reflect.String:
		if name == "session" && text != "" {
			if err := CheckSessionID(text); err != nil {
				return err
			}
		}
		f.SetString(text)
	default:
		n, err := strconv.ParseUint(text, 10, f.Type().Bits())
		if err != nil {
			return queryError(name, "must be "+typeName(f.Type()))
		}
		f.SetUint(n)
	}
	return nil
}

func queryError(name, what string) error {
	if len(name) > 64 {
		name = name[:64] + "…"
	}
	return Errorf(CodeInvalidRequest, "query parameter %q %s", name, what).with("field", name)
}

// queryName turns a field's name into the parameter's: ReadOnly, read_only.
func queryName(field string) string {
	var b strings.Builder
	for i, r := range field {
		if 'A' <= r && r <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}
