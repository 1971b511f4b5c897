package api

import (
	"context"
	"os"
	"runtime"
	"time"

	"github.com/berthd/berth/daemon/internal/admit"
	"github.com/berthd/berth/daemon/internal/discover"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs"
)

// scanBound bounds a scan that a client asks for.
const scanBound = 30 * time.Second

// APIVersion is the version of the operators' protocol.
const APIVersion = 1

func roomOf(s statefs.Space) admit.Room {
	return admit.Room{
		FreeBytes: s.FreeBytes, TotalBytes: s.TotalBytes,
		FreeInodes: s.FreeInodes, TotalInodes: s.TotalInodes,
		Age: s.Age, Known: true,
	}
}

// Capacity measures every root.
func (a *API) Capacity(ctx context.Context, _ rpc.Peer) (rpc.CapacityReply, error) {
	snapshot, tuning := a.opts.Engine.Snapshot(), a.tuning.Load()
	return rpc.CapacityReply{Roots: []rpc.Root{
		a.root(ctx, "workspaces", a.opts.Dir.Workspaces(), tuning.Marks, snapshot.Rooms),
		a.root(ctx, "state", a.opts.Dir.Path(), tuning.StateMarks, nil),
	}}, nil
}

func (a *API) root(ctx context.Context, name, path string, marks admit.Marks, rooms map[uint64]engine.DeviceRoom) rpc.Root {
	root := rpc.Root{Name: name, Path: path}
	ctx, cancel := bound(ctx, spaceBound)
	defer cancel()
	space, err := a.opts.Space.Probe(ctx, path)
	if err != nil {
		root.Error = err.Error()
		return root
	}
	room := rooms[space.Device]
	root.ReservedBytes, root.ReservedInodes = room.Reserved.Bytes, room.Reserved.Inodes
	d := admit.Decide(roomOf(space), room.Reserved, admit.Reservation{}, marks, room.Low)
	root.Known, root.AgeSeconds = true, space.Age.Seconds()
	root.FreeBytes, root.TotalBytes = space.FreeBytes, space.TotalBytes
	root.FreeInodes, root.TotalInodes = space.FreeInodes, space.TotalInodes
	root.LowBytes, root.LowInodes, root.Low = d.Mark.Bytes, d.Mark.Inodes, d.Low
	return root
}

// Scan lists what the host runs.
func (a *API) Scan(ctx context.Context, p rpc.Peer) (rpc.ScanReply, error) {
	ctx, cancel := bound(ctx, scanBound)
	defer cancel()
	result, err := a.opts.Prober.Scan(ctx)
	if err != nil {
		return rpc.ScanReply{}, err
	}
	reply := rpc.ScanReply{
		Processes: []rpc.Process{}, Scanned: result.Scanned, Unreadable: len(result.Opaque),
		TookMillis: float64(result.Took.Microseconds()) / 1000,
	}
	for i := range result.Procs {
		proc := &result.Procs[i]
		if p.Role == rpc.RoleUser && proc.UID != p.UID {
			continue
		}
		reply.Processes = append(reply.Processes, processOf(proc, a.kindOf(proc)))
	}
	return reply, nil
}

// kindOf says what a process with a marker is to this host.
func (a *API) kindOf(p *discover.Proc) string {
	if p.Kind != discover.Member {
		return p.Kind.String()
	}
	v, ok := a.opts.Engine.View(p.Session)
	switch {
	case !ok || v.State.Instance.ID != p.Instance || v.State.Instance.Generation != p.Generation:
		return "orphan"
	case v.Lease.Wrapper.PID == p.PID:
		return "wrapper"
	}
	return "member"
}

// Providers lists the provider processes.
func (a *API) Providers(context.Context, rpc.Peer) (rpc.ProvidersReply, error) {
	reply := rpc.ProvidersReply{Providers: []rpc.Provider{}}
	for _, s := range a.opts.Plugins.Status() {
		out := rpc.Provider{
			Kind: s.Kind, Version: s.Version, State: string(s.State), PID: s.PID, Capabilities: []string{},
			Restarts: s.Restarts, LastError: s.LastError, Since: s.Since,
		}
		for _, c := range s.Capabilities {
			out.Capabilities = append(out.Capabilities, string(c))
		}
		reply.Providers = append(reply.Providers, out)
	}
	return reply, nil
}

// Status is the daemon's account of itself.
func (a *API) Status(context.Context, rpc.Peer) (rpc.StatusReply, error) {
	snapshot, static := a.opts.Engine.Snapshot(), &a.opts.Status
	leaves := static.Leaves()
	reply := rpc.StatusReply{
		Version: static.Version, HostID: a.opts.Dir.HostID(), Epoch: static.Epoch, PID: os.Getpid(),
		StartedAt: static.StartedAt, State: settledState(snapshot),
		Cgroup: leaves.Cgroup, CgroupPath: leaves.Path, Evidence: leaves.Evidence,
		Leaves: leaves.Kind, LeavesReason: leaves.Reason,
		Sessions: map[string]int{}, Adoption: map[string]int{}, StateDir: a.opts.Dir.Path(),
		Problems: append([]string(nil), static.Problems...), Stale: a.opts.Engine.StaleEvents(),
		Log: static.Log, LogDropped: a.opts.LogDropped(),
	}
	snapshot.Sessions.Root().Walk(func(_ []byte, v *engine.View) bool {
		reply.Sessions[v.State.Kind.String()]++
		if v.Adoption != "" {
			reply.Adoption[string(v.Adoption)]++
		}
		return false
	})
	if err := a.degraded.Load(); err != nil {
		reply.Problems = append(reply.Problems, "other processes cannot be read, deletes are refused: "+(*err).Error())
	}
	if leaves.Refused {
		reply.Problems = append(reply.Problems, "no session can be started, since there are to be scopes only: "+leaves.Reason)
	}
	reply.Drain = drainOf(snapshot)
	reply.Journal = a.journalStatus(snapshot)
	if err := a.opts.Engine.Err(); err != nil {
		reply.Problems = append(reply.Problems, "the journal has failed, nothing can be changed: "+err.Error())
	}
	if len(reply.Problems) > 0 && snapshot.Settled {
		reply.State = "degraded"
	}
	return reply, nil
}

func (a *API) journalStatus(snapshot *engine.Snapshot) rpc.JournalStatus {
	stats := a.opts.Journal.Stats()
	out := rpc.JournalStatus{
		Healthy: a.opts.Engine.Err() == nil, LastSeq: snapshot.LastSeq, Commits: stats.Commits,
		Records: stats.Records, Recovery: a.opts.Status.Recovery,
		LastFsyncMicros: float64(stats.LastSync.Nanoseconds()) / 1000,
	}
	if err := a.opts.Engine.Err(); err != nil {
		out.Error = err.Error()
	}
	return out
}

// Version names the programs.
func (a *API) Version(context.Context, rpc.Peer) (rpc.VersionReply, error) {
	return rpc.VersionReply{
		Version: a.opts.Status.Version, Go: runtime.Version(), API: APIVersion,
		Wrapper: wire.Version, Contract: sandbox.Version,
	}, nil
}
