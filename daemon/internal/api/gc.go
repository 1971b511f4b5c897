package api

import (
	"context"
	"time"

	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/rpc"
)

// gcBound bounds the looks into all workspaces for gc.
const gcBound = 2 * time.Minute

// GC says for every workspace that the peer may see whether it would be given up if
// room were needed. It changes nothing.
func (a *API) GC(ctx context.Context, p rpc.Peer) (rpc.GCReply, error) {
	ctx, cancel := bound(ctx, gcBound)
	defer cancel()
	on, policy := a.opts.Cleaner.Policy()
	reply := rpc.GCReply{Enabled: on, AfterSeconds: policy.MinAge.Seconds(), IgnoredToo: policy.DiscardIgnored, Workspaces: []rpc.Eligibility{}}
	visible := func(v *engine.View) bool { return may(p, v.Lease.UID) && v.Lease.Deletion == nil }
	for _, j := range a.opts.Cleaner.Explain(ctx, visible) {
		out := rpc.Eligibility{Session: j.Session, Path: j.Path, Eligible: j.Eligible, WhyNot: j.WhyNot, Holds: j.Holds}
		if j.Released {
			seconds := j.ReleasedFor.Seconds()
			out.ReleasedSeconds = &seconds
		}
		reply.Workspaces = append(reply.Workspaces, out)
	}
	return reply, nil
}
