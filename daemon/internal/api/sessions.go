package api

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/berthd/berth/daemon/internal/appraise"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/record"
)

// inputBound bounds the wait for a wrapper to take input.
const inputBound = 10 * time.Second

// List lists the sessions that the peer may see.
func (a *API) List(_ context.Context, p rpc.Peer) (rpc.ListReply, error) {
	snapshot := a.opts.Engine.Snapshot()
	reply := rpc.ListReply{State: settledState(snapshot), Sessions: []rpc.Session{}}
	snapshot.Sessions.Root().Walk(func(_ []byte, v *engine.View) bool {
		if may(p, v.Lease.UID) && v.Lease.Deletion == nil {
			reply.Sessions = append(reply.Sessions, sessionOf(v))
		}
		return false
	})
	return reply, nil
}

func settledState(s *engine.Snapshot) string {
	if s.Settled {
		return "ready"
	}
	return "reconciling"
}

// Get returns one session.
func (a *API) Get(_ context.Context, p rpc.Peer, session string) (rpc.Session, error) {
	v, err := a.view(p, session, false)
	if err != nil {
		return rpc.Session{}, err
	}
	return sessionOf(v), nil
}

// Wait returns when nothing of the session lives any more.
func (a *API) Wait(ctx context.Context, p rpc.Peer, session string) (rpc.WaitReply, error) {
	v, err := a.view(p, session, false)
	if err != nil {
		return rpc.WaitReply{}, err
	}
	return a.ended(ctx, p, v)
}

// ended waits for the end of what a view shows. A newer generation proves it
// too: a session that is started again at once may never be seen vacant.
func (a *API) ended(ctx context.Context, p rpc.Peer, shown *engine.View) (rpc.WaitReply, error) {
	session := shown.Lease.Session
	v, gone, err := a.opts.Engine.Await(ctx, session, func(v *engine.View) bool {
		return v.State.Vacant() || v.State.Kind == lease.Quarantined || v.Lease.Deletion != nil ||
			v.State.Instance.Generation >= shown.State.NextGeneration
	})
	if err != nil {
		return rpc.WaitReply{}, refuse(err)
	}
	if gone || v.Lease.Deletion != nil {
		_, err := a.view(p, session, false)
		return rpc.WaitReply{}, err
	}
	return rpc.WaitReply{Session: sessionOf(v)}, nil
}

// Stop asks for the session's end, and with Wait waits for it.
func (a *API) Stop(ctx context.Context, p rpc.Peer, session string, req rpc.StopRequest) (rpc.StopReply, error) {
	if err := texts(req.Key, req.Why); err != nil {
		return rpc.StopReply{}, err
	}
	stop := engine.StopRequest{Caller: caller(p, session, req.Key), Why: req.Why}
	stop.Digest = digest([]string{session, "stop"})
	if a.opts.Engine.Operation(&stop.Caller, "stop") == nil { // a repeat was checked before
		if _, err := a.view(p, session, false); err != nil {
			return rpc.StopReply{}, err
		}
	}
	if answer, err := a.opts.Engine.Stop(ctx, stop); err != nil || answer != nil {
		return recorded[rpc.StopReply](answer, err)
	}
	reply, err := a.stopped(ctx, p, session, req.Wait)
	if op := a.opts.Engine.Operation(&stop.Caller, "stop"); op != nil && op.Done && err == nil {
		return recorded[rpc.StopReply](op.Result, nil) // what a repeat will get too
	}
	return reply, err
}

// stopped reports how far a stop has come.
func (a *API) stopped(ctx context.Context, p rpc.Peer, session string, wait bool) (rpc.StopReply, error) {
	v, err := a.view(p, session, false)
	if err != nil {
		return rpc.StopReply{}, err
	}
	if wait && !v.State.Owned() { // owned: it has ended and was started again already
		reply, err := a.ended(ctx, p, v)
		return rpc.StopReply(reply), err
	}
	return rpc.StopReply{Session: sessionOf(v)}, nil
}

// Delete puts the intent on disk, and with Wait waits for the tombstone or for
// what holds the deletion up.
func (a *API) Delete(ctx context.Context, p rpc.Peer, session string, req rpc.DeleteRequest) (rpc.DeleteReply, error) {
	if err := a.degraded.Load(); err != nil {
		return rpc.DeleteReply{}, rpc.Errorf(rpc.CodeDegraded, "nothing is deleted while other processes cannot be read: %v", *err)
	}
	if err := texts(req.Key, req.Why); err != nil {
		return rpc.DeleteReply{}, err
	}
	if req.Discard && req.Salvage {
		return rpc.DeleteReply{}, rpc.Errorf(rpc.CodeInvalidRequest, "discard loses the work and salvage saves it: say one of them")
	}
	del := engine.DeleteRequest{Caller: caller(p, session, req.Key), Discard: req.Discard, Salvage: req.Salvage}
	del.Digest = digest([]any{session, "delete", req.Discard, req.Salvage})
	if a.opts.Engine.Operation(&del.Caller, "delete") == nil { // a repeat was checked before
		if tomb, ok := a.opts.Engine.Snapshot().Tombstones.Get([]byte(session)); ok && may(p, tomb.UID) && req.Key != "" {
			return recorded[rpc.DeleteReply](Answer("delete", engine.Ending{Tombstone: tomb}), nil) // what is asked for is done
		}
		if err := a.deletable(ctx, p, session, &req); err != nil {
			return rpc.DeleteReply{}, err
		}
	}
	if answer, err := a.opts.Engine.Delete(ctx, del); err != nil || answer != nil {
		return recorded[rpc.DeleteReply](answer, err)
	}
	return a.deleted(ctx, session, req.Wait)
}

// deletable refuses what a client may not delete, and what it would not delete
// if it knew what it loses.
func (a *API) deletable(ctx context.Context, p rpc.Peer, session string, req *rpc.DeleteRequest) error {
	v, err := a.view(p, session, true)
	if err != nil || req.Discard || req.Salvage || v.Lease.Deletion != nil {
		return err
	}
	return a.hasWork(ctx, session, &v.Lease)
}

// deleted reports how far the deletion has come.
func (a *API) deleted(ctx context.Context, session string, wait bool) (rpc.DeleteReply, error) {
	v, gone, err := a.opts.Engine.Await(ctx, session, func(v *engine.View) bool {
		held := v.State.Kind == lease.Quarantined || (v.Lease.Deletion != nil && v.Lease.Deletion.LastError != "")
		return !wait || held
	})
	if err != nil {
		return rpc.DeleteReply{}, refuse(err)
	}
	if gone {
		tomb, ok := a.opts.Engine.Snapshot().Tombstones.Get([]byte(session))
		if !ok {
			return rpc.DeleteReply{}, rpc.Errorf(rpc.CodeNotFound, "session %q does not exist", session)
		}
		return rpc.DeleteReply{Tombstone: tombstoneOf(tomb)}, nil
	}
	return rpc.DeleteReply{Deleting: deletingOf(&v.Lease)}, nil
}

// hasWork refuses the deletion of a workspace that berth made and that holds
// work, unless the client says what is to become of it.
func (a *API) hasWork(ctx context.Context, session string, l *record.Lease) error {
	if !l.WorkspaceMade && l.Workspace != a.opts.Dir.WorkspaceDir(session) { // one that was made for a start which was never verified counts
		return nil
	}
	if empty, _ := isEmpty(l.Workspace); empty {
		return nil
	}
	report, err := a.opts.Appraiser.Inspect(ctx, appraise.Subject{Session: session, Root: l.Workspace, UID: l.UID, GID: l.GID})
	if err != nil {
		return rpc.Errorf(rpc.CodeDirty, "workspace %q cannot be looked at (%v); say discard to lose what is in it", l.Workspace, err)
	}
	if report.Clean() {
		return nil
	}
	refusal := rpc.Errorf(rpc.CodeDirty, "workspace %q holds work: %s; say salvage to save it, or discard to lose it", l.Workspace, report.Summary())
	refusal.Details = map[string]any{"findings": report.Findings, "truncated": report.Truncated}
	return refusal
}

// isEmpty reports whether a directory is missing or holds nothing.
func isEmpty(dir string) (bool, error) {
	f, err := os.Open(dir)
	if os.IsNotExist(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// Send gives bytes to the agent; the reply means that the wrapper has them.
func (a *API) Send(ctx context.Context, p rpc.Peer, session string, req rpc.SendRequest) (rpc.SendReply, error) {
	if len(req.Message) > keyMax {
		return rpc.SendReply{}, rpc.Errorf(rpc.CodeInvalidRequest, "message: %d bytes, at most %d", len(req.Message), keyMax)
	}
	v, err := a.view(p, session, false)
	if err != nil {
		return rpc.SendReply{}, err
	}
	if !v.State.Owned() {
		return rpc.SendReply{}, rpc.Errorf(rpc.CodeNotRunning, "session %q is %s, not running", session, v.State.Kind)
	}
	if v.Link == nil {
		return rpc.SendReply{}, &rpc.Error{
			Code: rpc.CodeUnreachable, Message: "the wrapper of session \"" + session + "\" is not connected now",
			Retryable: true, RetryAfter: time.Second,
		}
	}
	ctx, cancel := bound(ctx, inputBound)
	defer cancel()
	_, err = v.Link.Request(ctx, wire.Frame{Kind: wire.KindInput, Input: &wire.Input{
		Message: req.Message, Data: req.Data, EOF: req.EOF,
	}})
	if err != nil {
		return rpc.SendReply{}, &rpc.Error{
			Code: rpc.CodeUnreachable, Message: "session \"" + session + "\": " + err.Error(), Retryable: true,
		}
	}
	return rpc.SendReply{Generation: v.State.Instance.Generation}, nil
}

// Resolve carries out an operator's decision on a quarantined session.
func (a *API) Resolve(ctx context.Context, p rpc.Peer, session string, req rpc.ResolveRequest) (rpc.Session, error) {
	v, err := a.view(p, session, true)
	if err != nil {
		return rpc.Session{}, err
	}
	if !req.Verified || req.Why == "" || (req.Action != "adopt" && req.Action != "abandon") {
		return rpc.Session{}, rpc.Errorf(rpc.CodeInvalidRequest,
			"action must be adopt or abandon, verified must be true, and why must say what was looked at")
	}
	if err := texts(req.Key, req.Why); err != nil {
		return rpc.Session{}, err
	}
	resolve := engine.ResolveRequest{Caller: caller(p, session, req.Key), Adopt: req.Action == "adopt", Why: req.Why}
	resolve.Digest = digest([]string{session, "resolve", req.Action})
	if op := a.opts.Engine.Operation(&resolve.Caller, "resolve"); op != nil && op.Done && op.Digest == resolve.Digest {
		return recorded[rpc.Session](op.Result, nil)
	}
	if resolve.Adopt {
		if resolve.Found, err = a.findInstance(ctx, v); err != nil {
			return rpc.Session{}, err
		}
	}
	answer, err := a.opts.Engine.Resolve(ctx, resolve)
	return recorded[rpc.Session](answer, err)
}

// sessionOf is a view as the API shows it.
func sessionOf(v *engine.View) rpc.Session {
	l := &v.Lease
	s := rpc.Session{
		Session: l.Session, UID: l.UID, State: v.State.Kind.String(), NextGeneration: v.State.NextGeneration,
		Instance: v.State.Instance.ID, Generation: v.State.Instance.Generation,
		Workspace: l.Workspace, Adoption: string(v.Adoption), Problem: v.Problem,
		LastChange: l.Wall, LastEvent: l.Event, ReservedBytes: l.ReservedBytes, ReservedInodes: l.ReservedInodes,
		Exit: exitOf(l.Exit), Deleting: deletingOf(l), Preparation: preparationOf(v),
	}
	if v.Spec != nil {
		s.Provider, s.Command, s.Terminal = v.Spec.Provider, v.Spec.Command, v.Spec.Terminal
		if v.Spec.Allocation == record.AllocationShared {
			s.Allocation = v.Spec.Allocation
		}
	}
	if !v.State.Vacant() {
		s.PID, s.AgentPID = l.Wrapper.PID, l.Wrapper.AgentPID
	}
	if v.State.Owned() {
		s.Link = "down"
		if v.Link != nil {
			s.Link = "up"
		}
	}
	if v.State.Cleaning() {
		s.Stop = stopOf(v)
	}
	return s
}

func stopOf(v *engine.View) *rpc.StopState {
	stop := v.State.Stop
	next := cmp.Or(stop.NextRecheckAt, stop.NextAttemptAt)
	out := &rpc.StopState{
		Instance: stop.Target.Instance.ID, Reason: stop.Reason.String(), Attempts: stop.Attempts,
		LastError: stop.LastError, By: stop.By, Why: stop.Why,
	}
	if left := next - sys.Now(); next > 0 && left > 0 {
		out.NextTryIn = left.Seconds()
	}
	return out
}

func deletingOf(l *record.Lease) *rpc.DeleteState {
	d := l.Deletion
	if d == nil {
		return nil
	}
	return &rpc.DeleteState{Reason: d.Reason, Step: d.Step, Attempts: d.Attempts, LastError: d.LastError, Since: d.Wall}
}

func exitOf(x *record.Exit) *rpc.Exit {
	if x == nil {
		return nil
	}
	return &rpc.Exit{
		Instance: x.Instance, Generation: x.Generation, Kind: x.Kind, Code: x.Code, Signal: x.Signal,
		Unknown: x.Unknown, Reason: x.Reason, By: x.By, At: x.Wall,
	}
}

// Events streams durable changes of the sessions that the peer may see.
func (a *API) Events(ctx context.Context, p rpc.Peer, q rpc.EventsQuery, emit func(rpc.Event) error) error {
	err := a.opts.Engine.Events(ctx, q.After, q.Follow, func(ev engine.Event) error {
		gap := ev.Kind == engine.KindGap
		if !gap && (!may(p, ev.UID) || (q.Session != "" && ev.Session != q.Session)) {
			return nil
		}
		return emit(rpc.Event{
			Seq: ev.Seq, At: ev.At, Session: ev.Session, Generation: ev.Generation, Instance: ev.Instance,
			Kind: ev.Kind, State: ev.State, Reason: ev.Reason, By: ev.By, Detail: ev.Detail,
			Exit: exitOf(ev.Exit), From: ev.From, To: ev.To,
		})
	})
	return refuse(err)
}
