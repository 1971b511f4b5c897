// Package man holds the manual pages. These tests keep them true: whatever the
// programs have is on a page, and what is on a page the programs have.
package man

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the repository's top directory.
const root = ".."

// line is one line of a page, with the sections that it stands in.
type line struct {
	sh, ss string
	macro  string   // "It" of ".It Fl a"; empty for text
	args   []string // the words after it, quoting resolved
	text   string
}

// page reads a manual page.
func page(t *testing.T, name string) []line {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var lines []line
	var sh, ss string
	for text := range strings.Lines(string(data)) {
		text = strings.TrimSuffix(text, "\n")
		l := line{sh: sh, ss: ss, text: text}
		if macro, ok := strings.CutPrefix(text, "."); ok {
			words := split(macro)
			l.macro, l.args = words[0], words[1:]
		}
		switch l.macro {
		case "Sh":
			sh, ss = strings.Join(l.args, " "), ""
		case "Ss":
			ss = strings.Join(l.args, " ")
		}
		lines = append(lines, l)
	}
	return lines
}

// split divides a macro line into words; "quoted ones" stay together.
func split(text string) []string {
	var words []string
	for text = strings.TrimLeft(text, " "); text != ""; text = strings.TrimLeft(text, " ") {
		end, from := " ", 0
		if text[0] == '"' {
			end, from = `"`, 1
		}
		word, rest, _ := strings.Cut(text[from:], end)
		words = append(words, strings.ReplaceAll(word, `\(dq`, `"`))
		text = rest
	}
	return words
}

// pages lists all manual pages.
func pages(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("*.[1-9]")
	if err != nil || len(names) == 0 {
		t.Fatalf("no manual pages: %v", err)
	}
	return names
}

// items are the words X, Y of lines ".It macro X , Y" below a section.
func items(lines []line, macro, section string) []string {
	var found []string
	for _, l := range lines {
		if l.macro != "It" || l.sh != section || len(l.args) == 0 || l.args[0] != macro {
			continue
		}
		for _, word := range l.args[1:] {
			if word != "," {
				found = append(found, word)
			}
		}
	}
	return found
}

// same reports what two lists do not have in common.
func same(t *testing.T, what string, documented, real []string) {
	t.Helper()
	for _, w := range real {
		if !slices.Contains(documented, w) {
			t.Errorf("%s: %q is not documented", what, w)
		}
	}
	for _, w := range documented {
		if !slices.Contains(real, w) {
			t.Errorf("%s: %q is documented and does not exist", what, w)
		}
	}
	if len(real) == 0 {
		t.Errorf("%s: nothing was found to compare with", what)
	}
}

// The pages are clean to mandoc's eyes, down to style.
func TestLint(t *testing.T) {
	t.Parallel()
	mandoc, err := exec.LookPath("mandoc")
	if err != nil {
		t.Skip("mandoc is not installed: the pages' form is not checked")
	}
	for _, name := range pages(t) {
		out, _ := exec.Command(mandoc, "-Tlint", name).Output() // its status only repeats the output
		for complaint := range strings.Lines(string(out)) {
			// Depends on what this machine has installed; TestReferences
			// looks after our own.
			if !strings.Contains(complaint, "referenced manual not found") {
				t.Error(strings.TrimSpace(complaint))
			}
		}
	}
}

// References between the pages lead somewhere, and titles are the files' names.
func TestReferences(t *testing.T) {
	t.Parallel()
	for _, name := range pages(t) {
		var title string
		for _, l := range page(t, name) {
			switch {
			case l.macro == "Dt" && len(l.args) == 2:
				title = strings.ToLower(l.args[0]) + "." + l.args[1]
			case l.macro == "Xr" && len(l.args) >= 2 && strings.HasPrefix(l.args[0], "berth"):
				if _, err := os.Stat(l.args[0] + "." + l.args[1]); err != nil {
					t.Errorf("%s: .Xr %s %s: %v", name, l.args[0], l.args[1], err)
				}
			}
		}
		if title != name {
			t.Errorf("%s has the title %s", name, title)
		}
	}
}
