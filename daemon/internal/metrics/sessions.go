package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/berthd/berth/daemon/internal/engine"
)

// hostSums is what one walk over all sessions adds up.
type hostSums struct {
	leases        map[[2]string]int // by state and provider
	adoptions     map[string]int
	deleting      int
	debts         int
	lostBytes     uint64
	journalMissed uint64
}

func sum(s *engine.Snapshot) hostSums {
	h := hostSums{leases: map[[2]string]int{}, adoptions: map[string]int{}}
	s.Sessions.Root().Walk(func(_ []byte, v *engine.View) bool {
		provider := v.Lease.Wrapper.Provider
		if provider == "" && v.Spec != nil {
			provider = v.Spec.Provider
		}
		h.leases[[2]string{v.State.Kind.String(), provider}]++
		if v.Adoption != "" {
			h.adoptions[string(v.Adoption)]++
		}
		if v.Lease.Deletion != nil {
			h.deleting++
		}
		h.debts += len(v.Lease.Debts)
		h.lostBytes += v.Status.DroppedBytes
		h.journalMissed += v.Status.JournalDropped
		return false
	})
	return h
}

func (s *Sources) sessions(p *page) {
	snapshot := s.Snapshot()
	h := sum(snapshot)
	p.gauge("berth_leases", "Sessions by the state of their lease and their provider.")
	for _, k := range slices.SortedFunc(maps.Keys(h.leases), func(a, b [2]string) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	}) {
		p.add(float64(h.leases[k]), "state", k[0], "provider", k[1])
	}
	p.gauge("berth_adoptions", "Sessions by how far the daemon has got with the wrapper of an earlier one.")
	for _, k := range slices.Sorted(maps.Keys(h.adoptions)) {
		p.add(float64(h.adoptions[k]), "state", k)
	}
	p.gauge("berth_settled", "1 once every wrapper of an earlier daemon is adopted, gone or given up.")
	p.add(number(snapshot.Settled))
	p.gauge("berth_draining", "1 while the host is drained and starts nothing.")
	p.add(number(snapshot.Host.Draining))
	p.gauge("berth_deletions", "Sessions whose deletion was asked for and is not done.")
	p.add(float64(h.deleting))
	p.gauge("berth_provider_debts", "Sandboxes that their provider has not released yet.")
	p.add(float64(h.debts))
	p.gauge("berth_tombstones", "Deleted sessions that are remembered.")
	p.add(float64(snapshot.Tombstones.Len()))
	p.gauge("berth_output_lost_bytes", "Output of running agents that could not be kept.")
	p.add(float64(h.lostBytes))
	p.gauge("berth_output_journal_missed", "Lines of running agents that journald did not take; the spool has them.")
	p.add(float64(h.journalMissed))
	p.gauge("berth_reserved_bytes", "Room that is set aside, by the device that holds the workspaces.")
	devices := slices.Sorted(maps.Keys(snapshot.Rooms))
	for _, d := range devices {
		p.add(float64(snapshot.Rooms[d].Reserved.Bytes), "device", strconv.FormatUint(d, 10))
	}
	p.gauge("berth_reserved_inodes", "Inodes that are set aside, by the device that holds the workspaces.")
	for _, d := range devices {
		p.add(float64(snapshot.Rooms[d].Reserved.Inodes), "device", strconv.FormatUint(d, 10))
	}
}
