package man

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
)

// constants finds the constants of a package whose type has that name, or,
// with an empty type, whose own names begin with prefix. Values are by name,
// strings without their quotes.
func constants(t *testing.T, dir, typ, prefix string) map[string]string {
	t.Helper()
	found := map[string]string{}
	names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
				takeConstants(g, typ, prefix, found)
			}
		}
	}
	return found
}

func takeConstants(g *ast.GenDecl, typ, prefix string, found map[string]string) {
	for _, s := range g.Specs {
		v := s.(*ast.ValueSpec)
		id, _ := v.Type.(*ast.Ident)
		if typ != "" && (id == nil || id.Name != typ) || !strings.HasPrefix(v.Names[0].Name, prefix) || len(v.Values) != 1 {
			continue
		}
		if lit, ok := v.Values[0].(*ast.BasicLit); ok {
			value := lit.Value
			if unquoted, err := strconv.Unquote(value); err == nil {
				value = unquoted
			}
			found[v.Names[0].Name] = value
		}
	}
}

func values(m map[string]string) []string { return slices.Sorted(maps.Values(m)) }

// Every word of a closed set is explained, and no other.
func TestWords(t *testing.T) {
	t.Parallel()
	var codes []string
	for _, c := range rpc.Codes() {
		codes = append(codes, string(c))
	}
	daemon, ctl, plugin := page(t, "berthd.8"), page(t, "berthctl.1"), page(t, "berth-plugin.7")
	f := askFacts(t)
	same(t, "codes of refusals", items(ctl, "Li", "REFUSALS"), codes)
	same(t, "stop reasons", items(daemon, "Li", "STOP REASONS"), f.Reasons)
	same(t, "states of a lease", items(daemon, "Li", "LEASES"), f.States)
	same(t, "states of a lease, in berth.7", items(page(t, "berth.7"), "Li", "STATES"), f.States)
	same(t, "capabilities", items(plugin, "Li", "CAPABILITIES"), values(constants(t, "plugins/sandbox", "Capability", "")))
	same(t, "reasons of providers", items(plugin, "Li", "REASONS"), values(constants(t, "plugins/sandbox", "Reason", "")))
	quoted(t, "berthctl.1", "states of a provider", values(constants(t, "plugins/host", "State", "")))
	quoted(t, "berth-wrap.8", "phases of a wrapper", values(constants(t, "rpc/wire", "", "Phase")))

	shown := items(ctl, "Li", "EVIDENCE")
	witnesses := constants(t, "daemon/internal/evidence", "", "")
	var names []string
	for _, name := range []string{"Leaf", "Paths", "Pidfd", "Lock", "Markers", "Link", "Provider"} {
		w := witnesses[name]
		if names = append(names, w); w == "" || !slices.Contains(shown, w) {
			t.Errorf("witness %s %q is not documented", name, w)
		}
	}
	same(t, "witnesses, in berth.7", items(page(t, "berth.7"), "Li", "EVIDENCE"), names)
}

// quoted expects each word in a page as .Ql word.
func quoted(t *testing.T, name, what string, words []string) {
	t.Helper()
	if len(words) == 0 {
		t.Errorf("%s: nothing was found to compare with", what)
	}
	lines := page(t, name)
	for _, w := range words {
		if !slices.ContainsFunc(lines, func(l line) bool { return l.macro == "Ql" && l.args[0] == w }) {
			t.Errorf("%s: %s: %q is not documented", name, what, w)
		}
	}
}

// Environment variables that the programs read or set are documented, and what
// is documented is read or set.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	real := map[string]bool{"TMPDIR": true, "JOURNAL_STREAM": true} // through os.TempDir and go-systemd
	name := regexp.MustCompile(`"(BERTH_[A-Z_]+)=?"|(?:Getenv|LookupEnv)\("([A-Z_]+)"\)`)
	passed := regexp.MustCompile(`passed = \[\]string\{(.*)\}`)
	for _, dir := range []string{"daemon", "rpc", "plugins", "statefs"} {
		walk(t, dir, func(source string) {
			for _, m := range name.FindAllStringSubmatch(source, -1) {
				real[m[1]+m[2]] = true
			}
			for _, m := range passed.FindAllStringSubmatch(source, -1) {
				for _, quoted := range strings.Split(m[1], ", ") {
					real[strings.Trim(quoted, `"`)] = true
				}
			}
		})
	}
	documented := map[string]bool{}
	for _, p := range pages(t) {
		for _, section := range []string{"ENVIRONMENT", "DESCRIPTION", "THE PROTOCOL"} {
			for _, v := range items(page(t, p), "Ev", section) {
				documented[v] = true
			}
		}
	}
	same(t, "environment", slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(real)))
}

// walk passes the text of every source file of the programs below a directory.
func walk(t *testing.T, dir string, f func(source string)) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasSuffix(d.Name(), "test")):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		data, err := os.ReadFile(path)
		f(string(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
