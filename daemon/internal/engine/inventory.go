package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/statefs/record"
)

// takeInventory lists what exists; until it is in nothing is launched.
func (e *Engine) takeInventory() {
	e.effect(inventoryBound, func(ctx context.Context) {
		inv, err := e.opts.Effects.Inventory(ctx)
		e.post(func(t *tx) { t.inventoried(inv, err) })
	})
}

// inventoried raises every generation above what exists, finds leaves that no
// lease tells of, and lets starts through.
func (t *tx) inventoried(inv Inventory, err error) {
	e := t.e
	if err != nil {
		e.log.Error("listing what exists failed: starts wait until it works", "error", err)
		t.then(func() { time.AfterFunc(retryFirst, e.takeInventoryAgain) })
		return
	}
	host := t.hostNow()
	for id, generation := range inv.Generations {
		t.floor(id, generation+1, &host)
	}
	for _, leaf := range inv.Leaves {
		t.floor(leaf.Session, leaf.Generation+1, &host)
		t.strayLeaf(leaf)
	}
	for _, p := range inv.Strays {
		t.stray(p, inv.Generations[p.Session])
	}
	if host.GenerationFloor != t.hostNow().GenerationFloor {
		t.putHost(host)
	}
	t.then(func() {
		e.inventory = true
		e.unbar()
	})
}

// unbar lets the starts through that wait for the inventory, once it is in.
func (e *Engine) unbar() {
	if e.inventory {
		e.pending = append(e.pending, e.barred...)
		e.barred = nil
	}
}

func (e *Engine) takeInventoryAgain() {
	e.post(func(t *tx) { t.then(e.takeInventory) })
}

// floor keeps generations of a session, known or not, at or above next.
func (t *tx) floor(id string, next uint64, host *record.Host) {
	if d := t.draft(id); d != nil {
		if next > d.state.NextGeneration {
			t.mustReduce(d, lease.Event{Kind: lease.FloorRaised, Floor: next})
		}
		return
	}
	host.GenerationFloor = max(host.GenerationFloor, next-1)
}

// strayLeaf deals with a leaf that is not the one its session's lease names.
func (t *tx) strayLeaf(leaf LeafSeen) {
	d := t.draft(leaf.Session)
	switch {
	case d != nil && d.state.Instance.Generation == leaf.Generation:
	case d == nil && leaf.Populated:
		d = t.create(leaf.Session)
		next := leaf.Generation + 1
		if tomb := t.tombstone(leaf.Session); tomb != nil {
			next, d.lease.UID = max(next, tomb.LastGeneration+1), tomb.UID
		}
		d.state = lease.Unreadable(next)
		d.lease.Unreadable = fmt.Sprintf("leaf %s is populated and no lease tells of it", leaf.Path)
		d.lease.Wrapper.Leaf = leaf.Path
		t.e.findWorkspace(&d.lease, nil)
		if t.tombstone(leaf.Session) == nil {
			t.e.findOwner(&d.lease)
		}
		t.put(d, "unreadable", d.lease.Unreadable)
	case d != nil && leaf.Populated:
		t.requestStop(d, lease.UnexpectedWrapper, lease.Target{}, "", "",
			fmt.Sprintf("leaf %s is populated and the lease does not name it", leaf.Path))
	}
}

// stray deals with a process that the witnesses of no leaf can tell of. What it
// says of itself anybody can say, so that it counts only where berth's own
// directories or records speak of the session.
func (t *tx) stray(p StraySeen, generation uint64) {
	d := t.draft(p.Session)
	switch {
	case d == nil && generation > 0:
		d = t.create(p.Session)
		d.state = lease.Unreadable(generation + 1)
		if p.UID == t.e.opts.UID {
			d.lease.UID = p.UID
		}
		d.lease.Unreadable = fmt.Sprintf("process %d is of this session and no lease tells of it", p.PID)
		t.e.findWorkspace(&d.lease, nil)
		t.put(d, "unreadable", d.lease.Unreadable)
	case d != nil && d.state.Vacant() && d.lease.UID == p.UID:
		t.requestStop(d, lease.UnexpectedWrapper, lease.Target{}, "", "",
			fmt.Sprintf("process %d is of this session and the lease names none", p.PID))
	}
}
