// Package host finds, verifies, starts and supervises the provider plugins of
// one daemon.
//
// It owns plugin processes: their programs' checks, environment, sockets, log,
// lock, restarts and end, and the bounds and concurrency limits of the calls to
// them. It refuses to know what the calls are for, or anything of sessions and
// leases; it starts nothing but plugins. The engine calls it.
//
// A plugin is worth nothing by itself: it holds no state and is the parent of
// nothing that has to live, so whatever is wrong with one, the answer is to end
// it and start it again, and no running session notices. Per provider there is one
// goroutine (supervisor.run) that does so, owned by Start and awaited by Close.
//
// A plugin notices the end of its daemon, even by SIGKILL, because its standard
// input is a pipe that only the daemon could write to. Should it not heed that,
// the next daemon finds it by the lock it holds and ends it before starting
// another: there are never two of one host and provider, as long as the
// directory of the sockets is the same one.
package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/plugins/sandbox"
)

// Host is the set of one daemon's providers. Its methods may be called
// concurrently.
type Host struct {
	options     Options
	supervisors []*supervisor

	mu      sync.Mutex
	started bool
	cancel  context.CancelFunc
}

// New checks o. It starts nothing and touches nothing outside the process, so
// that a wrong configuration shows before the daemon changes anything.
func New(o Options) (*Host, error) {
	o, err := o.validate()
	if err != nil {
		return nil, err
	}
	h := &Host{options: o}
	for _, c := range o.Providers {
		h.supervisors = append(h.supervisors, newSupervisor(&h.options, c))
	}
	return h, nil
}

// Start starts every plugin in the background and returns at once. The plugins
// run until Close, or until ctx ends. A second call does nothing.
//
// It marks every descriptor of this process above 2 close-on-exec first: one
// that the daemon was started with (by a shell, or through socket activation)
// must reach no plugin. What Go itself opens has the mark anyway.
func (h *Host) Start(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.started {
		return
	}
	h.started = true
	// Fails only on kernels before 5.11, whose descriptors the caller has to mark.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	ctx, h.cancel = context.WithCancel(ctx)
	for _, s := range h.supervisors {
		s.starting(0)
		go s.run(ctx)
	}
}

// Provider returns the provider of that kind. It waits, within ctx, until Start
// was called and the first start of its plugin has succeeded or failed. What it returns stays
// good over restarts of the plugin; every call through it is bounded by Bounds
// and refused while the plugin is not running.
//
// Its error is a *sandbox.Error: not_configured for an unknown kind or a
// program that cannot be used, configuration_drift for one that is not the
// configured one, runtime_not_running with the cause otherwise.
func (h *Host) Provider(ctx context.Context, kind string) (sandbox.Provider, error) {
	s := h.find(kind)
	if s == nil {
		return nil, &sandbox.Error{
			Reason: sandbox.NotConfigured, Message: fmt.Sprintf("no provider %q is configured", kind),
		}
	}
	select {
	case <-s.settled:
	case <-ctx.Done():
	}
	if _, err := s.running(); err != nil {
		return nil, err
	}
	return &proxy{supervisor: s}, nil
}

func (h *Host) find(kind string) *supervisor {
	for _, s := range h.supervisors {
		if s.config.Kind == kind {
			return s
		}
	}
	return nil
}

// Status returns the state of every provider, in the order of the
// configuration. It waits for nothing.
func (h *Host) Status() []Status {
	list := make([]Status, 0, len(h.supervisors))
	for _, s := range h.supervisors {
		list = append(list, s.status())
	}
	return list
}

// Close ends every plugin and waits for their ends, all at once. Within the bounds
// of Grace and 5 × Kill it succeeds also with plugins that are stopped, that ignore
// it, or whose descendants hold their pipes. When ctx ends first, what still
// runs is killed without waiting. The error names what could not be ended.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	started, cancel := h.started, h.cancel
	h.started = true // no Start after Close
	h.mu.Unlock()
	if !started || cancel == nil {
		return nil
	}
	cancel()
	var errs []error
	for _, s := range h.supervisors {
		select {
		case <-s.done:
			errs = append(errs, s.leftover)
		case <-ctx.Done():
			errs = append(errs, s.abandon(ctx.Err()))
		}
	}
	return errors.Join(errs...)
}
