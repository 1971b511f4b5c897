package daemontest

import (
	"testing"

	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

type (
	leaseRecord = record.Lease
	hostRecord  = record.Host
)

// doctor appends, while the daemon is down, a changed value of a session's
// lease to the journal.
func (h *Host) doctor(t *testing.T, session string, change func(*leaseRecord)) {
	t.Helper()
	var l leaseRecord
	h.journal(t, func(r journal.Record) (err error) {
		if record.Type(r.Type) == record.TypeLease && r.Session == session {
			l, err = record.DecodeLease(r.Body)
		}
		return err
	}, func() journal.Entry {
		if l.Session == "" {
			t.Fatalf("the journal has no lease of %s", session)
		}
		change(&l)
		return journal.Entry{
			Type: uint16(record.TypeLease), Session: session, Generation: l.NextGeneration, Body: l.Append(nil),
		}
	})
}

// doctorHost does the same with the host's facts.
func (h *Host) doctorHost(t *testing.T, change func(*hostRecord)) {
	t.Helper()
	var host hostRecord
	h.journal(t, func(r journal.Record) (err error) {
		if record.Type(r.Type) == record.TypeHost {
			host, err = record.DecodeHost(r.Body)
		}
		return err
	}, func() journal.Entry {
		change(&host)
		return journal.Entry{Type: uint16(record.TypeHost), Generation: host.GenerationFloor, Body: host.Append(nil)}
	})
}

// doctorSpec does the same with a session's specification.
func (h *Host) doctorSpec(t *testing.T, session string, change func(*record.Spec)) {
	t.Helper()
	var s record.Spec
	var generation uint64
	h.journal(t, func(r journal.Record) (err error) {
		if record.Type(r.Type) == record.TypeSpec && r.Session == session {
			s, err = record.DecodeSpec(r.Body)
			generation = r.Generation
		}
		return err
	}, func() journal.Entry {
		change(&s)
		return journal.Entry{Type: uint16(record.TypeSpec), Session: session, Generation: generation, Body: s.Append(nil)}
	})
}

// doctorOperation does the same with the ledger's row of a key.
func (h *Host) doctorOperation(t *testing.T, key string, change func(*record.Operation)) {
	t.Helper()
	var op record.Operation
	h.journal(t, func(r journal.Record) error {
		if record.Type(r.Type) != record.TypeOperation {
			return nil
		}
		o, err := record.DecodeOperation(r.Body)
		if err == nil && o.Key == key {
			op = o
		}
		return err
	}, func() journal.Entry {
		if op.Key == "" {
			t.Fatalf("the journal has no operation of key %s", key)
		}
		change(&op)
		return journal.Entry{Type: uint16(record.TypeOperation), Session: op.Session, Generation: op.Generation, Body: op.Append(nil)}
	})
}

// journal replays the journal and appends what entry then makes.
func (h *Host) journal(t *testing.T, replay func(journal.Record) error, entry func() journal.Entry) {
	t.Helper()
	if h.Running() {
		t.Fatal("the daemon still runs")
	}
	j, _, err := journal.Open(h.State+"/journal", journal.Options{}, replay)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(journal.Ordinary, entry()); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}
