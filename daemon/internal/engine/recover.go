package engine

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// Loaded is the state that a journal replays to: the last value of every key.
// The zero value is an empty one.
type Loaded struct {
	host       record.Host
	diskFloor  uint64 // the host's floor as its newest record has it
	sessions   map[string]*loadedSession
	tombs      map[string]*record.Tombstone
	ops        map[opKey]*record.Operation
	events     []Event
	firstEvent uint64
	lastSeq    uint64
	floor      uint64
	problems   []string
}

type loadedSession struct {
	lease    record.Lease
	state    lease.State
	spec     *record.Spec
	readable bool // lease and state are good
	next     uint64
	broken   string // why the newest record is not readable
	seq      uint64 // of the newest lease record
}

// NewLoaded returns the state of an empty journal. snapshotSeq is the number
// up to which records are values only, not events.
func NewLoaded() *Loaded {
	return &Loaded{
		sessions: map[string]*loadedSession{}, tombs: map[string]*record.Tombstone{},
		ops: map[opKey]*record.Operation{}, firstEvent: 1,
	}
}

// Problems says in words what could not be read.
func (l *Loaded) Problems() []string { return l.problems }

func (l *Loaded) session(id string) *loadedSession {
	s, ok := l.sessions[id]
	if !ok {
		s = &loadedSession{}
		l.sessions[id] = s
	}
	return s
}

// Replay takes the next record; it fits journal.Open. A body that does not
// decode never stops the start: it is noted for its session.
func (l *Loaded) Replay(r journal.Record) error {
	l.lastSeq = max(l.lastSeq, r.Seq)
	l.floor = max(l.floor, r.Generation)
	var err error
	switch record.Type(r.Type) {
	case record.TypeHost:
		var h record.Host
		if h, err = record.DecodeHost(r.Body); err == nil {
			l.host, l.diskFloor = h, h.GenerationFloor
		}
	case record.TypeSpec:
		var spec record.Spec
		if spec, err = record.DecodeSpec(r.Body); err == nil {
			l.session(r.Session).spec = &spec
		}
	case record.TypeLease:
		l.lease(r)
	case record.TypeOperation:
		err = l.operation(r.Body)
	case record.TypeTombstone:
		var tomb record.Tombstone
		if tomb, err = record.DecodeTombstone(r.Body); err == nil {
			l.tombs[r.Session] = &tomb
			delete(l.sessions, r.Session)
			ev := deletedEvent(&tomb)
			ev.Seq = r.Seq
			l.events = append(l.events, ev)
		}
	case record.TypeForget:
		delete(l.tombs, r.Session)
		delete(l.sessions, r.Session)
	default:
		err = fmt.Errorf("unknown record type %d", r.Type)
	}
	if err != nil {
		l.problems = append(l.problems, fmt.Sprintf("record %d of session %q: %v", r.Seq, r.Session, err))
	}
	return nil
}

func (l *Loaded) lease(r journal.Record) {
	s := l.session(r.Session)
	s.next, s.seq = max(s.next, r.Generation), r.Seq
	body, err := record.DecodeLease(r.Body)
	if err == nil {
		s.state, err = parseState(&body)
	}
	if err != nil {
		s.readable, s.broken = false, err.Error()
		l.problems = append(l.problems, fmt.Sprintf("lease record %d of session %q: %v", r.Seq, r.Session, err))
		return
	}
	s.lease, s.readable, s.broken = body, true, ""
	ev := leaseEvent(&s.lease)
	ev.Seq = r.Seq
	l.events = append(l.events, ev)
}

func (l *Loaded) operation(body []byte) error {
	op, err := record.DecodeOperation(body)
	if err != nil {
		return err
	}
	key := opKey{op.UID, op.Kind, op.Key}
	if op.Digest == "" {
		delete(l.ops, key)
	} else {
		l.ops[key] = &op
	}
	return nil
}

// Recovered takes what the journal has found out about itself: records up to
// the snapshot are values, not events; damage is noted for its session.
func (l *Loaded) Recovered(r journal.Recovery) {
	l.lastSeq = max(l.lastSeq, r.LastSeq)
	l.firstEvent = r.SnapshotSeq + 1
	kept := l.events[:0]
	for _, ev := range l.events {
		if ev.Seq > r.SnapshotSeq {
			kept = append(kept, ev)
		}
	}
	l.events = kept
	for _, d := range r.Damages {
		l.damaged(d)
	}
	if r.Ambiguous {
		l.problems = append(l.problems, "the journal may have lost records: generations are raised above all that exists")
		l.host.GenerationFloor = max(l.host.GenerationFloor, l.floor)
		for _, s := range l.sessions {
			s.next = max(s.next, s.state.NextGeneration) + 1
		}
	}
}

func (l *Loaded) damaged(d journal.Damage) {
	l.problems = append(l.problems, "journal file "+d.String())
	typ := record.Type(d.Type)
	if !d.SessionKnown || d.Session == "" || (typ != record.TypeLease && typ != record.TypeTombstone && typ != record.TypeForget) {
		return
	}
	l.floor = max(l.floor, d.Generation)
	if _, buried := l.tombs[d.Session]; buried {
		return
	}
	s := l.session(d.Session)
	s.next = max(s.next, d.Generation)
	if s.seq > d.Seq {
		return // a later value of the whole lease was read
	}
	s.readable = false
	s.broken = fmt.Sprintf("its record in journal file %s at %d is damaged", d.File, d.Offset)
}

// install makes what was loaded the engine's state and publishes it.
func (e *Engine) install(l *Loaded) {
	sessions, tombs, ops := iradix.New[*View]().Txn(), iradix.New[*record.Tombstone]().Txn(), iradix.New[*record.Operation]().Txn()
	for id, from := range l.sessions {
		s := &session{id: id, lease: from.lease, state: from.state, spec: from.spec, dueIndex: -1}
		if !from.readable {
			s.lease = record.Lease{
				Session: id, UID: from.lease.UID, GID: from.lease.GID, Wrapper: from.lease.Wrapper,
				Workspace: from.lease.Workspace, WorkspaceMade: from.lease.WorkspaceMade,
				Preparation: from.lease.Preparation, Abandoned: from.lease.Abandoned, Reclaim: from.lease.Reclaim,
				Deletion: from.lease.Deletion, Unreadable: "the lease cannot be read: " + from.broken,
			}
			e.findWorkspace(&s.lease, s.spec)
			if from.lease.Session == "" {
				e.findOwner(&s.lease)
			}
			s.state = lease.Unreadable(max(from.next, from.state.NextGeneration))
		}
		s.raiseTo = from.next
		if s.state.Owned() {
			e.setAdoption(s, Reconciling)
			s.linkDownAt = e.opts.Now()
		}
		e.sessions[id] = s
		if s.lease.Workspace != "" {
			e.workspaces[s.lease.Workspace] = id
		}
		e.rooms.add(&s.lease, 1)
	}
	for id, tomb := range l.tombs {
		tombs.Insert([]byte(id), tomb)
		e.countTombstone(tomb.UID, false, true)
	}
	for key, op := range l.ops {
		ops.Insert(key.bytes(), op)
		e.countOperation(op.UID, false, true)
		s := e.sessions[op.Session]
		switch {
		case s == nil || op.Done || s.lease.Unreadable != "": // of what is not known, see orphaned
		case op.Kind == opStart:
			s.startKeys = append(s.startKeys, key)
		default:
			s.openKeys = append(s.openKeys, key)
		}
	}
	for id, s := range e.sessions {
		s.view = e.newView(s)
		sessions.Insert([]byte(id), s.view)
	}
	e.snapshot.Store(&Snapshot{
		Sessions: sessions.Commit(), Tombstones: tombs.Commit(), operations: ops.Commit(),
		Host: e.host, Rooms: maps.Clone(e.rooms), LastSeq: e.lastSeq,
	})
}

// findWorkspace gives a lease that cannot be read the directory that its session
// has all the same, so that it is neither given to another session nor left
// when this one is deleted.
func (e *Engine) findWorkspace(l *record.Lease, spec *record.Spec) {
	switch {
	case l.Workspace != "":
	case spec != nil && spec.Workspace != "":
		l.Workspace = spec.Workspace
	default:
		l.Workspace = e.opts.WorkspaceDir(l.Session)
	}
}

// findOwner gives a lease of which nothing could be read the owner of its
// workspace: what is done there must not be done as root.
func (e *Engine) findOwner(l *record.Lease) {
	if e.opts.OwnerOf == nil {
		return
	}
	if uid, gid, ok := e.opts.OwnerOf(l.Workspace); ok {
		l.UID, l.GID = uid, gid
	}
}

// start settles, in Run's first batch, what an earlier daemon has left, and
// sends out the looks that adopt its wrappers.
func (e *Engine) start() {
	e.nextRelist = e.opts.Now() + e.opts.Settings.RelistEvery
	e.nextSweep = e.opts.Now() + sweepEvery
	e.batch([]command{{class: journal.Reserved, apply: e.settleEpoch}})
	var looks []*sighting
	for _, s := range e.sessions {
		if s.state.Owned() {
			s.looking = true
			looks = append(looks, e.sight(s, false))
		}
		e.enact(s)
		e.schedule(s)
	}
	e.lookAtAll(looks, adoptWorkers, func(*sighting) bool { return true })
	e.takeInventory()
	e.launchEffects()
}

// adoptWorkers is how many sessions are looked at at once at start: the calls
// are short and mostly in the kernel, two per processor keep it busy.
const adoptWorkers = 4

// settleEpoch brings every lease into this epoch.
func (e *Engine) settleEpoch(t *tx) {
	host := e.host
	newEpoch := host.Epoch != "" && host.Epoch != e.opts.Epoch
	if host.Epoch != e.opts.Epoch || host.HostID != e.opts.HostID || host.GenerationFloor != e.floorOnDisk {
		host.Epoch, host.HostID = e.opts.Epoch, e.opts.HostID
		t.putHost(host)
	}
	for id, s := range e.sessions {
		d := t.draft(id)
		if s.raiseTo > d.state.NextGeneration {
			t.mustReduce(d, lease.Event{Kind: lease.FloorRaised, Floor: s.raiseTo})
		}
		if s.lease.Unreadable != "" && s.lease.Event == "" {
			t.put(d, "unreadable", s.lease.Unreadable)
		}
		if old := d.lease.Epoch; newEpoch || old != "" && old != e.opts.Epoch {
			if exit, known := t.e.exit(id, d.state.Instance.Generation); known { // it ended before the host did
				d.exit = &exit
			}
			t.mustReduce(d, lease.Event{Kind: lease.NewEpoch})
			t.restartClocks(d)
		}
		if d.state.WorkerOut() {
			t.mustReduce(d, lease.Event{
				Kind: lease.AttemptNotConfirmed, AttemptID: d.state.Stop.AttemptID, Error: "the daemon was restarted",
			})
		}
		t.settleStarts(d)
		if d.state.Kind == lease.Stopping {
			for _, effect := range d.state.Owed() {
				t.effects = append(t.effects, pending{s, effect})
			}
		}
	}
}

// restartClocks makes due at once what waits for a time on the boot clock of
// another epoch.
func (t *tx) restartClocks(d *draft) {
	waits := false
	debts := slices.Clone(d.lease.Debts)
	for i := range debts {
		waits = waits || debts[i].NextAt != 0
		debts[i].NextAt = 0
	}
	d.lease.Debts = debts
	if del := d.lease.Deletion; del != nil && del.NextAt != 0 {
		waits = true
		t.deletion(d, func(del *record.Deletion) { del.NextAt = 0 })
	}
	if waits {
		t.put(d, "new_epoch", "")
	}
}

// settleStarts answers start operations that were in flight when the daemon
// ended and whose start no longer is.
func (t *tx) settleStarts(d *draft) {
	if len(d.startKeys) == 0 || d.state.Kind == lease.Starting {
		return
	}
	if d.state.Owned() {
		t.finishStart(d, started(d), nil)
		return
	}
	t.finishStart(d, Started{}, refusal(codeStartFailed, true, "the daemon was restarted before the wrapper was verified"))
}
