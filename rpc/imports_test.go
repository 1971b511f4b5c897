package rpc_test

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Who may import what of this module: rpc is used by daemons and clients
// alike, and must not pull in either.
func TestImports(t *testing.T) {
	t.Parallel()
	const module = "github.com/berthd/berth/"
	allowed := map[string][]string{
		".":            {},
		"wire":         {},
		"client":       {"rpc"},
		"internal/cli": {"rpc", "rpc/client", "rpc/wire", "statefs", "statefs/journal", "statefs/record", "statefs/spool"},
		"cmd/berthctl": {"rpc/internal/cli"},
	}
	for dir, want := range allowed {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no files in %q: %v", dir, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range file.Imports {
				path, _ := strconv.Unquote(spec.Path.Value)
				if own, ok := strings.CutPrefix(path, module); ok && !slices.Contains(want, own) {
					t.Errorf("%s imports %s", name, own)
				}
				if dir == "wire" && path == "net/http" {
					t.Errorf("%s imports %s: wrappers link it", name, path)
				}
			}
		}
	}
}
