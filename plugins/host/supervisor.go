package host

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	hclog "github.com/hashicorp/go-hclog"

	"github.com/berthd/berth/plugins/sandbox"
)

// supervisor keeps one plugin running.
type supervisor struct {
	options *Options
	config  Config
	log     hclog.Logger
	slots   [classes]chan struct{}
	settled chan struct{} // closed when the first start has succeeded or failed
	done    chan struct{} // closed when run has returned

	// leftover is what could not be ended; valid once done is closed.
	leftover error

	mu      sync.Mutex
	now     Status
	current *instance      // nil unless Ready
	last    *instance      // the last that was Ready, for abandon
	refusal *sandbox.Error // why there is none; nil when Ready
}

// errSilent is why a plugin that does not answer is ended.
var errSilent = errors.New("the plugin does not answer, asked twice")

func newSupervisor(o *Options, c Config) *supervisor {
	s := &supervisor{
		options: o, config: c, log: o.Logger,
		settled: make(chan struct{}), done: make(chan struct{}),
		now: Status{Kind: c.Kind, Path: c.Path, State: Stopped, Since: time.Now()},
		refusal: &sandbox.Error{
			Reason: sandbox.RuntimeNotRunning, Message: "it has not been started", Retryable: true,
		},
	}
	for class := range s.slots {
		s.slots[class] = make(chan struct{}, limit(class, o.Bounds))
	}
	return s
}

// run starts the plugin, watches it and starts it again, until ctx ends.
func (s *supervisor) run(ctx context.Context) {
	defer close(s.done)
	defer s.stopped()
	failures := 0
	for starts := 0; ctx.Err() == nil; starts++ {
		s.starting(starts)
		began := time.Now()
		i, err := launch(ctx, s.options, s.config)
		if err == nil {
			s.ready(i)
			err = s.watch(ctx, i)
			if time.Since(began) >= s.options.Bounds.Stable {
				failures = 0
			}
			s.retire()
		}
		if i != nil {
			s.leftover = s.end(i, err)
		}
		if ctx.Err() != nil {
			return
		}
		failures++
		if !s.wait(ctx, failures, err) {
			return
		}
	}
}

// end ends an instance. One that failed gets no grace.
func (s *supervisor) end(i *instance, cause error) error {
	grace := s.options.Bounds.Grace
	if cause != nil {
		grace = 0
	}
	if err := i.end(grace); err != nil {
		err = fmt.Errorf("ending provider %q: %w", s.config.Kind, err)
		s.log.Error("plugin leaves something behind", "provider", s.config.Kind, "error", err)
		return err
	}
	return nil
}

// watch returns when the plugin has ended, has become silent, or is no longer
// wanted (nil).
func (s *supervisor) watch(ctx context.Context, i *instance) error {
	t := time.NewTicker(s.options.Bounds.Probe)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-i.process.exited:
			return i.explain(i.process.exit)
		case <-t.C:
		case <-i.suspect:
		}
		if err := i.log.trim(s.options.Bounds.LogBytes); err != nil {
			s.log.Warn("plugin log cannot be shortened", "provider", s.config.Kind, "error", err)
		}
		if i.silent(ctx) {
			if i.silent(ctx) { // asked again: one miss may be a busy machine
				return i.explain(errSilent)
			}
		}
	}
}

// wait lets the delay pass that failures in a row deserve. It reports false
// when ctx ended.
func (s *supervisor) wait(ctx context.Context, failures int, cause error) bool {
	delay := s.options.Bounds.delay(failures, rand.Float64())
	state := Backoff
	if s.options.Bounds.open(failures) {
		state = CircuitOpen
	}
	s.failed(state, cause, time.Now().Add(delay))
	s.log.Warn("plugin failed", "event", "provider_failed", "provider", s.config.Kind, "state", string(state),
		"failures", failures, "next_try_in", delay.Round(time.Millisecond), "error", cause)
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *supervisor) starting(starts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.State, s.now.Since, s.now.NextTry, s.now.Restarts = Starting, time.Now(), time.Time{}, starts
	if s.now.LastError == "" {
		s.refusal = &sandbox.Error{Reason: sandbox.RuntimeNotRunning, Message: "it is being started", Retryable: true}
	}
}

func (s *supervisor) ready(i *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.last, s.refusal = i, i, nil
	s.now.State, s.now.Since, s.now.PID = Ready, time.Now(), i.process.proc.Pid
	s.now.Version, s.now.Capabilities = i.description.Version, i.description.Capabilities
	s.settleLocked()
	s.log.Info("plugin is ready", "provider", s.config.Kind, "pid", s.now.PID, "version", s.now.Version)
}

// retire lets no new call reach the current instance, which is then ended.
func (s *supervisor) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.now.PID, s.now.State, s.now.Since = nil, 0, Backoff, time.Now()
	s.refusal = &sandbox.Error{Reason: sandbox.RuntimeNotRunning, Message: "it is being ended", Retryable: true}
}

func (s *supervisor) failed(state State, cause error, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.State, s.now.Since, s.now.NextTry, s.now.LastError = state, time.Now(), next, clip(cause.Error())
	s.refusal = &sandbox.Error{Reason: sandbox.RuntimeNotRunning, Message: s.now.LastError, Retryable: true}
	if e, ok := errors.AsType[*sandbox.Error](cause); ok {
		s.refusal.Reason, s.refusal.Message, s.refusal.Retryable = e.Reason, e.Message, e.Retryable
	}
	s.settleLocked()
}

func (s *supervisor) stopped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.State, s.now.Since, s.now.NextTry = Stopped, time.Now(), time.Time{}
	s.refusal = &sandbox.Error{Reason: sandbox.RuntimeNotRunning, Message: "it has been stopped", Retryable: true}
	s.settleLocked()
}

func (s *supervisor) settleLocked() {
	select {
	case <-s.settled:
	default:
		close(s.settled)
	}
}

// running returns the instance that takes calls, or why there is none.
func (s *supervisor) running() (*instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		return s.current, nil
	}
	e := *s.refusal
	e.Message = fmt.Sprintf("provider %q is not running (%s): %s", s.config.Kind, s.now.State, e.Message)
	if left := time.Until(s.now.NextTry); !s.now.NextTry.IsZero() && left > 0 {
		e.Message += fmt.Sprintf("; next try in %s", left.Round(time.Second))
	}
	e.Message = clip(e.Message)
	return nil, &e
}

func (s *supervisor) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now
	now.Capabilities = slices.Clone(now.Capabilities)
	return now
}

// abandon kills what still runs when there is no time to wait for it.
func (s *supervisor) abandon(cause error) error {
	s.mu.Lock()
	i := s.last
	s.mu.Unlock()
	err := fmt.Errorf("ending provider %q: %w", s.config.Kind, cause)
	if i == nil || i.process.gone(0) {
		return err
	}
	return errors.Join(err, i.process.kill())
}
