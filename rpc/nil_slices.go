package rpc

import (
	"reflect"
	"strings"
)

// withoutNilSlices returns v with every nil slice that JSON would show as null
// made empty: a reply's list is a list, also when there is nothing in it. What
// v refers to is copied before it is changed: a Service may answer with a part
// of what it has published.
func withoutNilSlices(v any) any {
	c := reflect.New(reflect.TypeOf(v)).Elem()
	c.Set(reflect.ValueOf(v))
	fillNil(c)
	return c.Interface()
}

// fillNil changes v itself, but nothing that it refers to.
func fillNil(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for f, fv := range v.Fields() {
			omitted := strings.Contains(f.Tag.Get("json"), ",omit") && fv.IsZero()
			if f.IsExported() && !omitted && showsNull(f.Type, nil) {
				fillNil(fv)
			}
		}
	case reflect.Slice:
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(c, v)
		v.Set(c)
		if showsNull(v.Type().Elem(), nil) {
			for i := range c.Len() {
				fillNil(c.Index(i))
			}
		}
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		c := reflect.New(v.Type().Elem())
		c.Elem().Set(v.Elem())
		fillNil(c.Elem())
		v.Set(c)
	}
}

// showsNull tells whether a value of type t can show a slice as null. seen
// holds the structs above t.
func showsNull(t reflect.Type, seen []reflect.Type) bool {
	switch t.Kind() {
	case reflect.Slice:
		return true
	case reflect.Pointer:
		return showsNull(t.Elem(), seen)
	case reflect.Struct:
		for _, s := range seen {
			if s == t {
				return false
			}
		}
		for f := range t.Fields() {
			plain := f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() != reflect.Struct
			if plain && strings.Contains(f.Tag.Get("json"), ",omit") {
				continue // never null
			}
			if f.IsExported() && showsNull(f.Type, append(seen, t)) {
				return true
			}
		}
	}
	return false
}
