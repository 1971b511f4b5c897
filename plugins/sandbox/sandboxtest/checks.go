package sandboxtest

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/plugins/sandbox"
)

func description(t *testing.T, s *suite) {
	d, err := s.Provider.Describe(s.context())
	if err != nil {
		t.Fatal(err)
	}
	if d.Kind == "" || d.Version == "" || d.Contract != sandbox.Version {
		t.Errorf("description %+v: kind, version, or contract %d missing", d, sandbox.Version)
	}
	if !slices.IsSorted(d.Capabilities) || len(slices.Compact(slices.Clone(d.Capabilities))) != len(d.Capabilities) {
		t.Errorf("capabilities %v are not sorted, or repeat", d.Capabilities)
	}
	again, err := s.Provider.Describe(s.context())
	if err != nil || !reflect.DeepEqual(d, again) {
		t.Errorf("the description changed from %+v to %+v, %v", d, again, err)
	}
}

func prepareIsIdempotent(t *testing.T, s *suite) {
	q := s.Request(t, s.handle(0))
	first := s.prepare(q)
	for range 3 {
		if r := s.prepare(q); !s.same(first, r) {
			t.Errorf("the same request gave\n%+v, then\n%+v", first, r)
		}
	}
}

// recipeIsItsOwn: ids are the request's, nothing is shared with the request's
// memory, nothing of one session shows in another's recipe.
func recipeIsItsOwn(t *testing.T, s *suite) {
	q := s.Request(t, s.handle(0))
	q.Env = append(slices.Clone(q.Env), "CONFORMANCE_SECRET=only-for-the-first")
	r := s.prepare(q)
	if r.SetIDs && (r.UID != q.UID || r.GID != q.GID || !slices.Equal(r.Groups, q.Groups)) {
		t.Errorf("recipe for %d:%d %v becomes %d:%d %v", q.UID, q.GID, q.Groups, r.UID, r.GID, r.Groups)
	}
	kept := slices.Clone(r.Argv)
	for i := range q.Command {
		q.Command[i] = "overwritten"
	}
	if !slices.Equal(r.Argv, kept) {
		t.Error("the recipe's argv is the request's memory")
	}
	other := s.prepare(s.Request(t, s.handle(1)))
	if shows(other, "only-for-the-first") {
		t.Errorf("one session's environment shows in another's recipe: %+v", other)
	}
}

// environmentStaysBehind: case H1, case H2.
func environmentStaysBehind(t *testing.T, s *suite) {
	if r := s.prepare(s.Request(t, s.handle(0))); shows(r, CanaryValue) || shows(r, CanaryName) {
		t.Errorf("the environment of this process shows in %+v", r)
	}
}

func shows(r sandbox.Recipe, text string) bool {
	return slices.ContainsFunc(slices.Concat(r.Argv, r.Env), func(e string) bool { return strings.Contains(e, text) })
}

func releaseOfUnknown(t *testing.T, s *suite) {
	h := s.handle(0)
	for range 2 {
		if _, err := s.Provider.Release(s.context(), h); err != nil {
			t.Errorf("releasing an unknown handle: %v", err)
		}
	}
	if o := s.observe(h); o.Presence == sandbox.Present {
		t.Errorf("an unknown handle is present: %+v", o)
	}
}

func releaseIsIdempotent(t *testing.T, s *suite) {
	q := s.Request(t, s.handle(0))
	first := s.prepare(q)
	for range 2 {
		if _, err := s.Provider.Release(s.context(), q.Handle); err != nil {
			t.Errorf("release: %v", err)
		}
		if o := s.observe(q.Handle); o.Presence != sandbox.Absent {
			t.Errorf("after release: %+v", o)
		}
	}
	if r := s.prepare(q); !s.same(first, r) {
		t.Errorf("after a release the same request gives\n%+v, before\n%+v", r, first)
	}
}

func observeHasNoEffect(t *testing.T, s *suite) {
	q := s.Request(t, s.handle(0))
	before := s.observe(q.Handle)
	if before.Presence == sandbox.Present || !reflect.DeepEqual(before, s.observe(q.Handle)) {
		t.Errorf("an unknown handle: %+v, then %+v", before, s.observe(q.Handle))
	}
	s.prepare(q)
	made := s.observe(q.Handle)
	for range 3 {
		if again := s.observe(q.Handle); !reflect.DeepEqual(again, made) {
			t.Errorf("observing changed %+v to %+v", made, again)
		}
	}
}

func badRequests(t *testing.T, s *suite) {
	for name, change := range map[string]func(*sandbox.PrepareRequest){
		"handle":    func(q *sandbox.PrepareRequest) { q.Handle = "../x" },
		"workspace": func(q *sandbox.PrepareRequest) { q.Workspace = "relative" },
		"climb":     func(q *sandbox.PrepareRequest) { q.Workspace += "/../.." },
		"NUL path":  func(q *sandbox.PrepareRequest) { q.Workspace += "\x00" },
		"home":      func(q *sandbox.PrepareRequest) { q.Home = "relative" },
		"no argv":   func(q *sandbox.PrepareRequest) { q.Command = nil },
		"empty":     func(q *sandbox.PrepareRequest) { q.Command = []string{""} },
		"NUL argv":  func(q *sandbox.PrepareRequest) { q.Command = []string{"a\x00b"} },
		"env":       func(q *sandbox.PrepareRequest) { q.Env = []string{"NOVALUE"} },
		"marker":    func(q *sandbox.PrepareRequest) { q.Env = []string{"BERTH_SESSION=another"} },
	} {
		q := s.Request(t, s.handle(0))
		change(&q)
		_, err := s.Provider.Prepare(s.context(), q)
		s.invalid("prepare with bad "+name, err)
	}
	for _, h := range []sandbox.Handle{"", "..", "a/b", "a\x00", sandbox.Handle(strings.Repeat("a", 256))} {
		_, err := s.Provider.Observe(s.context(), h)
		s.invalid("observe of a bad handle", err)
		_, err = s.Provider.Release(s.context(), h)
		s.invalid("release of a bad handle", err)
	}
}

func (s *suite) invalid(what string, err error) {
	s.t.Helper()
	if e := s.typed(what, err); e != nil && (e.Reason != sandbox.InvalidRequest || e.Retryable) {
		s.t.Errorf("%s: got %#v, want a final invalid_request", what, e)
	}
}

// cancelledCalls may succeed or fail, but end at once and leave the handle usable.
func cancelledCalls(t *testing.T, s *suite) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	q := s.Request(t, s.handle(0))
	for what, call := range s.calls(q) {
		began := time.Now()
		err := call(gone)
		if _, ok := errors.AsType[*sandbox.Error](err); err != nil && !ok && !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled %s: %v is neither a *sandbox.Error nor the cancellation", what, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("cancelled %s took %s", what, took)
		}
	}
	s.prepare(q)
}

// calls are the methods that act on a sandbox.
func (s *suite) calls(q sandbox.PrepareRequest) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"prepare": func(ctx context.Context) error { _, err := s.Provider.Prepare(ctx, q); return err },
		"observe": func(ctx context.Context) error { _, err := s.Provider.Observe(ctx, q.Handle); return err },
		"release": func(ctx context.Context) error { _, err := s.Provider.Release(ctx, q.Handle); return err },
	}
}

// concurrentCalls: many sandboxes at once, and one sandbox many times at once.
func concurrentCalls(t *testing.T, s *suite) {
	shared := s.Request(t, s.handle(0))
	want := s.prepare(shared)
	var all sync.WaitGroup
	for n := range 4 {
		own := s.Request(t, s.handle(1+n))
		all.Go(func() {
			for range 3 {
				for what, call := range s.calls(own) {
					if err := call(s.context()); err != nil {
						t.Errorf("concurrent %s: %v", what, err)
					}
				}
			}
			if _, err := s.Provider.Release(s.context(), own.Handle); err != nil {
				t.Errorf("concurrent release: %v", err)
			}
		})
		all.Go(func() {
			for range 3 {
				if r, err := s.Provider.Prepare(s.context(), shared); err != nil || !s.same(r, want) {
					t.Errorf("concurrent prepare of one handle: %+v, %v", r, err)
				}
			}
		})
	}
	all.Wait()
}

// crashBetweenCalls: what Prepare made is known by its handle afterwards.
func crashBetweenCalls(t *testing.T, s *suite) {
	if s.Crash == nil {
		t.Skip("no process of its own to end")
	}
	q := s.Request(t, s.handle(0))
	want := s.prepare(q)
	before := s.observe(q.Handle)
	s.Crash(t)
	s.recovered(func(ctx context.Context) error {
		r, err := s.Provider.Prepare(ctx, q)
		if err == nil && !s.same(r, want) {
			t.Errorf("after a crash the same request gives\n%+v, before\n%+v", r, want)
		}
		return err
	})
	if after := s.observe(q.Handle); after.Presence != before.Presence {
		t.Errorf("a crash changed %+v to %+v", before, after)
	}
	s.Crash(t)
	s.recovered(func(ctx context.Context) error { _, err := s.Provider.Release(ctx, q.Handle); return err })
	if o := s.observe(q.Handle); o.Presence != sandbox.Absent {
		t.Errorf("released after a crash: %+v", o)
	}
}

// crashInCalls: whatever a crash interrupts fails with a reason, and retrying it succeeds.
func crashInCalls(t *testing.T, s *suite) {
	if s.Crash == nil {
		t.Skip("no process of its own to end")
	}
	q := s.Request(t, s.handle(0))
	done := make(chan struct{})
	var callers sync.WaitGroup
	for what, call := range s.calls(q) {
		callers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := call(s.context()); err != nil {
					s.typed(what+" during a crash", err)
				}
			}
		})
	}
	for range 5 {
		s.Crash(t)
		s.recovered(s.calls(q)["observe"])
	}
	close(done)
	callers.Wait()
	s.prepare(q)
}

// recovered repeats call until it succeeds.
func (s *suite) recovered(call func(context.Context) error) {
	s.t.Helper()
	ctx := s.context()
	for {
		err := call(ctx)
		if err == nil {
			return
		}
		s.typed("after a crash", err)
		select {
		case <-ctx.Done():
			s.t.Fatalf("no recovery from a crash: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
