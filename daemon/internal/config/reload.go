package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// reloadable are the keys, and the tables, that a running daemon takes a new
// value of. Whatever else there is needs a restart: paths, sockets and programs
// belong to what runs already.
var reloadable = []string{
	"socket.operator_users", "socket.operator_groups", "socket.reader_users", "socket.reader_groups",
	"sessions.default_owner", "sessions.allow_root", "sessions.startup_timeout", "sessions.grace",
	"sessions.reserve_bytes", "sessions.reserve_inodes",
	"stop", "wrapper.reconnect_window", "wrapper.relist_every", "capacity",
	"keep.tombstones", "keep.operations", "log.level",
}

// Reloadable reports whether a running daemon can take a new value of the key.
func Reloadable(key string) bool {
	table, _, _ := strings.Cut(key, ".")
	return slices.Contains(reloadable, key) || slices.Contains(reloadable, table)
}

// Reload lays next over c as far as a running daemon can change. changed and
// refused are the keys that differ: those that the result has of next, and
// those that it has of c, in order.
func (c *Config) Reload(next *Config) (merged Config, changed, refused []string) {
	merged = *c
	walk(reflect.ValueOf(&merged).Elem(), reflect.ValueOf(next).Elem(), "", func(key string, have, want reflect.Value) {
		switch {
		case reflect.DeepEqual(have.Interface(), want.Interface()) || have.Kind() == reflect.Slice && have.Len()+want.Len() == 0:
		case Reloadable(key):
			have.Set(want)
			changed = append(changed, key)
		default:
			refused = append(refused, key)
		}
	})
	return merged, changed, refused
}

// walk calls f for each key of two configurations.
func walk(have, want reflect.Value, prefix string, f func(key string, have, want reflect.Value)) {
	for i := range have.NumField() {
		tag, ok := have.Type().Field(i).Tag.Lookup("toml")
		if !ok {
			panic(fmt.Sprintf("internal error: configuration field %s has no key", have.Type().Field(i).Name))
		}
		key := prefix + tag
		if have.Field(i).Kind() == reflect.Struct {
			walk(have.Field(i), want.Field(i), key+".", f)
			continue
		}
		f(key, have.Field(i), want.Field(i))
	}
}
