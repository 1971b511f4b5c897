//go:build failpoints

package failpoint

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

type actionKind int

const (
	actionOff actionKind = iota
	actionError
	actionDelay
	actionKill
	actionPanic
)

// action is one term of a point: what happens, and how often.
type action struct {
	kind  actionKind
	left  int // hits that it still holds for, negative = for ever
	errno unix.Errno
	delay time.Duration
}

// points are what one program's points do.
type points struct {
	seen sync.Map // name → true

	mu    sync.Mutex
	terms map[string][]action
}

// next takes the action for one hit; off when all terms are used up.
func (p *points) next(name string) action {
	p.mu.Lock()
	defer p.mu.Unlock()
	terms := p.terms[name]
	for len(terms) > 0 && terms[0].left == 0 {
		terms = terms[1:]
	}
	if p.terms != nil {
		p.terms[name] = terms
	}
	if len(terms) == 0 {
		return action{}
	}
	if terms[0].left > 0 {
		terms[0].left--
	}
	return terms[0]
}

// parse reads the lines that are the program's.
func parse(program, text string) (*points, error) {
	p := &points{terms: map[string][]action{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		left, right, ok := strings.Cut(line, "=")
		names := strings.Fields(left)
		if !ok || len(names) != 2 {
			return nil, fmt.Errorf("%q is not \"PROGRAM POINT = TERMS\"", line)
		}
		terms, err := parseTerms(right)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		if names[0] == program {
			p.terms[names[1]] = terms
		}
	}
	return p, nil
}

func parseTerms(text string) ([]action, error) {
	var terms []action
	for term := range strings.SplitSeq(text, "->") {
		a, err := parseTerm(strings.TrimSpace(term))
		if err != nil {
			return nil, err
		}
		terms = append(terms, a)
	}
	return terms, nil
}

func parseTerm(term string) (action, error) {
	a := action{left: -1}
	if count, rest, ok := strings.Cut(term, "*"); ok {
		n, err := strconv.Atoi(count)
		if err != nil || n < 0 {
			return a, fmt.Errorf("%q is no number of hits", count)
		}
		a.left, term = n, rest
	}
	name, arg, _ := strings.Cut(strings.TrimSuffix(term, ")"), "(")
	var err error
	switch name {
	case "off":
	case "kill":
		a.kind = actionKill
	case "panic":
		a.kind = actionPanic
	case "delay":
		a.kind = actionDelay
		a.delay, err = time.ParseDuration(arg)
	case "error":
		a.kind, a.errno = actionError, unix.EIO
		if arg != "" {
			a.errno, err = errnoOf(arg)
		}
	default:
		err = fmt.Errorf("%q is no action", name)
	}
	return a, err
}

// errnoOf finds an errno by its name.
func errnoOf(name string) (unix.Errno, error) {
	for e := unix.Errno(1); e < 134; e++ { // the highest that Linux has is EHWPOISON, 133
		if unix.ErrnoName(e) == name {
			return e, nil
		}
	}
	return 0, fmt.Errorf("%q is no errno", name)
}
