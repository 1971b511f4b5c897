package daemontest

import (
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/record"
)

// TestRetiredAllocation: sessions of shared allocations, which older software has
// recorded, are adopted, listed, stopped and deleted, and never started; so are
// recorded operations never replayed. A default that is saved falls through. What
// counts is the record, not what an id looks like.
func TestRetiredAllocation(t *testing.T) {
	t.Parallel()
	h := New(t, Options{Config: quickStops + "[sessions]\nallocation = \"shared\"\n" + strings.TrimPrefix(Sessions(), "[sessions]\n") + "grace = \"300ms\"\n"})
	h.Start()
	spec := shell("exec sleep 1000")
	live := h.mustStart(t, "live", spec)
	h.mustStart(t, "idle", spec)
	h.mustStop(t, "idle")
	start := rpc.StartRequest{Key: "recorded", Spec: spec}
	h.mustStartAs(t, "operated", start)
	h.mustStop(t, "operated")
	h.Kill()
	share := func(s *record.Spec) { s.Allocation = record.AllocationShared }
	h.doctorSpec(t, "live", share)
	h.doctorSpec(t, "idle", share)
	h.doctorOperation(t, "recorded", func(o *record.Operation) { o.Allocation = record.AllocationShared })
	h.Start()

	h.untilAdopted(t, live)
	listed := map[string]string{}
	list, err := h.Client.List(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Sessions {
		listed[s.Session] = s.Allocation
	}
	if listed["live"] != "shared" || listed["idle"] != "shared" || listed["operated"] != "" {
		t.Errorf("listed are %v", listed)
	}
	for _, id := range []string{"live", "idle"} {
		for _, req := range []rpc.StartRequest{{}, {Spec: spec}, {Key: "new " + id}} {
			_, err := h.Client.Start(bounded(t), id, req)
			refused(t, err, rpc.CodeAllocationRetired)
		}
		if e, err := h.Client.Explain(bounded(t), id); err != nil || !strings.Contains(strings.Join(e.Notes, "\n"), "retired") {
			t.Errorf("explain says %+v, %v", e.Notes, err)
		}
	}
	_, err = h.Client.Start(bounded(t), "operated", start)
	refused(t, err, rpc.CodeAllocationRetired)
	h.mustStartAs(t, "operated", rpc.StartRequest{Key: "another", Spec: spec})
	asked := shell("exec sleep 1000")
	asked.Allocation = "shared"
	_, err = h.Client.Start(bounded(t), "asked", rpc.StartRequest{Spec: asked})
	refused(t, err, rpc.CodeAllocationRetired)
	_, err = h.Client.Get(bounded(t), "asked")
	refused(t, err, rpc.CodeNotFound)
	asked.Allocation = "dedicated"
	h.mustStart(t, "shared-allocation", asked)

	h.mustStop(t, "live")
	for _, id := range []string{"live", "idle"} {
		h.mustDelete(t, id)
	}
}
