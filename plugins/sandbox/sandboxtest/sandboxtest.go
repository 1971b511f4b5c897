// Package sandboxtest is the conformance suite of the sandbox contract: what
// any provider has to do, tried on the real thing.
//
// It owns the checks and a way to run a provider's program behind the same host
// that the daemon uses. It knows no provider. A provider's tests call Run, once
// for the provider in the test's own process and once for its program.
package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/berthd/berth/plugins/sandbox"
)

// Subject is a provider under test.
type Subject struct {
	// Provider is what the suite calls. After Crash it must serve again by itself.
	Provider sandbox.Provider
	// Request returns a request that the provider can serve on this host.
	// Requests for different handles may be served at the same time.
	Request func(t *testing.T, h sandbox.Handle) sandbox.PrepareRequest
	// Equivalent compares recipes for the same request; nil means reflect.DeepEqual.
	Equivalent func(a, b sandbox.Recipe) bool
	// Crash ends the provider's process at once; nil when it has none of its own.
	Crash func(t *testing.T)
}

// Canary is an environment entry that the process which opens a Subject has
// during Run. No recipe may show its value.
const (
	CanaryName  = "BERTH_SANDBOXTEST_CANARY"
	CanaryValue = "leaked-from-the-environment"
)

// patience bounds every single call of the suite, and each recovery from a crash.
const patience = 60 * time.Second

// Run checks a provider. open is called once per check, and registers what
// has to be closed with t.Cleanup. The calling test must not be parallel.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	t.Setenv(CanaryName, CanaryValue)
	for _, c := range []struct {
		name  string
		check func(*testing.T, *suite)
	}{
		{"Description", description},
		{"PrepareIsIdempotent", prepareIsIdempotent},
		{"RecipeIsItsOwn", recipeIsItsOwn},
		{"EnvironmentStaysBehind", environmentStaysBehind},
		{"ReleaseOfUnknown", releaseOfUnknown},
		{"ReleaseIsIdempotent", releaseIsIdempotent},
		{"ObserveHasNoEffect", observeHasNoEffect},
		{"BadRequests", badRequests},
		{"CancelledCalls", cancelledCalls},
		{"ConcurrentCalls", concurrentCalls},
		{"CrashBetweenCalls", crashBetweenCalls},
		{"CrashInCalls", crashInCalls},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, &suite{t: t, Subject: open(t)}) })
	}
}

// suite is one check's view of the subject.
type suite struct {
	Subject
	t *testing.T
}

// handle names a sandbox that no other check and no other run uses.
func (s *suite) handle(n int) sandbox.Handle {
	return sandbox.Handle(fmt.Sprintf("conformance-%d-%d-%d", os.Getpid(), time.Now().UnixNano(), n))
}

func (s *suite) context() context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	s.t.Cleanup(cancel)
	return ctx
}

// prepare makes a sandbox that is released when the check ends.
func (s *suite) prepare(q sandbox.PrepareRequest) sandbox.Recipe {
	s.t.Helper()
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := s.Provider.Release(ctx, q.Handle); err != nil {
			s.t.Errorf("releasing what was prepared: %v", err)
		}
	})
	r, err := s.Provider.Prepare(s.context(), q)
	if err != nil {
		s.t.Fatalf("prepare: %v", err)
	}
	if err := r.Validate(); err != nil {
		s.t.Fatalf("the recipe is not usable: %v", err)
	}
	return r
}

func (s *suite) observe(h sandbox.Handle) sandbox.Observation {
	s.t.Helper()
	o, err := s.Provider.Observe(s.context(), h)
	if err != nil {
		s.t.Fatalf("observe: %v", err)
	}
	if err := o.Validate(); err != nil {
		s.t.Fatalf("the observation is none: %v", err)
	}
	return o
}

func (s *suite) same(a, b sandbox.Recipe) bool {
	if s.Equivalent != nil {
		return s.Equivalent(a, b)
	}
	return reflect.DeepEqual(a, b)
}

// typed returns err's *sandbox.Error, and fails the check when it has none or
// one outside the closed set.
func (s *suite) typed(what string, err error) *sandbox.Error {
	s.t.Helper()
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok {
		s.t.Errorf("%s: %v (%T) holds no *sandbox.Error", what, err, err)
		return nil
	}
	if !e.Reason.Known() || e.Message == "" {
		s.t.Errorf("%s: %#v has an unknown reason or no message", what, e)
	}
	return e
}
