package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/berthd/berth/plugins/sandbox"
)

// flawName selects the flaw of the provider that TestFlawed checks.
const flawName = "SANDBOXTEST_FLAW"

// model is a provider in memory that keeps the contract, but for one flaw.
type model struct {
	flaw string
	mu   sync.Mutex
	made map[sandbox.Handle]bool
	n    int
}

func (m *model) Describe(context.Context) (sandbox.Description, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n++
	d := sandbox.Description{Kind: "model", Version: "1", Contract: 1, Capabilities: sandbox.Capabilities{"pause", "terminal"}}
	switch m.flaw {
	case "describes itself anew":
		d.Version = fmt.Sprint(m.n)
	case "unsorted":
		d.Capabilities = sandbox.Capabilities{"terminal", "pause"}
	}
	return d, nil
}

func (m *model) Prepare(ctx context.Context, q sandbox.PrepareRequest) (sandbox.Recipe, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n++
	if err := q.Validate(); err != nil && m.flaw != "takes anything" {
		if m.flaw == "untyped errors" {
			return sandbox.Recipe{}, errors.New("no")
		}
		return sandbox.Recipe{}, err
	}
	m.made[q.Handle] = true
	r := sandbox.Recipe{
		Version: 1, Argv: append([]string{}, q.Command...), Env: append([]string{}, q.Env...), Dir: q.Workspace,
		SetIDs: true, UID: q.UID, GID: q.GID, Groups: q.Groups,
	}
	switch m.flaw {
	case "makes it twice":
		r.Argv = append(r.Argv, fmt.Sprint(m.n))
	case "inherits":
		r.Env = append(r.Env, os.Environ()...)
	case "shares memory":
		r.Argv = q.Command
	case "other user":
		r.UID++
	case "unusable":
		r.Dir = "x"
	}
	return r, nil
}

func (m *model) Observe(_ context.Context, h sandbox.Handle) (sandbox.Observation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := h.Validate(); err != nil {
		return sandbox.Observation{}, err
	}
	m.n++
	o := sandbox.Observation{Presence: sandbox.Absent}
	if m.made[h] || m.flaw == "sees ghosts" {
		o.Presence = sandbox.Present
	}
	if m.flaw == "observing wakes" {
		o.Detail = fmt.Sprint(m.n)
	}
	return o, nil
}

func (m *model) Release(_ context.Context, h sandbox.Handle) (sandbox.ReleaseResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := h.Validate(); err != nil {
		return sandbox.ReleaseResult{}, err
	}
	if m.flaw == "releases once" && !m.made[h] {
		return sandbox.ReleaseResult{}, &sandbox.Error{Reason: sandbox.InfrastructureFailed, Message: "unknown"}
	}
	if m.flaw != "keeps things" {
		delete(m.made, h)
	}
	return sandbox.ReleaseResult{}, nil
}

func runModel(t *testing.T, flaw string) {
	Run(t, func(*testing.T) Subject {
		return Subject{
			Provider: &model{flaw: flaw, made: map[sandbox.Handle]bool{}},
			Request: func(t *testing.T, h sandbox.Handle) sandbox.PrepareRequest {
				return sandbox.PrepareRequest{
					Handle: h, Session: "s", Generation: 1, Workspace: "/w", Home: "/", Command: []string{"a", "b"}, UID: 5,
				}
			},
		}
	})
}

func TestGoodModel(t *testing.T) { runModel(t, "") }

// TestFlawed is what TestSuiteFindsFlaws runs in a process of its own.
func TestFlawed(t *testing.T) {
	flaw := os.Getenv(flawName)
	if flaw == "" {
		t.Skip("no flaw to find; run by TestSuiteFindsFlaws")
	}
	runModel(t, flaw)
}

// Each flaw is found, by the check that is there for it.
func TestSuiteFindsFlaws(t *testing.T) {
	t.Parallel()
	for flaw, check := range map[string]string{
		"describes itself anew": "Description",
		"unsorted":              "Description",
		"makes it twice":        "PrepareIsIdempotent",
		"unusable":              "PrepareIsIdempotent",
		"shares memory":         "RecipeIsItsOwn",
		"other user":            "RecipeIsItsOwn",
		"inherits":              "EnvironmentStaysBehind",
		"sees ghosts":           "ReleaseOfUnknown",
		"releases once":         "ReleaseIsIdempotent",
		"keeps things":          "ReleaseIsIdempotent",
		"observing wakes":       "ObserveHasNoEffect",
		"takes anything":        "BadRequests",
		"untyped errors":        "BadRequests",
	} {
		c := exec.Command(os.Args[0], "-test.run=^TestFlawed$")
		c.Env = append(os.Environ(), flawName+"="+flaw)
		out, err := c.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "--- FAIL: TestFlawed/"+check) {
			t.Errorf("%q is not found by %s: %v\n%s", flaw, check, err, out)
		}
	}
}
