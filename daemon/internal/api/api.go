// Package api turns requests of the operators' socket into calls of the engine
// and published state into replies. It implements rpc.Service: it validates,
// checks whose session it is, attaches the newest reading of the disk, and
// gives every refusal its code.
//
// It owns no state of sessions and no read blocks on one: reads come from the
// engine's snapshot or from files. A deletion waits, bounded, for a look into the
// workspace.
package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/daemon/internal/admit"
	"github.com/berthd/berth/daemon/internal/appraise"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/daemon/internal/reclaim"
	"github.com/berthd/berth/plugins/host"
	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs"
	"github.com/berthd/berth/statefs/journal"
	"github.com/hashicorp/go-hclog"
)

// Options is what the API needs.
type Options struct {
	Engine *engine.Engine
	Dir    *statefs.Dir
	Space  *statefs.Prober
	Prober *evidence.Prober
	// Appraiser looks into workspaces.
	Appraiser *appraise.Appraiser
	// Cleaner makes room where a start finds none.
	Cleaner *reclaim.Cleaner
	Plugins *host.Host
	Journal *journal.Journal
	// Providers are the configured kinds in the order of preference.
	Providers []string
	UID       uint32
	Tuning    Tuning
	Status    StaticStatus
	// LogDropped counts entries that the daemon's log has lost.
	LogDropped func() uint64
	Logger     hclog.Logger
}

// Defaults complete a session's specification.
type Defaults struct {
	Owner         *Owner // of sessions that root starts without naming one; nil = refuse
	AllowRoot     bool
	ReserveBytes  uint64
	ReserveInodes uint64
}

// Owner is a user that sessions run as.
type Owner struct{ UID, GID uint32 }

// Tuning is what may change while the daemon runs.
type Tuning struct {
	Defaults          Defaults
	Marks, StateMarks admit.Marks
}

// LeavesStatus is what a session that is started now gets as its leaf.
type LeavesStatus struct {
	Cgroup   string // v2, hybrid or none
	Kind     string // scope, subtree or none
	Path     string // below which it lies
	Reason   string // why it is no scope, or what is wrong with scopes; empty = nothing
	Refused  bool   // there are to be scopes only, and there are none
	Evidence string // strong or weak
}

// StaticStatus is what does not change while the daemon runs.
type StaticStatus struct {
	Version, Epoch, Log string
	StartedAt           time.Time
	// Leaves says what leaves are at the moment.
	Leaves func() LeavesStatus
	// Problems and Recovery are what the start has found.
	Problems, Recovery []string
}

// API implements rpc.Service.
type API struct {
	opts Options

	tuning   atomic.Pointer[Tuning]
	degraded atomic.Pointer[error] // why other processes cannot be read

	mu      sync.Mutex
	writers map[string]*writer // of terminals, by session
}

var _ rpc.Service = (*API)(nil)

// New returns an API.
func New(opts Options) *API {
	a := &API{opts: opts, writers: map[string]*writer{}}
	a.Reconfigure(opts.Tuning)
	return a
}

// Reconfigure takes over settings for the requests from now on.
func (a *API) Reconfigure(t Tuning) { a.tuning.Store(&t) }

// SetDegraded notes that other processes cannot be read: status says so, and
// deletes are refused.
func (a *API) SetDegraded(err error) { a.degraded.Store(&err) }

// may reports whether a peer may see a session of that owner.
func may(p rpc.Peer, owner uint32) bool {
	return p.Role == rpc.RoleOperator || p.Role == rpc.RoleReader || p.UID == owner
}

// view returns the published view of a session that the peer may see. Sessions
// under deletion are hidden from all but explain.
func (a *API) view(p rpc.Peer, id string, explain bool) (*engine.View, error) {
	v, ok := a.opts.Engine.View(id)
	if !ok {
		if tomb, ok := a.opts.Engine.Snapshot().Tombstones.Get([]byte(id)); ok && may(p, tomb.UID) {
			e := rpc.Errorf(rpc.CodeSessionDeleted, "session %q was deleted at %s", id, tomb.Wall.Format(time.RFC3339))
			e.Details = map[string]any{"last_generation": tomb.LastGeneration}
			return nil, e
		}
		return nil, rpc.Errorf(rpc.CodeNotFound, "session %q does not exist", id)
	}
	if !may(p, v.Lease.UID) {
		return nil, rpc.Errorf(rpc.CodeNotFound, "session %q does not exist", id)
	}
	if v.Lease.Deletion != nil && !explain {
		e := rpc.Errorf(rpc.CodeDeleting, "session %q is being deleted since %s", id, v.Lease.Deletion.Wall.Format(time.RFC3339))
		e.Details = map[string]any{"step": v.Lease.Deletion.Step}
		return nil, e
	}
	return v, nil
}

// by names a peer in the audit log.
func by(p rpc.Peer) string {
	if p.Name != "" {
		return fmt.Sprintf("%s (uid %d)", p.Name, p.UID)
	}
	return fmt.Sprintf("uid %d", p.UID)
}

// caller is a peer as the engine sees it.
func caller(p rpc.Peer, session, key string) engine.Caller {
	return engine.Caller{Session: session, UID: p.UID, Any: p.Role == rpc.RoleOperator, By: by(p), Key: key}
}

// refuse gives an error of the engine its code; errors of contexts stay.
func refuse(err error) error {
	var r *engine.Refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &r):
		return &rpc.Error{
			Code: rpc.Code(r.Code), Message: r.Message, Retryable: r.Retryable,
			RetryAfter: r.RetryAfter, Details: r.Details,
		}
	case errors.Is(err, engine.ErrStopped):
		return &rpc.Error{Code: rpc.CodeReconciling, Message: "the daemon is ending", Retryable: true}
	}
	return err
}

// provider picks the session's provider: the one that was asked for, else the
// first configured one that can do what the session needs. There is no silent
// fallback to one that cannot.
func (a *API) provider(spec *rpc.SessionSpec) (string, error) {
	need := needs(spec)
	if spec.Provider != "" {
		return spec.Provider, a.can(spec.Provider, need)
	}
	var first error
	for _, kind := range a.opts.Providers {
		err := a.can(kind, need)
		if err == nil {
			return kind, nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = rpc.Errorf(rpc.CodeProvider, "no provider is configured")
	}
	return "", first
}

// needs is what a specification asks of its provider.
func needs(spec *rpc.SessionSpec) []sandbox.Capability {
	var need []sandbox.Capability
	if spec.Terminal {
		need = append(need, sandbox.Terminal)
	}
	if spec.Limits.Processes > 0 {
		need = append(need, sandbox.LimitsPids)
	}
	if spec.Limits.MemoryBytes > 0 {
		need = append(need, sandbox.LimitsMemory)
	}
	if spec.Limits.CPUPercent > 0 {
		need = append(need, sandbox.LimitsCPU)
	}
	return need
}

// can reports why a provider cannot serve. One that is only down now is let
// through: the launch waits for it and says so.
func (a *API) can(kind string, need []sandbox.Capability) error {
	for _, s := range a.opts.Plugins.Status() {
		if s.Kind != kind {
			continue
		}
		if s.Version == "" {
			return nil // it has not described itself yet
		}
		missing := s.Capabilities.Missing(need)
		if len(missing) == 0 {
			return nil
		}
		e := rpc.Errorf(rpc.CodeCapability, "provider %q cannot do what the session needs: %v", kind, missing)
		e.Details = map[string]any{"provider": kind, "missing": missing}
		return e
	}
	e := rpc.Errorf(rpc.CodeProvider, "provider %q is not configured", kind)
	e.Details = map[string]any{"provider": kind, "reason": string(sandbox.NotConfigured)}
	return e
}

// bound is the context of a look that must not hang.
func bound(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}
