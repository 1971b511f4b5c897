package daemontest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/record"
)

// TestAdoptWithoutRecord: every record of a running session is damaged. Its wrapper
// is adopted by its process alone, is the session's again over a restart, and
// belongs to the user whose workspace it is; then it is deleted. case T42, A8
func TestAdoptWithoutRecord(t *testing.T) {
	t.Parallel()
	needRoot(t)
	p := newPatient(t)
	for _, f := range p.frames(t) {
		if f.session == "victim" && (f.kind == record.TypeLease || f.kind == record.TypeSpec) {
			f.spoil(t, flipBody(f))
		}
	}
	p.Start()
	p.explained(t, "victim")
	if s := p.mustGet(t, "victim"); s.UID != Nobody {
		t.Errorf("the session belongs to uid %d", s.UID)
	}
	p.check(t)
	p.adopt(t, "victim")
	p.untilAdopted(t, p.victim)
	if s := p.mustGet(t, "victim"); s.Problem != "" {
		t.Errorf("an adopted session has the problem %q", s.Problem)
	}
	p.Kill()
	p.Start()
	p.untilAdopted(t, p.victim)
	p.mustDelete(t, "victim")
}

// TestProviderGone: a provider is taken out of the configuration while it still
// owes something. The session's deletion waits, says why and what would end that,
// goes on when the provider is back, or when an operator gives the debt up, which
// its tombstone tells for as long as it stays. case C10, C5
func TestProviderGone(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	const gone = "a provider that was removed"
	owe := func(l *leaseRecord) {
		l.Debts = append(l.Debts, record.Debt{Provider: gone, Handle: "some-handle", Generation: 1})
	}
	for _, id := range []string{"start", "delete"} {
		h.mustStart(t, id, shell("exit 0"))
		h.untilVacant(t, id)
		h.Until("nothing is owed for "+id, patience, func() error {
			e, err := h.Client.Explain(bounded(t), id)
			if err == nil && len(e.Debts) > 0 {
				err = fmt.Errorf("%v", e.Debts)
			}
			return err
		})
	}
	h.Kill()
	h.doctor(t, "start", owe)
	h.doctor(t, "delete", owe)
	h.Start()
	h.deleteNow(t, "delete")
	h.Until("the debt is explained", patience, func() error {
		for _, id := range []string{"start", "delete"} {
			e, err := h.Client.Explain(bounded(t), id)
			if err != nil {
				return err
			}
			if notes := strings.Join(e.Notes, "\n"); !strings.Contains(notes, "lease resolve "+id+" --abandon") || !strings.Contains(e.Debts[0], "not_configured") {
				return fmt.Errorf("explain says %q, %q", notes, e.Debts)
			}
		}
		return nil
	})
	_, err := h.Client.Start(bounded(t), "start", rpc.StartRequest{})
	refused(t, err, rpc.CodeCleanupPending)
	for _, id := range []string{"start", "delete"} {
		if code, out := h.ctl(t, "lease", "resolve", id, "--abandon", "--i-verified", "--why", "looked at the host of "+id); code != 0 {
			t.Fatalf("berthctl lease resolve: %d, %s", code, out)
		}
	}
	h.mustStart(t, "start", nil)
	h.goesAway(t, "delete")
	h.Kill() // what was given up is remembered
	h.Start()
	e, err := h.Client.Explain(bounded(t), "delete")
	if err != nil || e.Tombstone == nil || len(e.Tombstone.Abandoned) != 1 {
		t.Fatalf("explain says %+v, %v", e, err)
	}
	for _, want := range []string{gone, "some-handle", "looked at the host of delete", "uid "} {
		if !strings.Contains(e.Tombstone.Abandoned[0], want) {
			t.Errorf("the tombstone says %q, not %q", e.Tombstone.Abandoned[0], want)
		}
	}
	if e, err := h.Client.Explain(bounded(t), "start"); err != nil || !strings.Contains(strings.Join(e.Notes, "\n"), "looked at the host of start") {
		t.Errorf("explain says %+v, %v", e, err)
	}
}

// TestAbandonedTombstone: the lease of a session cannot be read; an operator gives
// it up, although it lives. A deletion stops it all the same, and the tombstone
// says who gave it up, and why. case C10
func TestAbandonedTombstone(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := running(t, "")
	started := h.mustStart(t, "s", shell("exec sleep 1000"))
	h.Kill()
	h.doctor(t, "s", func(l *leaseRecord) { l.State = "a state of the future" })
	h.Start()
	if _, err := h.Client.Resolve(bounded(t), "s", rpc.ResolveRequest{Action: "abandon", Verified: true, Why: "it is nowhere"}); err != nil {
		t.Fatal(err)
	}
	tomb := h.mustDelete(t, "s")
	if len(tomb.Abandoned) != 1 || !strings.Contains(tomb.Abandoned[0], "it is nowhere") || !strings.Contains(tomb.Abandoned[0], "uid ") {
		t.Errorf("the tombstone is %+v", tomb)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", started.AgentPID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the agent of a deleted session: %v", err)
	}
}

// goesAway waits until a deletion that was asked for has ended.
func (h *Host) goesAway(t *testing.T, id string) {
	t.Helper()
	h.Until(id+" is deleted", patience, func() error {
		_, err := h.Client.Get(bounded(t), id)
		if isGone(err) {
			return nil
		}
		return fmt.Errorf("getting it: %w", err)
	})
}
