package api

import (
	"context"
	"encoding/json"
	"path/filepath"

	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/link"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

// Logs reads an instance's spool from its files; the wrapper only gives hints
// that there is more.
func (a *API) Logs(ctx context.Context, p rpc.Peer, session string, q rpc.LogsQuery, emit func(rpc.LogRecord) error) error {
	v, err := a.view(p, session, true)
	if err != nil {
		return err
	}
	generation := q.Generation
	if generation == 0 {
		generation = newest(v)
	}
	if generation == 0 || generation >= v.State.NextGeneration {
		return rpc.Errorf(rpc.CodeNotFound, "session %q has no output of generation %d", session, generation)
	}
	r, err := spool.Open(filepath.Join(a.opts.Dir.GenerationDir(session, generation), wire.SpoolName))
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Seek(q.Since); err != nil {
		return err
	}
	follow, stop := a.follow(ctx, session, generation, q.Follow)
	defer stop()
	for rec, err := range r.Follow(ctx, follow) {
		if err != nil {
			return err
		}
		if err := emit(logRecord(generation, &rec)); err != nil {
			return err
		}
	}
	return nil
}

// newest is the newest generation that a view tells of, 0 = none.
func newest(v *engine.View) uint64 {
	switch {
	case v.State.Instance.Generation > 0:
		return v.State.Instance.Generation
	case v.Lease.Exit != nil:
		return v.Lease.Exit.Generation
	}
	return 0
}

// follow says how to wait for more of an instance's output: for nothing, or
// until the instance has ended.
func (a *API) follow(ctx context.Context, session string, generation uint64, follow bool) (spool.FollowOptions, func()) {
	ended := make(chan struct{})
	v, ok := a.opts.Engine.View(session)
	if !follow || !ok || v.State.Instance.Generation != generation {
		close(ended)
		return spool.FollowOptions{Ended: ended}, func() {}
	}
	opt := spool.FollowOptions{Ended: ended}
	stop := func() {}
	if c, ok := v.Link.(*link.Conn); ok {
		opt.Wake, stop = c.Watch()
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with ctx, by stop at the latest
		_, _, err := a.opts.Engine.Await(ctx, session, func(v *engine.View) bool {
			return v.State.Instance.Generation != generation
		})
		if err == nil {
			close(ended)
		}
	}()
	return opt, func() {
		cancel()
		stop()
	}
}

func logRecord(generation uint64, rec *spool.Record) rpc.LogRecord {
	out := rpc.LogRecord{
		Generation: generation, Seq: rec.Seq, At: rec.Time, Stream: rec.Stream.String(), Data: rec.Data,
	}
	if rec.Gap != nil {
		data, err := json.Marshal(rec.Gap)
		if err == nil {
			out.Data = data
		}
	}
	return out
}
