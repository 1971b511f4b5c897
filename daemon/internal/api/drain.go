package api

import (
	"context"
	"encoding/json"

	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/rpc"
)

// Drain has nothing started any more; with Kill it stops all sessions, and
// with Wait it answers when they have ended or are quarantined.
func (a *API) Drain(ctx context.Context, p rpc.Peer, req rpc.DrainRequest) (rpc.DrainReply, error) {
	if err := texts(req.Key, req.Why); err != nil {
		return rpc.DrainReply{}, err
	}
	drain := engine.DrainRequest{Caller: caller(p, "", req.Key), Why: req.Why, Kill: req.Kill}
	drain.Digest = digest([]any{"drain", req.Kill})
	answer, err := a.opts.Engine.Drain(ctx, drain)
	if err != nil || answer != nil {
		return recorded[rpc.DrainReply](answer, err)
	}
	if req.Wait {
		if err := a.idle(ctx); err != nil {
			return rpc.DrainReply{}, refuse(err)
		}
	}
	return a.finish(ctx, &drain.Caller, "drain")
}

// finish records the host's account as the answer of an operation, and answers
// with what is recorded.
func (a *API) finish(ctx context.Context, c *engine.Caller, kind string) (rpc.DrainReply, error) {
	reply := a.drain()
	if c.Key == "" {
		return reply, nil
	}
	data, err := json.Marshal(reply)
	if err != nil {
		return rpc.DrainReply{}, err
	}
	answer, err := a.opts.Engine.Finish(ctx, c, kind, data)
	return recorded[rpc.DrainReply](answer, err)
}

// Undrain lets sessions be started again.
func (a *API) Undrain(ctx context.Context, p rpc.Peer, req rpc.UndrainRequest) (rpc.DrainReply, error) {
	if err := texts(req.Key, ""); err != nil {
		return rpc.DrainReply{}, err
	}
	c := caller(p, "", req.Key)
	c.Digest = digest([]string{"undrain"})
	answer, err := a.opts.Engine.Undrain(ctx, c)
	if err != nil || answer != nil {
		return recorded[rpc.DrainReply](answer, err)
	}
	return a.finish(ctx, &c, "undrain")
}

// idle waits until no session owns an instance or is being stopped.
func (a *API) idle(ctx context.Context) error {
	var busy []string
	a.opts.Engine.Snapshot().Sessions.Root().Walk(func(id []byte, v *engine.View) bool {
		if !still(v) {
			busy = append(busy, string(id))
		}
		return false
	})
	for _, id := range busy {
		if _, _, err := a.opts.Engine.Await(ctx, id, still); err != nil {
			return err
		}
	}
	return nil
}

// still: berth does nothing about the session on its own.
func still(v *engine.View) bool { return v.State.Vacant() || v.State.Kind == lease.Quarantined }

// drain is the published account.
func (a *API) drain() rpc.DrainReply {
	snapshot := a.opts.Engine.Snapshot()
	reply := rpc.DrainReply{Drain: drainOf(snapshot), Sessions: map[string]int{}}
	snapshot.Sessions.Root().Walk(func(_ []byte, v *engine.View) bool {
		reply.Sessions[v.State.Kind.String()]++
		return false
	})
	return reply
}

// drainOf is nil while the host is not being drained.
func drainOf(s *engine.Snapshot) *rpc.Drain {
	if !s.Host.Draining {
		return nil
	}
	return &rpc.Drain{By: s.Host.DrainBy, Why: s.Host.DrainWhy, Since: s.Host.DrainWall}
}
