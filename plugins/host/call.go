package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthd/berth/plugins/sandbox"
)

// class groups calls that share a bound and a number of slots, so that stuck
// Prepares keep nobody from observing and releasing.
type class int

const (
	prepare class = iota
	observe
	release
	classes
)

func (c class) String() string { return [...]string{"prepare", "observe", "release"}[c] }

func (c class) bound(b Bounds) time.Duration {
	return [...]time.Duration{b.Prepare, b.Observe, b.Release}[c]
}

func limit(c int, b Bounds) int {
	if class(c) == prepare {
		return b.Prepares
	}
	return b.Others
}

// proxy is the sandbox.Provider that the engine holds.
type proxy struct {
	supervisor *supervisor
}

// Describe returns what the running plugin said when it started. It makes no
// call: the answer cannot have changed.
func (p *proxy) Describe(context.Context) (sandbox.Description, error) {
	i, err := p.supervisor.running()
	if err != nil {
		return sandbox.Description{}, err
	}
	d := i.description
	d.Capabilities = slices.Clone(d.Capabilities)
	return d, nil
}

// Prepare calls the plugin. A call that may have reached it but brought no
// answer fails as creation_unsettled: whether anything was made is unknown.
func (p *proxy) Prepare(ctx context.Context, q sandbox.PrepareRequest) (sandbox.Recipe, error) {
	if err := q.Validate(); err != nil {
		return sandbox.Recipe{}, err
	}
	return call(ctx, p.supervisor, prepare, func(ctx context.Context, to sandbox.Provider) (sandbox.Recipe, error) {
		return to.Prepare(ctx, q)
	})
}

// Observe calls the plugin.
func (p *proxy) Observe(ctx context.Context, h sandbox.Handle) (sandbox.Observation, error) {
	if err := h.Validate(); err != nil {
		return sandbox.Observation{}, err
	}
	return call(ctx, p.supervisor, observe, func(ctx context.Context, to sandbox.Provider) (sandbox.Observation, error) {
		o, err := to.Observe(ctx, h)
		o.Detail = clip(o.Detail)
		return o, err
	})
}

// Release calls the plugin.
func (p *proxy) Release(ctx context.Context, h sandbox.Handle) (sandbox.ReleaseResult, error) {
	if err := h.Validate(); err != nil {
		return sandbox.ReleaseResult{}, err
	}
	return call(ctx, p.supervisor, release, func(ctx context.Context, to sandbox.Provider) (sandbox.ReleaseResult, error) {
		r, err := to.Release(ctx, h)
		r.Detail = clip(r.Detail)
		return r, err
	})
}

// call makes one call within its class's bound and slots, and checks the
// answer. Waiting for a slot counts against the bound.
func call[A any](ctx context.Context, s *supervisor, c class, do func(context.Context, sandbox.Provider) (A, error)) (A, error) {
	var none A
	i, err := s.running()
	if err != nil {
		return none, err
	}
	bound := c.bound(s.options.Bounds)
	inner, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	defer context.AfterFunc(i.alive, cancel)()
	select {
	case s.slots[c] <- struct{}{}:
		defer func() { <-s.slots[c] }()
	case <-inner.Done():
		return none, s.crowded(c, i, inner.Err())
	}
	a, err := do(inner, i.provider)
	if err == nil {
		err = answered(a)
	}
	if err == nil {
		return a, nil
	}
	switch {
	case inner.Err() == context.DeadlineExceeded:
		i.doubt()
	case inner.Err() != nil && ctx.Err() == nil: // cancelled, but not by the caller
		err = status.Error(codes.Unavailable, "the plugin was ended")
	}
	return none, s.translate(c, err)
}

// crowded is the error of a call that got no slot. The plugin never saw it.
func (s *supervisor) crowded(c class, i *instance, cause error) error {
	if i.alive.Err() != nil {
		return &sandbox.Error{Reason: sandbox.RuntimeNotRunning, Retryable: true, Message: fmt.Sprintf(
			"provider %q ended before the call of %s reached it", s.config.Kind, c)}
	}
	return &failure{cause: cause, refusal: &sandbox.Error{
		Reason: sandbox.InfrastructureFailed, Retryable: true,
		Message: fmt.Sprintf("provider %q is busy with %d other calls of %s", s.config.Kind, cap(s.slots[c]), c),
	}}
}

// errAnswer is an answer that says nothing, as a retry would not either.
var errAnswer = errors.New("the answer is not usable")

// answered checks what the plugin answered.
func answered(a any) error {
	v, ok := a.(interface{ Validate() error })
	if !ok {
		return nil
	}
	if err := v.Validate(); err != nil {
		return fmt.Errorf("%w: %v", errAnswer, err)
	}
	return nil
}

// doubt makes the supervisor ask whether the plugin still answers.
func (i *instance) doubt() {
	select {
	case i.suspect <- struct{}{}:
	default:
	}
}

// failure is a call's error: a refusal for whoever acts on it, and its cause,
// so that errors.Is still finds a cancelled context.
type failure struct {
	refusal *sandbox.Error
	cause   error
}

// Error returns the refusal's text.
func (f *failure) Error() string { return f.refusal.Error() }

// Unwrap returns the refusal and the cause.
func (f *failure) Unwrap() []error { return []error{f.refusal, f.cause} }

// translate turns whatever ended a call into an error with a *sandbox.Error in
// it. The provider's own travels whole, but for a reason from a newer contract.
func (s *supervisor) translate(c class, err error) error {
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		told := &sandbox.Error{Reason: e.Reason, Message: clip(e.Message), Retryable: e.Retryable}
		if !e.Reason.Known() {
			told.Reason, told.Message = sandbox.InfrastructureFailed, clip(fmt.Sprintf("%s (%q)", e.Message, string(e.Reason)))
		}
		return told
	}
	cause, text := err, err.Error()
	reason := sandbox.InfrastructureFailed
	if st, ok := status.FromError(err); ok {
		text = st.Message()
		switch st.Code() {
		case codes.Canceled:
			cause = context.Canceled
		case codes.DeadlineExceeded:
			cause = context.DeadlineExceeded
		case codes.Unavailable:
			reason = sandbox.RuntimeNotRunning
		case codes.Unimplemented:
			return &sandbox.Error{Reason: sandbox.CapabilityUnavailable, Message: clip(fmt.Sprintf(
				"provider %q cannot %s: %s", s.config.Kind, c, text))}
		}
	}
	if c == prepare {
		reason = sandbox.CreationUnsettled
	}
	return &failure{cause: cause, refusal: &sandbox.Error{
		Reason: reason, Retryable: !errors.Is(err, errAnswer),
		Message: clip(fmt.Sprintf("provider %q did not answer %s: %s", s.config.Kind, c, text)),
	}}
}
