package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/statefs/cgroupfs"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// ResolveRequest is the operator's decision on what berth cannot settle: a
// quarantined session, or one whose provider does not release what it has.
type ResolveRequest struct {
	Caller
	Adopt bool // otherwise abandon
	Why   string
	// Found is the wrapper that is to be adopted.
	Found Found
}

// Found is a wrapper that runs, as far as its host tells of it.
type Found struct {
	Instance lease.Instance
	// Process is the wrapper's, the zero Identity when it could not be told
	// apart from what it runs. LeafName is empty where there is none.
	Process  sys.Identity
	LeafName string
}

// Resolve carries out the operator's decision and returns the answer, the
// recorded one for a repeat.
func (e *Engine) Resolve(ctx context.Context, req ResolveRequest) ([]byte, error) {
	return ask(ctx, e, journal.Reserved, func(t *tx, reply func([]byte, error)) {
		answer, err := t.resolveOnce(&req)
		t.answer(func() { reply(answer, err) })
	})
}

func (t *tx) resolveOnce(req *ResolveRequest) ([]byte, error) {
	key := req.operation(opResolve)
	row, err := t.claim(key, req.Digest)
	if err != nil {
		return nil, err
	}
	if row != nil {
		return replay[json.RawMessage](row)
	}
	d, err := t.own(req.Session, req.UID, req.Any)
	if err != nil {
		return nil, err
	}
	d.operation = key.key
	if err := t.resolve(d, req); err != nil {
		return nil, err
	}
	answer := t.e.opts.Answer(opResolve, Ending{View: &View{Lease: d.lease, State: d.state, Spec: d.spec}})
	if key.key != "" {
		t.putOperation(record.Operation{
			UID: key.uid, Kind: key.kind, Key: key.key, Session: req.Session, Digest: req.Digest, Done: true, Result: answer,
		})
	}
	return answer, nil
}

func (t *tx) resolve(d *draft, req *ResolveRequest) error {
	switch {
	case req.Adopt:
		return t.adopt(d, req)
	case d.state.Vacant() && len(d.lease.Debts) > 0:
		return t.abandonDebts(d, req)
	}
	before := d.lease
	d.lease.Abandoned = given(d.lease.Abandoned, "the lease", req)
	if _, err := t.reduce(d, lease.Event{Kind: lease.Abandon, By: req.By, Why: req.Why}); err != nil {
		d.lease = before
		return unresolved(req, err)
	}
	return nil
}

func unresolved(req *ResolveRequest, err error) error {
	return refusal(codeInvalid, false, "session %q cannot be resolved: %v", req.Session, err).because(err)
}

// adopt makes a wrapper that runs the session's own again.
func (t *tx) adopt(d *draft, req *ResolveRequest) error {
	before := d.lease
	t.describe(d, &req.Found)
	d.lease.Unreadable = ""
	if _, err := t.reduce(d, lease.Event{
		Kind: lease.Adopt, By: req.By, Why: req.Why,
		Instance: req.Found.Instance, Observed: []lease.Instance{req.Found.Instance},
	}); err != nil {
		d.lease = before
		return unresolved(req, err)
	}
	t.then(func() {
		t.e.setAdoption(d.s, Reconciling)
		d.s.linkDownAt = t.now // from here on its silence counts
	})
	if d.lease.Deletion != nil { // what was found can be stopped now
		t.requestStop(d, lease.SessionDelete, lease.Target{}, req.By, req.Why, "")
	}
	return nil
}

// describe writes down what is known of an adopted wrapper. What the lease has of
// another instance, or nothing, is replaced. The hash of the token is then not
// known: the process stands for itself until it has said hello, see hello.
func (t *tx) describe(d *draft, f *Found) {
	w := &d.lease.Wrapper
	if handle := t.handle(d.s.id, f.Instance.Generation); w.Handle != handle {
		provider := w.Provider
		if d.spec != nil {
			provider = d.spec.Provider
		}
		*w = record.Wrapper{Provider: provider, Handle: handle}
	}
	if f.LeafName != "" {
		w.Leaf, w.LeafParentInode = t.e.opts.LeafAt(f.LeafName)
	}
	if p := f.Process; p.PID != 0 {
		w.PID, w.StartTicks, w.PidfdInode, w.BootID = p.PID, p.StartTicks, p.PidfdInode, p.BootID
	}
}

// handle is the name of an instance's sandbox.
func (t *tx) handle(session string, generation uint64) string {
	return t.e.opts.HostID[:12] + "-" + cgroupfs.LeafName(session, generation)
}

// abandonDebts gives up what a provider does not release. One that still does so
// is waited for.
func (t *tx) abandonDebts(d *draft, req *ResolveRequest) error {
	kept := slices.Clone(d.lease.Debts)
	abandoned := d.lease.Abandoned
	kept = slices.DeleteFunc(kept, func(debt record.Debt) bool {
		if debt.LastError == "" {
			return false
		}
		what := fmt.Sprintf("the release of %s by provider %s (%d tries, last error %q)", debt.Handle, debt.Provider, debt.Attempts, debt.LastError)
		abandoned = given(abandoned, what, req)
		return true
	})
	if len(kept) == len(d.lease.Debts) {
		return refusal(codeCleanupPending, true, "the provider of session %q has not been asked yet", req.Session).after(retryFirst)
	}
	d.lease.Debts, d.lease.Abandoned = kept, abandoned
	t.put(d, lease.Abandon.String(), abandoned[len(abandoned)-1])
	return nil
}

// abandonedMax is how many decisions a lease keeps, the newest.
const abandonedMax = 8

// given adds a decision to what an operator has given up.
func given(list []string, what string, req *ResolveRequest) []string {
	list = append(slices.Clone(list), truncate(fmt.Sprintf("%s was given up by %s: %s", what, req.By, req.Why), detailMax))
	return list[max(0, len(list)-abandonedMax):]
}
