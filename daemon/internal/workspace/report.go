package workspace

import (
	"fmt"
	"strconv"
	"strings"
)

// Verbs of a Request.
const (
	VerbInspect = "inspect"
	VerbSalvage = "salvage"
	// The steps of a preparation.
	VerbClaim    = "workspace" // finds out who has prepared the workspace before
	VerbCopy     = "copy"
	VerbClone    = "clone"
	VerbCheckout = "checkout"
	VerbSetup    = "setup"
)

// Request is what the program reads, as one JSON object, from standard input.
// The end of its input, at any time, ends the program: its daemon is gone.
type Request struct {
	Verb string `json:"verb"`
	// Root is the workspace, an absolute path.
	Root string `json:"root"`
	// Ignored asks an inspection for files that git ignores, too.
	Ignored bool `json:"ignored,omitempty"`
	// Out is an existing empty directory for what is saved.
	Out string `json:"out,omitempty"`
	// KeepFree is how many bytes stay free in the file system of Out.
	KeepFree uint64 `json:"keep_free,omitempty"`
	// Seconds bounds the work.
	Seconds int `json:"seconds"`
	// Step is what a step of a preparation needs, nil for other verbs.
	Step *Step `json:"step,omitempty"`
}

// Kind says what sort of work a Finding is.
type Kind string

// The kinds.
const (
	Uncommitted Kind = "uncommitted" // tracked files that were changed
	Untracked   Kind = "untracked"   // files and directories that git does not know
	Hidden      Kind = "hidden"      // tracked files, changed or not, whose changes git was told not to see
	Unpushed    Kind = "unpushed"    // commits of branches and tags that no remote has
	Detached    Kind = "detached"    // commits that no branch has
	Stash       Kind = "stash"       // entries
	InProgress  Kind = "in_progress" // a merge, rebase, cherry-pick, revert or bisect
	Files       Kind = "files"       // files outside every repository
	Ignored     Kind = "ignored"     // files that git is told not to know; only where they were asked for
	Unknown     Kind = "unknown"     // could not be looked at; Examples say why
)

// Finding is work that would be lost.
type Finding struct {
	Kind Kind `json:"kind"`
	// Path is the repository, relative to the workspace; "." is the workspace itself.
	Path string `json:"path"`
	// Count is how many there are, 0 where there is nothing to count.
	Count int `json:"count,omitempty"`
	// Examples are the first few: names, abbreviated commits.
	Examples []string `json:"examples,omitempty"`
}

// Bounds of a Report.
const (
	maxExamples = 5
	maxFindings = 200
	maxName     = 200 // bytes of one example
)

// Report is the program's answer.
type Report struct {
	// Repositories is how many were found.
	Repositories int       `json:"repositories"`
	Findings     []Finding `json:"findings"`
	// Truncated: there are more findings than are listed.
	Truncated bool `json:"truncated,omitempty"`
	// Saved are the files that were written to Request.Out.
	Saved []string `json:"saved,omitempty"`
	// Error is why the verb could not be done.
	Error string `json:"error,omitempty"`
	// End is how a step of a preparation has ended.
	End *End `json:"end,omitempty"`
}

// Clean says that nothing would be lost, as far as everything could be seen.
func (r *Report) Clean() bool { return len(r.Findings) == 0 && r.Error == "" }

// Summary describes the first few findings in one line.
func (r *Report) Summary() string {
	const shown = 5
	var parts []string
	for _, f := range r.Findings[:min(len(r.Findings), shown)] {
		parts = append(parts, f.String())
	}
	if r.Error != "" {
		parts = append(parts, r.Error)
	}
	if len(r.Findings) > shown {
		parts = append(parts, fmt.Sprintf("and %d more findings", len(r.Findings)-shown))
	}
	return strings.Join(parts, "; ")
}

func (r *Report) add(f Finding) {
	if len(r.Findings) == maxFindings {
		r.Truncated = true
		return
	}
	r.Findings = append(r.Findings, f)
}

func (r *Report) unknown(path string, err error) {
	r.add(Finding{Kind: Unknown, Path: path, Examples: []string{clip(err.Error())}})
}

// clip bounds a text that an agent may have chosen.
func clip(s string) string {
	if len(s) <= maxName {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	return strings.ToValidUTF8(s[:maxName], "\uFFFD") + "…"
}

// sample counts names and keeps the first few.
type sample struct {
	count    int
	examples []string
}

func (s *sample) add(name string) {
	s.count++
	if len(s.examples) < maxExamples {
		s.examples = append(s.examples, clip(name))
	}
}

func (s *sample) report(r *Report, kind Kind, path string) {
	if s.count > 0 {
		r.add(Finding{Kind: kind, Path: path, Count: s.count, Examples: s.examples})
	}
}

var texts = map[Kind][2]string{
	Uncommitted: {"changed file", "changed files"},
	Untracked:   {"untracked file or directory", "untracked files or directories"},
	Hidden:      {"file whose changes git is told not to see", "files whose changes git is told not to see"},
	Unpushed:    {"unpushed commit", "unpushed commits"},
	Detached:    {"commit on no branch", "commits on no branch"},
	Stash:       {"stash entry", "stash entries"},
	InProgress:  {"operation in progress", "operations in progress"},
	Files:       {"file outside git", "files outside git"},
	Ignored:     {"ignored file or directory", "ignored files or directories"},
}

// String describes the finding for people, in one line; names are quoted where
// they would disturb a terminal.
func (f Finding) String() string {
	var b strings.Builder
	text, known := texts[f.Kind]
	switch {
	case f.Kind == Unknown:
		b.WriteString("cannot be looked at")
	case !known:
		b.WriteString(string(f.Kind))
	case f.Count == 1:
		b.WriteString("1 " + text[0])
	default:
		fmt.Fprintf(&b, "%d %s", f.Count, text[1])
	}
	if f.Path != "." {
		b.WriteString(" in " + quote(f.Path))
	}
	for i, e := range f.Examples {
		sep := ", "
		if i == 0 {
			sep = ": "
		}
		b.WriteString(sep + quote(e))
	}
	if len(f.Examples) > 0 && len(f.Examples) < f.Count {
		b.WriteString(", …")
	}
	return b.String()
}

func quote(s string) string {
	if q := strconv.Quote(s); q != `"`+s+`"` || strings.ContainsAny(s, " ,:") && !strings.Contains(s, ": ") {
		return q
	}
	return s
}
