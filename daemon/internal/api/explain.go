package api

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthd/berth/daemon/internal/discover"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/record"
)

// explainBound bounds the look at the witnesses for explain.
const explainBound = 5 * time.Second

// Explain asks every witness now and says what they answer. It changes nothing
// and works for sessions under deletion and for tombstones.
func (a *API) Explain(ctx context.Context, p rpc.Peer, session string) (rpc.ExplainReply, error) {
	if tomb, ok := a.opts.Engine.Snapshot().Tombstones.Get([]byte(session)); ok && may(p, tomb.UID) {
		if _, live := a.opts.Engine.View(session); !live {
			return buried(tomb), nil
		}
	}
	v, err := a.view(p, session, true)
	if err != nil {
		return rpc.ExplainReply{}, err
	}
	ctx, cancel := bound(ctx, explainBound)
	defer cancel()
	report := a.opts.Prober.Full(ctx, v.Subject)
	reply := explained(&report)
	shown := sessionOf(v)
	reply.Session, reply.Spec = &shown, specOf(v.Spec)
	reply.Notes = append(notes(v), reply.Notes...)
	reply.Leaf = v.Lease.Wrapper.Leaf
	for _, d := range v.Lease.Debts {
		reply.Debts = append(reply.Debts, fmt.Sprintf("provider %s owes the release of %s (tries %d, last error %q)",
			d.Provider, d.Handle, d.Attempts, d.LastError))
	}
	reply.Notes = append(reply.Notes, debtNotes(v)...)
	return reply, nil
}

// buried is what explain says of a deleted session: the evidence that was
// recorded when it went.
func buried(tomb *record.Tombstone) rpc.ExplainReply {
	t := tombstoneOf(tomb)
	reply := rpc.ExplainReply{Verdict: "unknown", Witnesses: []rpc.Witness{}}
	if t.Evidence != nil {
		reply = *t.Evidence
	}
	t.Evidence, reply.Tombstone = nil, t
	reply.Notes = append(reply.Notes, "the session was deleted, what is shown was seen then; its id is spent until the tombstone expires")
	return reply
}

// explained is an evidence report as the API shows it.
func explained(r *evidence.Report) rpc.ExplainReply {
	reply := rpc.ExplainReply{Verdict: r.Verdict.String(), Strength: r.Strength, Witnesses: []rpc.Witness{}}
	now, asked := sys.Now(), map[string]int{}
	for _, w := range r.Witnesses {
		shown := rpc.Witness{
			Name: w.Name, Answer: w.Answer.String(), AgeSeconds: max(now-w.At, 0).Seconds(), Detail: w.Detail,
		}
		if i, again := asked[w.Name]; again { // asked twice: the later answer is shown
			reply.Witnesses[i] = shown
			continue
		}
		asked[w.Name] = len(reply.Witnesses)
		reply.Witnesses = append(reply.Witnesses, shown)
	}
	if r.Reason != "" {
		reply.Notes = append(reply.Notes, r.Reason)
	}
	add := func(kind string, procs []discover.Proc) {
		for i := range procs {
			reply.Processes = append(reply.Processes, processOf(&procs[i], kind))
		}
	}
	add("member", r.Members)
	add("escaped", r.Escaped)
	add("forged", r.Forged)
	add("legacy", r.Legacy)
	add("other", r.Others)
	add("zombie", r.Zombies)
	for i := range r.Stuck {
		p := processOf(&r.Stuck[i].Proc, "stuck")
		p.Detail = "uninterruptible sleep in " + r.Stuck[i].Wchan
		reply.Notes = append(reply.Notes, fmt.Sprintf("process %d (%s) sleeps in the kernel, where no signal reaches it: it ends when what it waits for answers "+
			"(a file system, a device), or with a reboot; only this session waits for it", p.PID, p.Comm))
		reply.Processes = append(reply.Processes, p)
	}
	return reply
}

func processOf(p *discover.Proc, kind string) rpc.Process {
	return rpc.Process{
		PID: p.PID, UID: p.UID, Comm: p.Comm, Session: p.Session, Instance: p.Instance,
		Generation: p.Generation, Kind: kind, Zombie: p.Zombie, Cgroup: p.Cgroup,
	}
}

// notes say in words what is missing and what would resolve it.
func notes(v *engine.View) []string {
	var out []string
	note := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if v.Lease.Unreadable != "" {
		note("%s", v.Lease.Unreadable)
	}
	switch {
	case v.State.Kind == lease.Quarantined:
		again := "stop"
		if v.Lease.Deletion != nil {
			again = "delete"
		}
		note("nothing is launched or signalled any more; a look that finds nothing frees the session, "+
			"\"berthctl %s %s\" makes berth look now, \"berthctl lease resolve %s\" decides by hand",
			again, v.Lease.Session, v.Lease.Session)
	case v.State.Cleaning():
		note("a stop is owed (%s), %d attempts so far", v.State.Stop.Reason, v.State.Stop.Attempts)
	case v.State.Owned() && v.Link == nil:
		note("the wrapper is not connected (%s)", orNone(string(v.Adoption)))
	}
	if p := v.Lease.Preparation; p != nil && p.Failure != "" {
		note("the workspace is not prepared: step %q failed (%s); the next start tries it again, %s has what it printed",
			p.Step, p.Failure, "prepare.log in the generation's directory")
	}
	if v.Spec != nil && v.Spec.Allocation == record.AllocationShared {
		note("the session is of a shared allocation, which is retired: it can be stopped and deleted, not started")
	}
	if v.Spec == nil {
		note("the specification cannot be read: the session can be stopped and deleted, not started")
	}
	if d := v.Lease.Deletion; d != nil {
		note("deletion was asked for by %s, next step %q", orNone(d.By), d.Step)
		if d.LastError != "" {
			note("the deletion is held up after %d tries: %s", d.Attempts, d.LastError)
		}
	}
	return out
}

// debtNotes say what a debt to a provider holds up, and who can end that.
func debtNotes(v *engine.View) []string {
	out := append([]string(nil), v.Lease.Abandoned...)
	if !v.State.Vacant() || len(v.Lease.Debts) == 0 || v.Lease.Debts[0].LastError == "" {
		return out
	}
	return append(out, fmt.Sprintf("the session can be neither started nor deleted until its provider has released what it had, which is tried "+
		"again by itself; a provider that is gone for good has to be configured once more, or the release given up with "+
		"\"berthctl lease resolve %s --abandon --i-verified\"", v.Lease.Session))
}

func orNone(s string) string {
	if s == "" {
		return "nobody"
	}
	return s
}

// withoutValues hides the values of an environment: people put secrets there,
// whatever they were told, and whoever may read may ask.
func withoutValues(env []string) []string {
	var shown []string
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		shown = append(shown, name+"=<hidden>")
	}
	return shown
}

func specOf(s *record.Spec) *rpc.SessionSpec {
	if s == nil {
		return nil
	}
	out := &rpc.SessionSpec{
		Command: s.Command, Env: withoutValues(s.Env), Workspace: s.Workspace, Provider: s.Provider, Terminal: s.Terminal,
		Rows: s.Rows, Cols: s.Cols, ReserveBytes: &s.ReserveBytes, ReserveInodes: &s.ReserveInodes,
		Limits: rpc.Limits{
			Processes: s.MaxProcesses, MemoryBytes: s.MaxMemoryBytes,
			CPUPercent: s.MaxCPUPercent, OpenFiles: s.MaxOpenFiles,
		},
		Source: shownSource(s.Source), Setup: s.Setup, Pinned: s.Pinned,
		Allocation: s.Allocation,
	}
	if s.Retention != 0 {
		seconds := max(s.Retention, 0).Seconds()
		out.RetentionSeconds = &seconds
	}
	if s.Grace >= 0 {
		seconds := s.Grace.Seconds()
		out.GraceSeconds = &seconds
	}
	return out
}

// tombstoneOf is a tombstone as the API shows it, with the evidence that was
// recorded; age is not shown since boot times have passed.
func tombstoneOf(t *record.Tombstone) *rpc.Tombstone {
	out := &rpc.Tombstone{
		Session: t.Session, LastGeneration: t.LastGeneration, Reason: t.Reason, By: t.By, At: t.Wall, Saved: t.Saved,
		Abandoned: t.Abandoned,
	}
	var r evidence.Report
	if len(t.Evidence) > 0 && json.Unmarshal(t.Evidence, &r) == nil {
		shown := explained(&r)
		for i := range shown.Witnesses {
			shown.Witnesses[i].AgeSeconds = 0 // when it was asked is the tombstone's time; the same for every reader
		}
		out.Evidence = &shown
	}
	return out
}

// findInstance finds the one wrapper of a session that an operator wants to
// adopt.
func (a *API) findInstance(ctx context.Context, v *engine.View) (engine.Found, error) {
	ctx, cancel := bound(ctx, scanBound)
	defer cancel()
	result, err := a.opts.Prober.Scan(ctx)
	if err != nil {
		return engine.Found{}, fmt.Errorf("scanning for the session's wrapper: %w", err)
	}
	found := map[lease.Instance]string{} // → name of its leaf
	for i := range result.Procs {
		p := &result.Procs[i]
		if p.Kind != discover.Member || p.Session != v.Lease.Session || p.Zombie {
			continue
		}
		instance := lease.Instance{ID: p.Instance, Generation: p.Generation}
		if _, seen := found[instance]; !seen {
			found[instance] = ""
		}
		if p.UID == a.opts.UID && path.Base(p.Cgroup) == "wrap" {
			found[instance] = path.Base(path.Dir(p.Cgroup))
		}
	}
	if len(found) != 1 {
		return engine.Found{}, rpc.Errorf(rpc.CodeNotRunning,
			"%d instances of session %q are running; exactly one can be adopted", len(found), v.Lease.Session)
	}
	for instance, leaf := range found {
		return engine.Found{Instance: instance, LeafName: leaf, Process: a.wrapperOf(ctx, v, instance, leaf)}, nil
	}
	panic("internal error: one is not none")
}

// wrapperOf tells an instance's wrapper from what it runs: by its marker, its
// place and its lock.
func (a *API) wrapperOf(ctx context.Context, v *engine.View, i lease.Instance, leaf string) sys.Identity {
	s := v.Subject
	s.Instance, s.Generation, s.Wrapper, s.Since = i.ID, i.Generation, sys.Identity{}, 0
	s.LockPath = filepath.Join(a.opts.Dir.GenerationDir(v.Lease.Session, i.Generation), "lock")
	s.LeafName, s.LeafPath, s.LeafParentInode, s.Weak = leaf, "", 0, leaf == ""
	report := a.opts.Prober.Full(ctx, s)
	return report.Subject.Wrapper
}
