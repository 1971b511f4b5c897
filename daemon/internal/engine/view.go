package engine

import (
	"context"
	"maps"
	"slices"

	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/record"
	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// View is one session as readers see it. It never changes; Changed is closed
// when a newer one has been published or the session is gone.
type View struct {
	Lease    record.Lease
	State    lease.State
	Spec     *record.Spec
	Adoption Adoption
	Link     Link // nil when down
	Status   wire.Status
	Problem  string
	Subject  evidence.Subject
	// Report is the newest look at the witnesses, nil before the first.
	Report  *evidence.Report
	Changed <-chan struct{}

	changed chan struct{}
	open    []opKey // operations whose outcome is to come
}

// Snapshot is the published state. It never changes.
type Snapshot struct {
	Sessions   *iradix.Tree[*View]
	Tombstones *iradix.Tree[*record.Tombstone]
	Host       record.Host
	Rooms      map[uint64]DeviceRoom // by device, as statefs.Space has it
	LastSeq    uint64
	// Settled is true once every wrapper of an earlier daemon is adopted, gone
	// or given up.
	Settled bool

	operations *iradix.Tree[*record.Operation]
}

// Snapshot returns the newest published state.
func (e *Engine) Snapshot() *Snapshot { return e.snapshot.Load() }

// View returns the newest published view of a session.
func (e *Engine) View(id string) (*View, bool) {
	return e.Snapshot().Sessions.Get([]byte(id))
}

// Await returns the first view for which done is true, now or later. gone is
// true when the session has been forgotten or has become a tombstone.
func (e *Engine) Await(ctx context.Context, id string, done func(*View) bool) (v *View, gone bool, err error) {
	for {
		v, ok := e.View(id)
		if !ok {
			return nil, true, nil
		}
		if done(v) {
			return v, false, nil
		}
		select {
		case <-v.Changed:
		case <-ctx.Done():
			return v, false, ctx.Err()
		case <-e.done:
			return v, false, ErrStopped
		}
	}
}

// newView makes the view of a session as it is now.
func (e *Engine) newView(s *session) *View {
	changed := make(chan struct{})
	return &View{
		Lease: s.lease, State: s.state, Spec: s.spec, Adoption: s.adoption,
		Link: s.link, Status: s.status, Problem: s.problem(),
		Subject: e.subject(&s.lease, s.link != nil), Report: s.lastReport,
		Changed: changed, changed: changed, open: slices.Concat(s.startKeys, s.openKeys),
	}
}

// publish makes the changed sessions, tombstones and operations visible.
func (e *Engine) publish(t *tx) {
	old := e.snapshot.Load()
	next := &Snapshot{
		Tombstones: old.Tombstones, operations: old.operations,
		Host: e.host, Rooms: maps.Clone(e.rooms), LastSeq: e.lastSeq,
	}
	sessions := old.Sessions.Txn()
	var superseded []chan struct{}
	for id := range t.touched {
		if v, ok := sessions.Get([]byte(id)); ok {
			superseded = append(superseded, v.changed)
		}
		s, ok := e.sessions[id]
		if !ok {
			sessions.Delete([]byte(id))
			continue
		}
		s.view = e.newView(s)
		sessions.Insert([]byte(id), s.view)
	}
	next.Sessions = sessions.Commit()
	if len(t.tombs) > 0 {
		tombs := old.Tombstones.Txn()
		for id, tomb := range t.tombs {
			was := false
			if tomb == nil {
				tomb, was = tombs.Delete([]byte(id))
				if was {
					e.countTombstone(tomb.UID, true, false)
				}
				continue
			}
			_, was = tombs.Insert([]byte(id), tomb)
			e.countTombstone(tomb.UID, was, true)
		}
		next.Tombstones = tombs.Commit()
	}
	if len(t.ops) > 0 {
		ops := old.operations.Txn()
		for key, op := range t.ops {
			was := false
			if op == nil {
				_, was = ops.Delete(key.bytes())
			} else {
				_, was = ops.Insert(key.bytes(), op)
			}
			e.countOperation(key.uid, was, op != nil)
		}
		next.operations = ops.Commit()
	}
	next.Settled = e.settled()
	e.snapshot.Store(next)
	for _, c := range superseded {
		close(c)
	}
}

// settled reports whether no session waits for its adoption any more.
func (e *Engine) settled() bool { return e.inventory && e.unsettled == 0 }
