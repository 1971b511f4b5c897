package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/daemon/internal/admit"
	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// StartRequest asks for a session to run. The api package has validated it.
type StartRequest struct {
	Caller
	// OwnerUID and OwnerGID own a session that is new.
	OwnerUID, OwnerGID uint32
	// Spec is nil to use the stored one.
	Spec *record.Spec
	// Room is the newest reading of the file system that holds the workspace,
	// Device which one that is.
	Room   admit.Room
	Device uint64
	// StateRoom is that of the state directory's file system.
	StateRoom admit.Room
}

// Started is a verified start.
type Started struct {
	Session    string `json:"session"`
	Instance   string `json:"instance"`
	Generation uint64 `json:"generation"`
	PID        int    `json:"pid"`
	AgentPID   int    `json:"agent_pid,omitempty"`
	Workspace  string `json:"workspace"`
	Provider   string `json:"provider"`
}

// Start makes the session run, or finds that it does, and returns once its
// wrapper is verified. Errors are *Refusal, but for the end of ctx or of the
// engine; the start then goes on.
func (e *Engine) Start(ctx context.Context, req StartRequest) (Started, error) {
	return ask(ctx, e, journal.Ordinary, func(t *tx, reply func(Started, error)) { t.start(&req, reply) })
}

// start decides on one request: replayed, joined, refused or allocated.
func (t *tx) start(req *StartRequest, reply func(Started, error)) {
	if !t.e.inventory {
		if len(t.e.barred) >= barredMax {
			err := refusal(codeReconciling, true, "it is not known yet what runs on this host")
			t.answer(func() { reply(Started{}, err) })
			return
		}
		t.hold(&t.e.barred, req, reply)
		t.then(t.e.unbar) // the inventory may have come in with this batch
		return
	}
	key := req.operation(opStart)
	row, err := t.claim(key, req.Digest)
	if err != nil {
		t.answer(func() { reply(Started{}, err) })
		return
	}
	if row != nil && row.Allocation == record.AllocationShared {
		err := retired("operation " + row.Key)
		t.answer(func() { reply(Started{}, err) })
		return
	}
	if row != nil && row.Done {
		t.answer(func() { reply(replay[Started](row)) })
		return
	}
	d, err := t.startable(req)
	if err == nil {
		err = t.newRow(d, row, key)
	}
	if err != nil {
		t.answer(func() { reply(Started{}, err) })
		return
	}
	switch {
	case d != nil && d.state.Kind == lease.Starting:
		t.join(d, key, req, reply)
	case d != nil && d.state.Owned() && (d.s.adoption == Reconciling || d.s.adoption == Present):
		t.hold(&d.s.parked, req, reply)
	case d != nil && d.state.Owned():
		t.running(d, key, req, reply)
	default:
		t.allocate(d, key, req, reply)
	}
}

// newRow checks what a start's row needs before it is written.
func (t *tx) newRow(d *draft, row *record.Operation, key opKey) error {
	var keys []opKey
	if d != nil {
		keys = d.startKeys
	}
	if err := t.orphaned(row, keys); err != nil {
		return err
	}
	return t.operationQuota(row, key)
}

// hold puts the request aside until the list's owner submits it again.
func (t *tx) hold(list *[]command, req *StartRequest, reply func(Started, error)) {
	c := command{
		class: journal.Ordinary,
		apply: func(t *tx) { t.start(req, reply) },
		fail:  func(err error) { reply(Started{}, err) },
	}
	t.then(func() { *list = append(*list, c) })
}

// startable returns the draft of an existing session that may be started or
// joined, nil for one that is new, or why neither is possible.
func (t *tx) startable(req *StartRequest) (*draft, error) {
	d := t.draft(req.Session)
	if d == nil {
		if tomb := t.tombstone(req.Session); tomb != nil {
			return nil, deleted(tomb)
		}
		if req.Spec == nil {
			return nil, refusal(codeNotFound, false, "session %q does not exist; start it with a command", req.Session)
		}
		return nil, nil
	}
	if !req.Any && d.lease.UID != req.UID {
		return nil, refusal(codeForbidden, false, "session %q belongs to uid %d", req.Session, d.lease.UID)
	}
	switch {
	case d.lease.Deletion != nil:
		return nil, deleting(&d.lease)
	case d.state.Cleaning():
		if d.state.Kind == lease.Quarantined {
			t.recheck(d)
		}
		return nil, t.cleanupPending(d)
	case d.spec == nil:
		return nil, refusal(codeCleanupPending, false,
			"the specification of session %q cannot be read; delete the session and start a new one", req.Session)
	case d.spec.Allocation == record.AllocationShared:
		return nil, retired("session " + d.s.id)
	case req.Spec != nil && req.Spec.Digest != d.spec.Digest:
		return nil, specConflict(req.Session, d.spec, req.Spec)
	case d.lease.Reclaim != "":
		return nil, refusal(codeCleanupPending, true, "the workspace of session %q is being given up to make room", req.Session).after(time.Second)
	case d.state.Vacant() && len(d.lease.Debts) > 0:
		return nil, refusal(codeCleanupPending, true,
			"provider %q has not released what session %q had: %s", d.lease.Debts[0].Provider, req.Session,
			orPending(d.lease.Debts[0].LastError)).after(d.lease.Debts[0].NextAt - t.now)
	}
	return d, nil
}

// retired refuses what is part of a sandbox that several sessions share. The kind
// is what the record says, never a guess.
func retired(what string) *Refusal {
	return refusal(codeAllocationRetired, false,
		"%s is of a shared allocation, which is retired: it can be stopped and deleted, and not started", what)
}

func orPending(lastError string) string {
	if lastError == "" {
		return "it is being done"
	}
	return lastError
}

// recheck makes one observation of a quarantined session: a client asks for it.
func (t *tx) recheck(d *draft) {
	_, _ = t.reduce(d, lease.Event{Kind: lease.RecheckForced}) // never refused
}

// cleanupPending says that the session's end has to be proven first.
func (t *tx) cleanupPending(d *draft) *Refusal {
	stop := d.state.Stop
	r := refusal(codeCleanupPending, true, "session %q is being stopped (%s)", d.s.id, stop.Reason)
	if d.state.Kind == lease.Quarantined {
		r = refusal(codeCleanupPending, true, "session %q is quarantined after %d stop attempts: %s",
			d.s.id, stop.Attempts, stop.LastError)
	}
	next := stop.NextAttemptAt
	if at, ok := t.e.opts.Rules.NextDeadline(d.state); ok {
		next = at
	}
	return r.after(next - t.now).with(map[string]any{
		"reason": stop.Reason.String(), "attempts": stop.Attempts, "last_error": stop.LastError,
	})
}

// join adds the caller to those that wait for the start under way.
func (t *tx) join(d *draft, key opKey, req *StartRequest, reply func(Started, error)) {
	if key.key != "" && !slices.Contains(d.startKeys, key) {
		t.putOperation(startRow(key, req, d.state.Instance.Generation))
		d.startKeys = append(slices.Clip(d.startKeys), key)
	}
	d.waiters = append(slices.Clip(d.waiters), reply)
}

// running answers with the instance that is there.
func (t *tx) running(d *draft, key opKey, req *StartRequest, reply func(Started, error)) {
	if d.s.adoption == Unknown {
		err := refusal(codeReconciling, true, "session %q has a wrapper that does not answer", d.s.id)
		t.answer(func() { reply(Started{}, err) })
		return
	}
	answer := started(d)
	if key.key != "" {
		t.putOperation(startRow(key, req, d.state.Instance.Generation))
		t.finish(key, answer, nil)
	}
	t.answer(func() { reply(answer, nil) })
}

func startRow(key opKey, req *StartRequest, generation uint64) record.Operation {
	var allocation string
	if req.Spec != nil {
		allocation = req.Spec.Allocation
	}
	return record.Operation{
		Allocation: allocation,
		UID:        key.uid, Kind: key.kind, Key: key.key, Session: req.Session,
		Digest: req.Digest, Generation: generation,
	}
}

func started(d *draft) Started {
	return Started{
		Session: d.s.id, Instance: d.state.Instance.ID, Generation: d.state.Instance.Generation,
		PID: d.lease.Wrapper.PID, AgentPID: d.lease.Wrapper.AgentPID,
		Workspace: d.lease.Workspace, Provider: d.lease.Wrapper.Provider,
	}
}

// allocate admits a new instance and puts its intent on disk; the launch
// follows as the lease's effect.
func (t *tx) allocate(d *draft, key opKey, req *StartRequest, reply func(Started, error)) {
	spec := req.Spec
	if d != nil {
		spec = d.spec
	}
	if err := t.drained(); err != nil {
		t.answer(func() { reply(Started{}, err) })
		return
	}
	if err := t.admissible(d, req, spec); err != nil {
		t.answer(func() { reply(Started{}, err) })
		return
	}
	if d != nil && (d.state.NextGeneration == 0 || d.state.NextGeneration == math.MaxUint64) {
		err := refusal(codeCleanupPending, false,
			"the generations of session %q are not known or spent; delete it and use another id", req.Session)
		t.answer(func() { reply(Started{}, err) })
		return
	}
	isNew := d == nil
	if isNew {
		if err := t.tombstoneQuota(req.OwnerUID); err != nil {
			t.answer(func() { reply(Started{}, err) })
			return
		}
		d = t.create(req.Session)
		d.state.NextGeneration = t.hostNow().GenerationFloor + 1
		d.lease.UID, d.lease.GID = req.OwnerUID, req.OwnerGID
		d.lease.Workspace = spec.Workspace
		if spec.Workspace == "" {
			d.lease.Workspace = t.e.opts.WorkspaceDir(req.Session)
		}
		t.putSpec(d, spec)
	}
	d.operation = key.key
	t.plan(d, spec, req.Device)
	instance := lease.Instance{ID: t.e.opts.NewID(), Generation: d.state.NextGeneration}
	t.place(d, instance, spec)
	if _, err := t.reduce(d, lease.Event{
		Kind: lease.Allocate, Instance: instance, AbsenceVerified: true,
		Deadline: t.now + t.e.opts.Settings.StartupTimeout,
	}); err != nil {
		panic(fmt.Sprintf("internal error: allocating %s in %s: %v", instance, d.state.Kind, err))
	}
	t.join(d, key, req, reply)
}

// plan draws the token and sets the room aside.
func (t *tx) plan(d *draft, spec *record.Spec, device uint64) {
	d.token = t.e.opts.NewID()
	d.fresh = spec.Workspace == "" && !d.lease.WorkspaceMade
	if d.lease.Preparation == nil && prepares(spec) {
		d.lease.Preparation = &record.Preparation{}
	}
	d.lease.ReservedBytes, d.lease.ReservedInodes = spec.ReserveBytes, spec.ReserveInodes
	d.lease.ReservedDevice = device
}

// place records where the instance's wrapper is to be found before it exists.
func (t *tx) place(d *draft, i lease.Instance, spec *record.Spec) {
	hash := sha256.Sum256([]byte(d.token))
	leaf, parent := t.e.opts.Leaf(d.s.id, i.Generation)
	d.lease.Wrapper = record.Wrapper{
		Since: t.now, Leaf: leaf, LeafParentInode: parent, TokenHash: hex.EncodeToString(hash[:]),
		Provider: spec.Provider, Handle: t.handle(d.s.id, i.Generation),
	}
}

// admissible checks what only the owner of all sessions can: that no other
// session has the workspace, and that there is room.
func (t *tx) admissible(d *draft, req *StartRequest, spec *record.Spec) error {
	workspace := spec.Workspace
	if workspace == "" {
		workspace = t.e.opts.WorkspaceDir(req.Session)
	}
	if other := t.workspaceUser(req.Session, workspace); other != "" {
		return refusal(codeWorkspaceInUse, false, "workspace %q is, holds or lies in that of session %q", workspace, other).
			with(map[string]any{"session": other})
	}
	state := admit.Decide(req.StateRoom, admit.Reservation{}, admit.Reservation{}, t.e.opts.Settings.StateMarks, false)
	if err := noRoom("the state directory", "state", state); err != nil {
		return err
	}
	room := t.rooms()[req.Device]
	want := admit.Reservation{Bytes: spec.ReserveBytes, Inodes: spec.ReserveInodes}
	decision := admit.Decide(req.Room, room.Reserved, want, t.e.opts.Settings.Marks, room.Low)
	t.then(func() {
		room := t.e.rooms[req.Device]
		room.Low = decision.Low
		t.e.rooms[req.Device] = room
	})
	return noRoom(fmt.Sprintf("session %q", req.Session), "workspaces", decision)
}

// noRoom is the refusal that a decision asks for, nil when it admits.
func noRoom(what, root string, d admit.Decision) error {
	switch d.Verdict {
	case admit.Admit:
		return nil
	case admit.Rejected:
		return refusal(codeCapacityRejected, true, "no room for %s: %s", what, d.Explain()).with(roomDetails(root, &d))
	default:
		return refusal(codeCapacityUnknown, true, "the room for %s is not known: %s", what, d.Explain())
	}
}

// roomDetails are a decision's numbers for programs, named as in the capacity
// method's reply where that has them.
func roomDetails(root string, d *admit.Decision) map[string]any {
	return map[string]any{
		"root":       root,
		"free_bytes": d.Room.FreeBytes, "total_bytes": d.Room.TotalBytes, "reserved_bytes": d.Outstanding.Bytes,
		"asked_bytes": d.Request.Bytes, "low_bytes": d.Mark.Bytes, "short_bytes": d.Short.Bytes,
		"free_inodes": d.Room.FreeInodes, "total_inodes": d.Room.TotalInodes, "reserved_inodes": d.Outstanding.Inodes,
		"asked_inodes": d.Request.Inodes, "low_inodes": d.Mark.Inodes, "short_inodes": d.Short.Inodes,
	}
}

// workspaceUser is another session that has the directory, one above or one
// below it, this batch's own included; empty = nobody. A directory inside of
// another's is the same checkout for two agents.
func (t *tx) workspaceUser(session, path string) string {
	for _, d := range t.order {
		if d.s.id != session && !d.gone && overlap(d.lease.Workspace, path) {
			return d.s.id
		}
	}
	for have, other := range t.e.workspaces {
		if d := t.drafts[other]; other != session && (d == nil || !d.gone) && overlap(have, path) {
			return other
		}
	}
	return ""
}

// overlap reports whether two absolute, clean paths are the same or one lies
// below the other.
func overlap(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	a, b = strings.TrimSuffix(a, "/")+"/", strings.TrimSuffix(b, "/")+"/"
	return strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
}

// finishStart tells everybody who waits for the start, and the ledger.
func (t *tx) finishStart(d *draft, answer Started, failure *Refusal) {
	for _, key := range d.startKeys {
		t.finish(key, answer, failure)
	}
	waiters := d.waiters
	d.startKeys, d.waiters = nil, nil
	t.answer(func() {
		for _, reply := range waiters {
			if failure != nil {
				reply(Started{}, failure)
			} else {
				reply(answer, nil)
			}
		}
	})
}

// failStart is finishStart for a start that has failed; nothing when none is
// under way.
func (t *tx) failStart(d *draft, failure *Refusal) {
	if d.state.Kind == lease.Starting {
		t.finishStart(d, Started{}, failure)
	}
}
