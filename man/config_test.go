package man

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// berthd.toml.5 and packaging/berthd.toml both have every key, no other, and
// every default: read over an empty configuration each gives the default one.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	packaged, err := os.ReadFile(filepath.Join(root, "packaging/berthd.toml"))
	if err != nil {
		t.Fatal(err)
	}
	active := regexp.MustCompile(`(?m)^#(\S)`).ReplaceAllString(string(packaged), "$1")
	paths := []string{
		writeTOML(t, "packaging.toml", active),
		writeTOML(t, "page.toml", documentedTOML(t)),
	}
	f := askFacts(t, paths...)
	for i, name := range []string{"packaging/berthd.toml, without its comments", "berthd.toml.5"} {
		got := f.Files[i]
		if got.Error != "" {
			t.Errorf("%s: %s", name, got.Error)
			continue
		}
		same(t, name, got.Keys, f.Keys)
		// An absent list and an empty one are the same.
		nulls := strings.NewReplacer("null", "[]")
		if a, b := nulls.Replace(string(got.Config)), nulls.Replace(string(f.Default)); a != b {
			t.Errorf("%s is\n%s\nthe default is\n%s", name, a, b)
		}
	}
	if rest := regexp.MustCompile(`(?m)^[^#\n].*`).FindString(string(packaged)); rest != "" {
		t.Errorf("packaging/berthd.toml sets something: %s", rest)
	}
	keysExist(t, f.Keys)
}

func writeTOML(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// documentedTOML makes a configuration file of the page's keys and defaults.
func documentedTOML(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, l := range page(t, "berthd.toml.5") {
		switch {
		case l.macro == "Ss" && l.args[0] == "Table":
			if l.args[1] == "provider" {
				b.WriteString("[[provider]]\n")
			} else {
				b.WriteString("[" + l.args[1] + "]\n")
			}
		case l.macro == "It" && l.args[0] == "Va":
			if len(l.args) != 6 || l.args[2] != "No" || l.args[3] != "=" || l.args[4] != "Li" {
				t.Errorf("berthd.toml.5: %q is not \".It Va KEY No = Li VALUE\"", l.text)
				continue
			}
			b.WriteString(l.args[1] + " = " + l.args[5] + "\n")
		}
	}
	return b.String()
}

// keysExist looks at the keys of which the pages speak as .Va table.key.
func keysExist(t *testing.T, keys []string) {
	t.Helper()
	for _, name := range pages(t) {
		for _, l := range page(t, name) {
			if l.macro == "Va" && strings.Contains(l.args[0], ".") && !slices.Contains(keys, l.args[0]) {
				t.Errorf("%s speaks of a key %q", name, l.args[0])
			}
		}
	}
}
