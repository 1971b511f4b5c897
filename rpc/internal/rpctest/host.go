package rpctest

import (
	"context"

	"github.com/berthd/berth/rpc"
)

// Capacity answers with one root.
func (s *Service) Capacity(_ context.Context, p rpc.Peer) (rpc.CapacityReply, error) {
	return rpc.CapacityReply{Roots: []rpc.Root{{
		Name: "workspaces", Path: "/var/lib/berth/workspaces", Known: true,
		FreeBytes: 40 << 30, TotalBytes: 100 << 30, FreeInodes: 5_000_000, TotalInodes: 6_000_000,
		ReservedBytes: 1 << 30, ReservedInodes: 20_000, LowBytes: 5 << 30, LowInodes: 300_000, AgeSeconds: 1.5,
	}}}, s.enter("capacity", p, "")
}

// GC answers with one workspace of each sort.
func (s *Service) GC(_ context.Context, p rpc.Peer) (rpc.GCReply, error) {
	hour := 3600.0
	return rpc.GCReply{Enabled: true, AfterSeconds: 1200, Workspaces: []rpc.Eligibility{
		{Session: "old", Path: "/var/lib/berth/workspaces/old", Eligible: true, ReleasedSeconds: &hour},
		{Session: "work", Path: "/var/lib/berth/workspaces/work", WhyNot: []string{"it has untracked files"}, ReleasedSeconds: &hour, Holds: "1 untracked file or directory: x"},
	}}, s.enter("gc", p, "")
}

// Scan answers with one stray.
func (s *Service) Scan(_ context.Context, p rpc.Peer) (rpc.ScanReply, error) {
	return rpc.ScanReply{
		Processes: []rpc.Process{{PID: 4242, UID: 1000, Comm: "claude", Kind: "legacy", Detail: "argv: --berth-old"}},
		Scanned:   312, TookMillis: 2.8,
	}, s.enter("scan", p, "")
}

// Providers answers with two, one of them broken.
func (s *Service) Providers(_ context.Context, p rpc.Peer) (rpc.ProvidersReply, error) {
	return rpc.ProvidersReply{Providers: []rpc.Provider{
		{Kind: "process", Version: "1.0.0", State: "ready", PID: 3001, Capabilities: []string{"terminal", "limits_pids"}, Since: s.At},
		{Kind: "runc", State: "degraded", Restarts: 5, LastError: "exit status 3", Since: s.At},
	}}, s.enter("providers", p, "")
}

// Status answers as a healthy daemon.
func (s *Service) Status(_ context.Context, p rpc.Peer) (rpc.StatusReply, error) {
	if err := s.enter("status", p, ""); err != nil {
		return rpc.StatusReply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	reply := rpc.StatusReply{
		Version: "1.0.0", HostID: "0123456789abcdef0123456789abcdef", Epoch: "b00t:4026531836", PID: 3000, StartedAt: s.At,
		State: "ready", Cgroup: "v2", CgroupPath: "/sys/fs/cgroup/berth-0123456789ab", Evidence: "strong", Leaves: "scope",
		Sessions: map[string]int{}, Adoption: map[string]int{}, StateDir: "/var/lib/berth",
		Journal: rpc.JournalStatus{Healthy: true, LastSeq: 42, Commits: 40, Records: 42, LastFsyncMicros: 97},
	}
	for _, x := range s.sessions {
		if x.tomb == nil {
			reply.Sessions[x.State]++
		}
	}
	return reply, nil
}

// Version answers with fixed versions.
func (s *Service) Version(_ context.Context, p rpc.Peer) (rpc.VersionReply, error) {
	return rpc.VersionReply{Version: "1.0.0", Go: "go1.26", API: rpc.APIVersion, Wrapper: 1, Contract: 1}, s.enter("version", p, "")
}
