package record

import (
	"strings"
	"testing"
	"time"
)

// plainLease is an active lease of an ordinary session: 256 bytes or so.
func plainLease() Lease {
	return Lease{
		Session: "task-8813", UID: 1000, GID: 1000,
		Epoch: "6c0ad3a4-1d54-4b7d-9a09-1f6f3c1f2a10:4026531836",
		Event: "accepted", Wall: time.Unix(1_764_442_800, 123_000_000).UTC(),
		State: "active", NextGeneration: 8, Generation: 7, Instance: strings.Repeat("3f", 16),
		Wrapper: Wrapper{
			PID: 20011, StartTicks: 8_812_331, PidfdInode: 771_203,
			Leaf: "/sys/fs/cgroup/berth-0c1d2e3f4a5b/berth-task-8813-g7", LeafParentInode: 40_113,
			Provider: "process", Handle: "p-7", AgentPID: 20014, Protocol: 1,
		},
		Workspace: "/var/lib/berth/workspaces/task-8813", WorkspaceMade: true,
	}
}

func BenchmarkDecodeLease(b *testing.B) {
	body := plainLease().Append(nil)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := DecodeLease(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendLease(b *testing.B) {
	l := plainLease()
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = l.Append(dst[:0])
	}
	b.SetBytes(int64(len(dst)))
}

// Encoding allocates nothing once there is room; decoding an ordinary lease
// allocates once, for its strings.
func TestAllocations(t *testing.T) {
	l := plainLease()
	l.Stop = &Stop{Reason: "operator", LastError: strings.Repeat("e", 200)}
	dst := l.Append(nil)
	if n := testing.AllocsPerRun(100, func() { dst = l.Append(dst[:0]) }); n != 0 {
		t.Errorf("Append allocates %v times", n)
	}
	body := plainLease().Append(nil)
	if n := testing.AllocsPerRun(100, func() { _, _ = DecodeLease(body) }); n > 1 {
		t.Errorf("DecodeLease allocates %v times", n)
	}
}
