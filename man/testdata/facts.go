// Command facts prints, as JSON, what only packages below daemon/ can know
// about the daemon. It is compiled by the tests of package man, through an
// overlay that lets it stand there; see facts in programs_test.go. Its
// arguments are configuration files, each read over an empty configuration.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"

	"github.com/pelletier/go-toml/v2"

	"github.com/berthd/berth/daemon/internal/config"
	"github.com/berthd/berth/daemon/internal/lease"
)

type file struct {
	Config config.Config
	Keys   []string // that the file sets
	Error  string
}

type facts struct {
	Keys    []string // of config.Config
	Default config.Config
	Files   []file
	Reasons []string // for a stop
	States  []string // of a lease
}

func main() {
	f := facts{Keys: keysOf("", reflect.TypeFor[config.Config]()), Default: load("", config.Default()).Config}
	for _, path := range os.Args[1:] {
		f.Files = append(f.Files, load(path, config.Config{}))
	}
	for _, r := range lease.Reasons() {
		f.Reasons = append(f.Reasons, r.String())
	}
	for _, k := range lease.Kinds() {
		f.States = append(f.States, k.String())
	}
	if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func load(path string, base config.Config) (f file) {
	var err error
	if f.Config, err = config.Load(base, path, path == "", func(*config.Config) {}); err != nil {
		f.Error = err.Error()
		return f
	}
	var raw map[string]any
	if data, err := os.ReadFile(path); err == nil && toml.Unmarshal(data, &raw) == nil {
		f.Keys = keysIn("", raw)
	}
	return f
}

// keysOf lists the keys of a configuration struct by their TOML tags.
func keysOf(prefix string, t reflect.Type) []string {
	var keys []string
	for field := range t.Fields() {
		key, typ := prefix+field.Tag.Get("toml"), field.Type
		if typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() == reflect.Struct {
			keys = append(keys, keysOf(key+".", typ)...)
		} else {
			keys = append(keys, key)
		}
	}
	return keys
}

// keysIn lists the keys of a file in the same way.
func keysIn(prefix string, table map[string]any) []string {
	var keys []string
	for name, value := range table {
		switch v := value.(type) {
		case map[string]any:
			keys = append(keys, keysIn(prefix+name+".", v)...)
		case []any:
			if len(v) > 0 {
				if sub, ok := v[0].(map[string]any); ok {
					keys = append(keys, keysIn(prefix+name+".", sub)...)
					continue
				}
			}
			keys = append(keys, prefix+name)
		default:
			keys = append(keys, prefix+name)
		}
	}
	return keys
}
