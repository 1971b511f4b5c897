// Package process is the provider without isolation: the agent runs as an
// ordinary process of its user in its session's leaf.
//
// It owns the translation of a request into a recipe, and nothing else: it
// makes nothing, keeps nothing, and so has nothing to observe or release. What
// fences such a session (leaf, uid, limits of the leaf's work cgroup) is the
// daemon's and the wrapper's business. Its caller is
// plugins/cmd/berth-sandbox-process.
package process

import (
	"context"
	"fmt"
	"slices"

	"github.com/berthd/berth/plugins/sandbox"
)

// Kind is the provider's name in the configuration.
const Kind = "process"

// Options are what a Provider has to know about its surroundings.
type Options struct {
	// Version is the provider's own version, for people.
	Version string
	// DaemonUID is the effective uid that wrappers start with.
	DaemonUID uint32
	// Controllers are the resource controllers that the daemon can set on a
	// leaf ("cpu", "memory", "pids"; others are ignored). Limits without their
	// controller are not claimed as capabilities.
	Controllers []string
	// Passwd is the file that names users; empty means /etc/passwd.
	Passwd string
}

// Provider implements sandbox.Provider. It has no state.
type Provider struct {
	options      Options
	capabilities sandbox.Capabilities
}

// New returns a provider.
func New(o Options) *Provider {
	if o.Passwd == "" {
		o.Passwd = "/etc/passwd"
	}
	c := sandbox.Capabilities{sandbox.Terminal, sandbox.Rootless, sandbox.WakeFreeObserve}
	for controller, capability := range map[string]sandbox.Capability{
		"cpu": sandbox.LimitsCPU, "memory": sandbox.LimitsMemory, "pids": sandbox.LimitsPids,
	} {
		if slices.Contains(o.Controllers, controller) {
			c = append(c, capability)
		}
	}
	slices.Sort(c)
	return &Provider{options: o, capabilities: c}
}

// Describe returns a constant.
func (p *Provider) Describe(context.Context) (sandbox.Description, error) {
	return sandbox.Description{
		Kind: Kind, Version: p.options.Version, Contract: sandbox.Version,
		Capabilities: slices.Clone(p.capabilities),
	}, nil
}

// Prepare translates the request. The same request gives the same recipe as
// long as the user's entry in the passwd file stays what it is. Errors: *sandbox.Error
// with InvalidRequest; with InfrastructureFailed when the passwd file
// cannot be read.
func (p *Provider) Prepare(_ context.Context, req sandbox.PrepareRequest) (sandbox.Recipe, error) {
	if err := req.Validate(); err != nil {
		return sandbox.Recipe{}, err
	}
	// A daemon of root always asks for the ids, also for uid 0, so that gid and
	// groups are the request's and not the daemon's. Any other can only stay what
	// it is; setgroups(2) would fail even for the same groups.
	setIDs := p.options.DaemonUID == 0
	if !setIDs && p.options.DaemonUID != req.UID {
		return sandbox.Recipe{}, &sandbox.Error{Reason: sandbox.InvalidRequest, Message: fmt.Sprintf(
			"a daemon of uid %d cannot run an agent as uid %d", p.options.DaemonUID, req.UID)}
	}
	who, err := lookup(p.options.Passwd, req.UID)
	if err != nil {
		return sandbox.Recipe{}, &sandbox.Error{
			Reason: sandbox.InfrastructureFailed, Message: err.Error(), Retryable: true,
		}
	}
	return sandbox.Recipe{
		Version: sandbox.Version,
		Argv:    slices.Clone(req.Command),
		Env:     environment(req, who),
		Dir:     req.Workspace,
		SetIDs:  setIDs,
		UID:     req.UID, GID: req.GID, Groups: slices.Clone(req.Groups),
		NoNewPrivileges: true,
		Rlimits:         p.rlimits(req),
		Cgroup:          req.Limits,
	}, nil
}

// rlimits turns limits into resource limits of each process.
//
// nproc counts all processes of a *user* on the host, and does not bind root
// (setrlimit(2)): with it, sessions of one user would take each other's forks
// away, and a user who has more processes already could not start one at all.
// So it is only the fallback where no pids controller bounds the leaf.
func (p *Provider) rlimits(req sandbox.PrepareRequest) []sandbox.Rlimit {
	var r []sandbox.Rlimit
	if n := req.Limits.OpenFiles; n > 0 {
		r = append(r, sandbox.Rlimit{Name: "nofile", Soft: n, Hard: n})
	}
	if n := req.Limits.Processes; n > 0 && !slices.Contains(p.options.Controllers, "pids") {
		r = append(r, sandbox.Rlimit{Name: "nproc", Soft: n, Hard: n})
	}
	return r
}

// Observe answers absent: a process session consists of what runs in its leaf,
// which is not this provider's to tell.
func (p *Provider) Observe(_ context.Context, h sandbox.Handle) (sandbox.Observation, error) {
	if err := h.Validate(); err != nil {
		return sandbox.Observation{}, err
	}
	return sandbox.Observation{
		Presence: sandbox.Absent, Detail: "this provider makes nothing outside the session's leaf",
	}, nil
}

// Release succeeds: there is nothing to give back.
func (p *Provider) Release(_ context.Context, h sandbox.Handle) (sandbox.ReleaseResult, error) {
	if err := h.Validate(); err != nil {
		return sandbox.ReleaseResult{}, err
	}
	return sandbox.ReleaseResult{Detail: "nothing was made"}, nil
}
