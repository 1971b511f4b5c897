package engine

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/statefs/record"
)

// newID makes a random id of 32 hex digits.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return hex.EncodeToString(b[:])
}

// putState writes a lease state into its record. The two are separate so that
// the lease package stays pure and the format stays put.
func putState(r *record.Lease, s lease.State) {
	r.State = s.Kind.String()
	r.NextGeneration = s.NextGeneration
	r.Instance, r.Generation = s.Instance.ID, s.Instance.Generation
	r.Reuse, r.Deadline = s.Reuse, s.Deadline
	r.Frozen, r.FrozenAt, r.LinkLostAt = s.Frozen, s.FrozenAt, s.LinkLostAt
	r.Stop = nil
	if s.Cleaning() {
		r.Stop = &record.Stop{
			Instance: s.Stop.Target.Instance.ID, Generation: s.Stop.Target.Instance.Generation,
			Reason: s.Stop.Reason.String(), RequestedAt: s.Stop.RequestedAt,
			NextAttemptAt: s.Stop.NextAttemptAt, Attempts: s.Stop.Attempts,
			LastError: s.Stop.LastError, AttemptID: s.Stop.AttemptID,
			AttemptStart: s.Stop.AttemptStartedAt, AttemptDeadline: s.Stop.AttemptDeadline,
			JoinBy: s.Stop.JoinBy, Stuck: s.Stop.Stuck, ExhaustedAt: s.Stop.ExhaustedAt, NextRecheckAt: s.Stop.NextRecheckAt,
			By: s.Stop.By, Why: s.Stop.Why,
		}
	}
}

// parseState is putState backwards. A record that names an unknown state or
// reason is unreadable, not vacant.
func parseState(r *record.Lease) (lease.State, error) {
	kind, err := lease.ParseKind(r.State)
	if err != nil {
		return lease.State{}, fmt.Errorf("decoding lease of %q: %w", r.Session, err)
	}
	s := lease.State{
		Kind: kind, NextGeneration: r.NextGeneration,
		Instance: lease.Instance{ID: r.Instance, Generation: r.Generation},
		Reuse:    r.Reuse, Deadline: r.Deadline, Frozen: r.Frozen, FrozenAt: r.FrozenAt,
		LinkLostAt: r.LinkLostAt,
	}
	if !s.Cleaning() {
		return s, s.Check()
	}
	if r.Stop == nil {
		return lease.State{}, fmt.Errorf("decoding lease of %q: state %s without a stop", r.Session, r.State)
	}
	reason, err := lease.ParseReason(r.Stop.Reason)
	if err != nil {
		return lease.State{}, fmt.Errorf("decoding lease of %q: %w", r.Session, err)
	}
	s.Stop = lease.Stop{
		Target: lease.Target{Instance: lease.Instance{ID: r.Stop.Instance, Generation: r.Stop.Generation}},
		Reason: reason, RequestedAt: r.Stop.RequestedAt, NextAttemptAt: r.Stop.NextAttemptAt,
		Attempts: r.Stop.Attempts, LastError: r.Stop.LastError, AttemptID: r.Stop.AttemptID,
		AttemptStartedAt: r.Stop.AttemptStart, AttemptDeadline: r.Stop.AttemptDeadline,
		JoinBy: r.Stop.JoinBy, Stuck: r.Stop.Stuck, ExhaustedAt: r.Stop.ExhaustedAt, NextRecheckAt: r.Stop.NextRecheckAt,
		By: r.Stop.By, Why: r.Stop.Why,
	}
	return s, s.Check()
}
