package man

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documents are the texts at the top of the repository.
var documents = []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "packaging/README.md"}

// Commands in the documents and in the pages' examples exist, with their
// flags; so do targets of make and the files that are spoken of.
func TestDocuments(t *testing.T) {
	t.Parallel()
	real := verbs(t)
	for _, name := range documents {
		text := read(t, filepath.Join(root, name))
		for _, m := range regexp.MustCompile(`(?m)(?:^|[#$|(] |&& )berthctl ([^|;)\n]*)`).FindAllStringSubmatch(fenced(text), -1) {
			checkCommand(t, name, m[1], real)
		}
		for _, m := range regexp.MustCompile("`make ([a-z]+)[^`]*`|(?m)^(?:# )?make ([a-z]+)").FindAllStringSubmatch(text, -1) {
			if target := m[1] + m[2]; !strings.Contains(read(t, filepath.Join(root, "Makefile")), "\n"+target+":") {
				t.Errorf("%s: make has no target %q", name, target)
			}
		}
		for _, m := range regexp.MustCompile("`((?:daemon|man|packaging|plugins|rpc|statefs|\\.ci)/[\\w./-]*|[A-Z]+\\.md)`").FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for _, name := range pages(t) {
		for _, l := range page(t, name) {
			if command, ok := strings.CutPrefix(l.text, "berthctl "); ok && l.sh == "EXAMPLES" {
				checkCommand(t, name, command, real)
			}
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// fenced is the text between ``` lines: input and output.
func fenced(text string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		if trimmed := strings.TrimSpace(line); strings.HasPrefix(trimmed, "```") {
			inside = !inside
		} else if inside {
			b.WriteString(line)
		}
	}
	return b.String()
}

// checkCommand looks at "VERB [flags and words]" up to "--", a pipe or a quote. A verb is known
// by itself, by its aliases, or as the second word of a group.
func checkCommand(t *testing.T, name, command string, real map[string]verb) {
	t.Helper()
	words := strings.Fields(command)
	if len(words) == 0 || !regexp.MustCompile(`^[a-z]+$`).MatchString(words[0]) {
		return // output: "berthctl: …"
	}
	v, ok := real[words[0]]
	if len(words) > 1 {
		if sub, isSub := real[words[0]+" "+words[1]]; isSub {
			v = sub
		}
	}
	if !ok {
		t.Errorf("%s: berthctl has no command %q", name, words[0])
		return
	}
	for _, w := range words[1:] {
		flag, _, _ := strings.Cut(strings.TrimPrefix(w, "-"), "=")
		if w == "--" || w == "|" || strings.ContainsAny(w[:1], `'"`) {
			return
		}
		if flag == w || flag == "" {
			continue
		}
		if _, own := v.flags[flag]; own {
			continue
		}
		if _, global := v.global[flag]; !global {
			t.Errorf("%s: berthctl %s has no flag %s", name, words[0], w)
		}
	}
}
