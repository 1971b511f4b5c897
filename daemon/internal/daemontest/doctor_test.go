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
