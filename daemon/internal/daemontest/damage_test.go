package daemontest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/record"
)

// frame is where one record lies in the journal, by FORMAT.md 2.2.
type frame struct {
	path       string
	off, size  int
	body       int // offset of the body
	seq        uint64
	kind       record.Type
	session    string
	generation uint64
}

// frames finds the records in the journal's log files, in order.
func (h *Host) frames(t *testing.T) []frame {
	t.Helper()
	logs, err := filepath.Glob(h.State + "/journal/*.log")
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	pad := func(n int) int { return (n + 7) &^ 7 }
	var all []frame
	for _, path := range logs {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if le.Uint32(data[16:]) != 1 { // no log at the moment
			continue
		}
		for at := 4096; at+48 <= len(data) && le.Uint32(data[at:]) == 0x63657262; {
			bodyLen, sessionLen := int(le.Uint32(data[at+16:])), int(data[at+22])
			f := frame{
				path: path, off: at, body: at + 48 + pad(sessionLen), seq: le.Uint64(data[at+24:]),
				kind: record.Type(le.Uint16(data[at+20:])), session: string(data[at+48 : at+48+sessionLen]),
				generation: le.Uint64(data[at+32:]),
			}
			f.size = f.body + pad(bodyLen) - at
			all = append(all, f)
			at += f.size
		}
	}
	slices.SortFunc(all, func(a, b frame) int { return int(a.seq) - int(b.seq) })
	return all
}

// spoil changes the bytes of a frame on disk.
func (f frame) spoil(t *testing.T, change func(frame []byte)) {
	t.Helper()
	data, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	change(data[f.off : f.off+f.size])
	if err := os.WriteFile(f.path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Ways to spoil a record.
func flipBody(f frame) func([]byte)  { return func(b []byte) { b[f.body-f.off+3] ^= 0x10 } }
func flipHeader(frame) func([]byte)  { return func(b []byte) { b[33] ^= 0x10 } } // its generation
func flipSession(frame) func([]byte) { return func(b []byte) { b[48] ^= 0x10 } }
func zeroHeader(frame) func([]byte)  { return func(b []byte) { clear(b[:48]) } }
func zeroRecord(frame) func([]byte)  { return func(b []byte) { clear(b) } }
func zeroBody(f frame) func([]byte)  { return func(b []byte) { clear(b[f.body-f.off:]) } }
func leaseOf(id string) func(f frame) bool {
	return func(f frame) bool { return f.kind == record.TypeLease && f.session == id }
}

// patient is what the damaged host runs.
type patient struct {
	*Host
	live, victim rpc.StartReply
	before       map[string]uint64 // next generation by session
}

// newPatient makes a host with a running session, an idle one, a deleted one,
// and a victim in its second generation, whose records are the journal's last;
// its daemon is dead.
func newPatient(t *testing.T) *patient {
	t.Helper()
	p := &patient{Host: running(t, ""), before: map[string]uint64{}}
	p.live = p.mustStart(t, "live", shell("exec sleep 1000"))
	p.mustStart(t, "idle", shell("exit 0"))
	p.untilVacant(t, "idle")
	p.mustStart(t, "gone", shell("exit 0"))
	p.untilVacant(t, "gone")
	p.mustDelete(t, "gone")
	p.mustStart(t, "victim", shell("exec sleep 1000"))
	p.mustStop(t, "victim")
	p.victim = p.mustStart(t, "victim", nil)
	for _, id := range []string{"live", "idle", "victim"} {
		p.before[id] = p.mustGet(t, id).NextGeneration
	}
	p.Kill()
	return p
}

// check looks, after the damage and a restart, at everything that the damage
// must not have touched.
func (p *patient) check(t *testing.T) {
	t.Helper()
	status, err := p.Client.Status(bounded(t))
	if err != nil || len(status.Journal.Recovery) == 0 {
		t.Errorf("status says nothing of the damage: %+v, %v", status.Journal, err)
	}
	p.untilAdopted(t, p.live)
	for id, next := range p.before {
		if s := p.mustGet(t, id); s.NextGeneration < next {
			t.Errorf("%s: the next generation fell from %d to %d", id, next, s.NextGeneration)
		}
	}
	if again := p.mustStart(t, "idle", nil); again.Generation < p.before["idle"] {
		t.Errorf("idle runs generation %d again, the next was %d", again.Generation, p.before["idle"])
	}
	fresh := p.mustStart(t, "fresh", shell("exit 0"))
	if strings.Contains(strings.Join(status.Journal.Recovery, "\n"), "generations were raised") && fresh.Generation < 2 {
		t.Errorf("a new session got generation %d although records may be lost", fresh.Generation)
	}
	p.untilVacant(t, "fresh")
	p.mustDelete(t, "fresh")
}

// explained expects the session to be quarantined, to say why, and to be
// started by nobody.
func (p *patient) explained(t *testing.T, id string) {
	t.Helper()
	s := p.mustGet(t, id)
	if s.State != "quarantined" || !strings.Contains(s.Problem, "cannot be read") {
		t.Fatalf("%s is %+v", id, s)
	}
	e, err := p.Client.Explain(bounded(t), id)
	if err != nil || len(e.Notes) == 0 || !strings.Contains(strings.Join(e.Notes, "\n"), "cannot be read") {
		t.Errorf("explain says %+v, %v", e, err)
	}
	_, err = p.Client.Start(bounded(t), id, rpc.StartRequest{})
	refused(t, err, rpc.CodeCleanupPending)
}

// adopt is the operator's decision.
func (p *patient) adopt(t *testing.T, id string) {
	t.Helper()
	_, err := p.Client.Resolve(bounded(t), id, rpc.ResolveRequest{Action: "adopt", Verified: true, Why: "the test has looked"})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDamage: a record is damaged on disk. The daemon starts; what can be told
// is quarantined and explained, no generation falls, the others work, and the
// victim can be brought back or deleted.
// case T42, E8, B12, A8, A9, C10
func TestDamage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		spoil       func(frame) func([]byte)
		middle      bool // else the victim's last lease record
		quarantined bool
	}{
		{"last body flipped", flipBody, false, true},
		{"last body zeroed", zeroBody, false, true},
		{"last header flipped", flipHeader, false, false},
		{"last session flipped", flipSession, false, false},
		{"last record zeroed", zeroRecord, false, false},
		{"middle body flipped", flipBody, true, false},
		{"middle header zeroed", zeroHeader, true, false},
		{"middle record zeroed", zeroRecord, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			var leases []frame
			for _, f := range p.frames(t) {
				if leaseOf("victim")(f) {
					leases = append(leases, f)
				}
			}
			victim := leases[len(leases)-1]
			if c.middle {
				victim = leases[len(leases)/2]
			}
			victim.spoil(t, c.spoil(victim))
			p.Start()
			if c.quarantined {
				p.explained(t, "victim")
				p.check(t)
				p.adopt(t, "victim") // its wrapper lives: the operator gives it back
			} else {
				p.check(t)
			}
			p.untilAdopted(t, p.victim)
			p.mustDelete(t, "victim")
			_, err := p.Client.Start(bounded(t), "gone", rpc.StartRequest{Spec: shell("exit 0")})
			refused(t, err, rpc.CodeSessionDeleted)
		})
	}
}

// TestDamagedTombstone: the id of a deleted session is not free because its
// tombstone cannot be read. case T42, B12
func TestDamagedTombstone(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	all := p.frames(t)
	i := slices.IndexFunc(all, func(f frame) bool { return f.kind == record.TypeTombstone && f.session == "gone" })
	if i < 0 {
		t.Fatal("there is no tombstone")
	}
	all[i].spoil(t, flipBody(all[i]))
	p.Start()
	// The lease before it speaks of the deletion, which is done again: absence is
	// proven once more, and the tombstone written.
	p.Until("the id is spent again", patience, func() error {
		_, err := p.Client.Get(bounded(t), "gone")
		if refused(t, err, rpc.CodeSessionDeleted, rpc.CodeDeleting).Code == rpc.CodeDeleting {
			return err
		}
		return nil
	})
	e, err := p.Client.Explain(bounded(t), "gone")
	if err != nil || e.Tombstone == nil || e.Tombstone.LastGeneration < 1 {
		t.Errorf("explain says %+v, %v", e, err)
	}
	p.check(t)
	p.untilAdopted(t, p.victim)
}

// TestUndecodableLease: the record is whole and its content is of no version
// that is known. case T42, T06, A8
func TestUndecodableLease(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.doctor(t, "victim", func(l *leaseRecord) { l.State = "a state of the future" })
	p.Start()
	p.explained(t, "victim")
	p.untilAdopted(t, p.live)
	if _, err := p.Client.Delete(bounded(t), "victim", rpc.DeleteRequest{Discard: true}); err != nil {
		t.Fatal(err) // accepted; its wrapper lives, so only the operator can let it end
	}
	p.adopt(t, "victim")
	p.mustDelete(t, "victim")
}

// TestTornTail: what was half written when the daemon died was never
// acknowledged; it is dropped, and that is said. case E8, T43
func TestTornTail(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]int{"half a header": 20, "half a body": 60} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			all := p.frames(t)
			last := all[len(all)-1]
			data, err := os.ReadFile(last.path)
			if err != nil {
				t.Fatal(err)
			}
			copy(data[last.off+last.size:], data[last.off:last.off+part])
			if err := os.WriteFile(last.path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			p.Start()
			p.untilAdopted(t, p.victim)
			p.check(t)
			for id, next := range p.before {
				if s := p.mustGet(t, id); id != "idle" && s.NextGeneration != next {
					t.Errorf("%s: nothing was lost and the next generation rose from %d to %d", id, next, s.NextGeneration)
				}
			}
		})
	}
}

// TestJournalVerify: berthctl tells the same of the damage, beside a running
// daemon and without one.
func TestJournalVerify(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	all := p.frames(t)
	i := slices.IndexFunc(all, leaseOf("idle"))
	all[i].spoil(t, flipBody(all[i]))
	for _, running := range []bool{false, true} {
		if running {
			p.Start()
		}
		code, out := p.ctl(t, "journal", "verify", "--state-dir", p.State)
		if code == 0 || !strings.Contains(out, "idle") || !strings.Contains(out, fmt.Sprint(all[i].off)) {
			t.Errorf("running %v: code %d, %s", running, code, out)
		}
	}
	if !bytes.Contains([]byte(p.Log()), []byte("idle")) {
		t.Errorf("the daemon's log does not name the session:\n%s", p.Log())
	}
}
