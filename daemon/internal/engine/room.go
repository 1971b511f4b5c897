package engine

import (
	"maps"

	"github.com/berthd/berth/daemon/internal/admit"
	"github.com/berthd/berth/statefs/record"
)

// DeviceRoom is what is set aside on one file system.
type DeviceRoom struct {
	Reserved admit.Reservation
	// Low: admission there is in the low state, see admit.Decision.
	Low bool
}

// rooms sums reservations by file system: what fills one must not refuse
// sessions on another.
type rooms map[uint64]DeviceRoom

// move replaces what one lease has set aside by what another has.
func (r rooms) move(from, to *record.Lease) {
	r.add(from, ^uint64(0))
	r.add(to, 1)
}

// add adds a lease's reservation once, or takes it away with the factor -1.
func (r rooms) add(l *record.Lease, factor uint64) {
	if l.ReservedBytes == 0 && l.ReservedInodes == 0 {
		return
	}
	d := r[l.ReservedDevice]
	d.Reserved.Bytes += factor * l.ReservedBytes
	d.Reserved.Inodes += factor * l.ReservedInodes
	r[l.ReservedDevice] = d
}

// rooms is what is set aside, this batch's own included.
func (t *tx) rooms() rooms {
	r := maps.Clone(t.e.rooms)
	for _, d := range t.order {
		r.move(&d.s.lease, &d.lease)
	}
	return r
}
