package lease

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files from what the code does now")

// golden compares text with a file under testdata, or rewrites the file.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) == text {
		return
	}
	a, b := strings.Split(string(want), "\n"), strings.Split(text, "\n")
	for i := range b {
		if i >= len(a) || a[i] != b[i] {
			t.Fatalf("%s line %d is not what the code does (run with -update and review the difference)\ncode says %s", path, i+1, b[i])
		}
	}
	t.Fatalf("%s has %d lines, the code has %d", path, len(a), len(b))
}

// TestGoldenTable prints every cell: its name, its guards, and what becomes of
// one event that fits and of one that is about somebody else.
func TestGoldenTable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, k := range Kinds() {
		for _, ek := range EventKinds() {
			c := table[k][ek]
			names := make([]string, len(c.guards))
			for i, g := range c.guards {
				names[i] = g.name
			}
			fmt.Fprintf(&b, "%s × %s: %s [%s]\n", k, ek, c.name, strings.Join(names, " "))
			s := example(k, ek)
			fits := told(s, fitting(ek, s))
			fmt.Fprintf(&b, "    fits:    %s\n", fits)
			fmt.Fprintf(&b, "    foreign: %s\n", told(s, foreign(ek, s)))
			// The name says what the cell does with an event that fits.
			says, _, short := strings.Cut(c.name, ":")
			if !short || says == "vacate" || says == "quarantine" {
				says = "changed"
			}
			if says == "indifferent" || c.name == "observe once" {
				says = "unchanged"
			}
			if !strings.HasPrefix(fits, says) {
				t.Errorf("%s × %s is named %q, but: %s", k, ek, c.name, fits)
			}
		}
	}
	golden(t, "table.golden", b.String())
}

// TestGoldenReasons prints who emits each reason, and with which target.
func TestGoldenReasons(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, r := range Reasons() {
		e := r.Emission()
		scope := map[Scope]string{ScopeInstance: "instance", ScopeSession: "session", ScopeEither: "either"}[e.Scope]
		only := "any owned"
		if e.Only != 0 {
			only = e.Only.String()
		}
		if e.Scope != ScopeInstance {
			only += ", vacant"
		}
		fmt.Fprintf(&b, "%-20s %-8s from %-18s %s\n", r, scope, only, e.Emitter)
		if e.Emitter == "" || scope == "" {
			t.Errorf("%s has no emitter or no scope", r)
		}
	}
	golden(t, "reasons.golden", b.String())
}

// example is the state of kind k that the golden file lets event ek act on.
func example(k Kind, ek EventKind) State {
	s := State{Kind: k, NextGeneration: 4}
	switch {
	case k.Owned():
		s.Instance = instA
		if k != Active {
			s.Deadline = t1
		}
		s.Reuse = k == Starting && ek == Idle
		s.Frozen = ek == Thawed
		if s.Frozen {
			s.FrozenAt = t0
		}
		if ek == LinkRegained {
			s.LinkLostAt = t0
		}
	case k.Cleaning():
		s.Instance = instA
		s.Stop = Stop{Target: Target{instA}, Reason: Unhealthy, RequestedAt: t0, NextAttemptAt: t0, Attempts: 1, AttemptID: "last"}
		s.Stop = exampleStop(k, ek, s.Stop)
	}
	return s
}

func exampleStop(k Kind, ek EventKind, p Stop) Stop {
	if ek == Exhaust {
		p.Attempts = 5
	}
	switch k {
	case Stopping:
		p.AttemptStartedAt, p.AttemptDeadline = t0, t1
		return p
	case Quarantined:
		p.ExhaustedAt, p.NextRecheckAt = t0, t1
	}
	switch ek {
	case AttemptAbsent, AttemptNotConfirmed, WorkerStuck:
		p.JoinBy = t1
	}
	return p
}

// fitting is an event that s can act on, if it can act on its kind at all.
func fitting(ek EventKind, s State) Event {
	e := Event{
		Kind: ek, Now: t1 + time.Second, Instance: s.Instance, Target: Target{s.Instance}, Reason: Operator,
		AttemptID: s.Stop.AttemptID, Error: "failed", By: "uid 0", Why: "looked", Floor: 100,
		Observed: []Instance{s.Instance}, AbsenceVerified: true,
	}
	switch ek {
	case Allocate:
		e.Instance = instB
	case BeginAttempt:
		e.AttemptID = "next"
	}
	return e
}

// foreign is the same about another instance and attempt, with a floor that
// raises nothing.
func foreign(ek EventKind, s State) Event {
	e := fitting(ek, s)
	e.Instance, e.Target, e.AttemptID, e.Floor = olderA, Target{olderA}, "other", 1
	return e
}

// told says in one line what becomes of e in s.
func told(s State, e Event) string {
	n, effects, outcome, err := DefaultRules().Reduce(s, e)
	out := outcome.String()
	if err != nil {
		out += ": " + err.Error()
	}
	if n != s {
		out += " → " + describe(n)
	}
	for _, f := range effects {
		out += " + " + describeEffect(f)
	}
	return out
}

func describe(s State) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s next g%d", s.Kind, s.NextGeneration)
	field := func(name string, set bool, v any) {
		if set {
			fmt.Fprintf(&b, " %s=%v", name, v)
		}
	}
	field("instance", !s.Instance.IsZero(), short(s.Instance))
	field("reuse", s.Reuse, s.Reuse)
	field("deadline", s.Deadline != 0, s.Deadline)
	field("frozen", s.Frozen, s.FrozenAt)
	field("link_lost", s.LinkLostAt != 0, s.LinkLostAt)
	p := s.Stop
	if p == (Stop{}) {
		return b.String()
	}
	fmt.Fprintf(&b, " stop=%s(%s) attempts=%d", p.Reason, short(p.Target.Instance), p.Attempts)
	field("next_attempt", s.Kind == StopNeeded, p.NextAttemptAt)
	field("attempt", p.AttemptID != "", p.AttemptID)
	field("until", p.AttemptDeadline != 0, p.AttemptDeadline)
	field("join_by", p.JoinBy != 0, p.JoinBy)
	field("stuck", p.Stuck, p.Stuck)
	field("exhausted", p.ExhaustedAt != 0, p.ExhaustedAt)
	field("recheck", p.NextRecheckAt != 0, p.NextRecheckAt)
	field("error", p.LastError != "", fmt.Sprintf("%q", p.LastError))
	return b.String()
}

func describeEffect(f Effect) string {
	out := f.Kind.String() + "(" + short(f.Instance)
	if f.AttemptID != "" {
		out += " attempt " + f.AttemptID
	}
	if f.Deadline != 0 {
		out += " until " + f.Deadline.String()
	}
	if f.Cause != 0 {
		out += " " + f.Cause.String()
	}
	if f.Reason != 0 {
		out += " " + f.Reason.String()
	}
	return out + ")"
}

func short(i Instance) string {
	if i.IsZero() {
		return "session"
	}
	return fmt.Sprintf("%.1s/g%d", i.ID, i.Generation)
}
