package man

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// programs builds the programs once, and returns their directory.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "berth-man")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/", "./daemon/cmd/...", "./rpc/cmd/...")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := programs(); dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// run runs a program and returns all that it prints and its exit code.
func run(t *testing.T, program string, args ...string) (string, int) {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(dir, program), args...).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return string(out), exit.ExitCode()
	case err != nil:
		t.Fatal(err)
	}
	return string(out), 0
}

// flags maps a flag, without its first dash, to whether it takes an argument.
type flags map[string]bool

func (f flags) names() []string { return slices.Sorted(maps.Keys(f)) }

// documented adds the flags of one macro line: the words behind Fl, up to the
// next macro (mdoc(7)).
func (f flags) documented(l line) {
	words, active := append([]string{l.macro}, l.args...), false
	for i, w := range words {
		switch {
		case w == "Fl":
			active = true
		case w == "-" || len(w) == 1 && strings.Contains(",.;:|()", w): // ".Fl -" is "--"
		case len(w) == 2 && 'A' <= w[0] && w[0] <= 'Z':
			active = false
		case active:
			f[w] = i+1 < len(words) && (words[i+1] == "Ar" || words[i+1] == "Cm")
		}
	}
}

// verb is one command of berthctl as its help shows it.
type verb struct {
	flags, global flags
	aliases, subs []string
	help          string
}

var (
	flagLine = regexp.MustCompile(`^ {2,6}(?:-(\w), )?--([\w-]+)( \w+)?(?: {2,}|$)`)
	subLine  = regexp.MustCompile(`^  ([a-z][\w-]*) {2,}\S`)
)

// verbs asks berthctl for its commands, by their paths; "" is berthctl itself.
func verbs(t *testing.T) map[string]verb {
	t.Helper()
	found := map[string]verb{}
	for todo := []string{""}; len(todo) > 0; todo = todo[1:] {
		help, code := run(t, "berthctl", append(strings.Fields(todo[0]), "--help")...)
		if code != 0 {
			t.Fatalf("berthctl %s --help ends with %d", todo[0], code)
		}
		v := parseHelp(help)
		found[todo[0]] = v
		for _, sub := range v.subs {
			todo = append(todo, strings.TrimSpace(todo[0]+" "+sub))
		}
	}
	return found
}

func parseHelp(help string) verb {
	v := verb{flags: flags{}, global: flags{}, help: help}
	_, usage, _ := strings.Cut(help, "Usage:\n")
	heading := "Usage:"
	for text := range strings.Lines(usage) {
		text = strings.TrimSuffix(text, "\n")
		switch {
		case text != "" && text[0] != ' ' && strings.HasSuffix(text, ":"):
			heading = text
		case heading == "Aliases:":
			_, rest, _ := strings.Cut(text, ", ")
			v.aliases = append(v.aliases, strings.Split(rest, ", ")...)
			heading = ""
		case heading == "Flags:" || heading == "Global Flags:":
			into := v.flags
			if heading == "Global Flags:" {
				into = v.global
			}
			if m := flagLine.FindStringSubmatch(text); m != nil {
				into["-"+m[2]] = m[3] != ""
				if m[1] != "" {
					into[m[1]] = m[3] != ""
				}
			}
		case heading != "Usage:" && heading != "Examples:" && heading != "":
			if m := subLine.FindStringSubmatch(text); m != nil {
				v.subs = append(v.subs, m[1])
			}
		}
	}
	return v
}

// Every command of berthctl has a section of its own, with its flags and
// aliases, and there are no others.
func TestBerthctl(t *testing.T) {
	t.Parallel()
	documented, texts, used := map[string]flags{"": {}}, map[string]string{}, flags{}
	for _, l := range page(t, "berthctl.1") {
		used.documented(l)
		name := l.ss
		switch {
		case l.sh == "DESCRIPTION":
			name = ""
		case !strings.HasPrefix(l.sh, "COMMANDS") || name == "":
			continue
		}
		if documented[name] == nil {
			documented[name] = flags{}
		}
		texts[name] += l.text + "\n"
		if l.macro == "It" {
			documented[name].documented(l)
		}
	}
	real, all := verbs(t), flags{}
	var paths []string
	for path, v := range real {
		if strings.HasPrefix(path, "completion ") {
			path = "completion" // one section for all shells
			v.flags = maps.Clone(v.flags)
			maps.Copy(v.flags, real["completion"].flags)
		} else if path == "completion" {
			v.flags = real["completion bash"].flags
		}
		paths = append(paths, path)
		if path != "" {
			delete(v.flags, "h")
			delete(v.flags, "-help")
		}
		maps.Copy(all, v.flags)
		sameFlags(t, "berthctl "+path, documented[path], v.flags)
		for _, alias := range v.aliases {
			if !strings.Contains(texts[path], ".Ic "+alias+" ") && !strings.Contains(texts[path], ".Ic "+alias+"\n") {
				t.Errorf("berthctl %s: its other name %q is not documented", path, alias)
			}
		}
	}
	same(t, "commands", slices.Sorted(maps.Keys(documented)), paths)
	for _, f := range used.names() {
		if _, ok := all[f]; !ok {
			t.Errorf("berthctl.1 speaks of a flag -%s that no command has", f)
		}
	}
}

func sameFlags(t *testing.T, what string, documented, real flags) {
	t.Helper()
	if len(documented) > 0 || len(real) > 0 {
		same(t, what, documented.names(), real.names())
	}
	for name, arg := range real {
		if d, ok := documented[name]; ok && d != arg {
			t.Errorf("%s: flag -%s takes an argument: %v, documented: %v", what, name, arg, d)
		}
	}
}

// The same for berthd, and for the pages of programs without flags.
func TestBerthd(t *testing.T) {
	t.Parallel()
	help, _ := run(t, "berthd", "-help")
	real := flags{}
	for _, m := range regexp.MustCompile(`(?m)^  -([\w-]+)( \w+)?$`).FindAllStringSubmatch(help, -1) {
		real["-"+m[1]] = m[2] != ""
	}
	items, used := flags{}, flags{}
	for _, l := range page(t, "berthd.8") {
		used.documented(l)
		if l.macro == "It" {
			items.documented(l)
		}
	}
	sameFlags(t, "berthd", items, real)
	same(t, "berthd.8", used.names(), real.names())
	out, _ := run(t, "berth-wrap", "--version")
	for _, name := range []string{"berth-wrap.8", "berth-plugin.7", "berth-journal.5", "berthd.toml.5"} {
		used := flags{}
		for _, l := range page(t, name) {
			used.documented(l)
		}
		if _, ok := used["-version"]; ok && name == "berth-wrap.8" && strings.HasPrefix(out, "berth-wrap ") {
			delete(used, "-version")
		}
		if len(used) > 0 {
			t.Errorf("%s has flags that do not exist: %v", name, used.names())
		}
	}
}

// The exit codes are those that the programs have.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	var real []string
	for _, m := range regexp.MustCompile(`(?m)^ +(\d+)  \S`).FindAllStringSubmatch(verbs(t)[""].help, -1) {
		real = append(real, m[1])
	}
	same(t, "berthctl", items(page(t, "berthctl.1"), "Li", "EXIT STATUS"), real)
	same(t, "berth-wrap", items(page(t, "berth-wrap.8"), "Li", "EXIT STATUS"),
		slices.Collect(maps.Values(constants(t, "daemon/internal/wrap", "", "Exit"))))

	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	codes := []string{"2"} // of the Go runtime, when it panics
	for want, args := range map[int][]string{
		0:  {"--version"},
		1:  {"--dev", "--state-dir", filepath.Join(file, "state"), "--run-dir", dir},
		64: {"--no-such-flag"},
		78: {"--config", filepath.Join(dir, "missing")},
	} {
		if out, code := run(t, "berthd", args...); code != want {
			t.Errorf("berthd %v ends with %d, want %d: %s", args, code, want, out)
		}
		codes = append(codes, strconv.Itoa(want))
	}
	same(t, "berthd", items(page(t, "berthd.8"), "Li", "EXIT STATUS"), codes)
}

// facts are what testdata/facts.go prints.
type facts struct {
	Keys    []string
	Default json.RawMessage
	Files   []struct {
		Config json.RawMessage
		Keys   []string
		Error  string
	}
	Reasons, States []string
}

// askFacts compiles and runs testdata/facts.go. What it asks may be imported
// from below daemon/ only, so an overlay (go help build) puts it there.
func askFacts(t *testing.T, files ...string) facts {
	t.Helper()
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(top, "daemon/cmd/facts/main.go"): filepath.Join(top, "man/testdata/facts.go"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(path, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", append([]string{"run", "-overlay", path, "./daemon/cmd/facts"}, files...)...)
	cmd.Dir = top
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("asking for facts: %v\n%s", err, stderr.Bytes())
	}
	var f facts
	if err := json.Unmarshal(out, &f); err != nil {
		t.Fatal(err)
	}
	return f
}
