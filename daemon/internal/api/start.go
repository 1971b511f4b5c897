package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthd/berth/daemon/internal/admit"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/record"
)

const (
	// specMax bounds a specification in its canonical form.
	specMax = 64 << 10
	// keyMax bounds operation keys and message ids.
	keyMax = 256
	// whyMax bounds a reason that a person gives.
	whyMax = 1 << 10
	// pathMax bounds a workspace's path as JSON has it: it is part of answers,
	// which the operation ledger keeps.
	pathMax = 2 << 10
	// spaceBound bounds the wait for a reading of the disk.
	spaceBound = 2 * time.Second
)

// Start validates, measures and hands over to the engine.
func (a *API) Start(ctx context.Context, p rpc.Peer, session string, req rpc.StartRequest) (rpc.StartReply, error) {
	if err := texts(req.Key, ""); err != nil {
		return rpc.StartReply{}, err
	}
	owner, err := a.owner(p, session, &req)
	if err != nil {
		return rpc.StartReply{}, err
	}
	start := engine.StartRequest{
		Caller: caller(p, session, req.Key), OwnerUID: owner.UID, OwnerGID: owner.GID,
	}
	workspace := a.opts.Dir.Workspaces()
	if req.Spec != nil {
		if start.Spec, err = a.spec(session, owner, req.Spec); err != nil {
			return rpc.StartReply{}, err
		}
		if start.Spec.Workspace != "" {
			workspace = start.Spec.Workspace
		}
		start.Digest = start.Spec.Digest
	} else if v, ok := a.opts.Engine.View(session); ok && v.Spec != nil && v.Spec.Workspace != "" {
		workspace = v.Spec.Workspace
	}
	start.Digest = digest(struct {
		Session, Spec string
		UID           uint32
	}{session, start.Digest, owner.UID})
	started, err := a.measured(ctx, &start, workspace)
	if why := lacksRoom(err); why != "" {
		a.opts.Cleaner.Free(ctx, start.Device, why, func(ctx context.Context) bool {
			started, err = a.measured(ctx, &start, workspace)
			return lacksRoom(err) == ""
		})
	}
	if err != nil {
		return rpc.StartReply{}, refuse(err)
	}
	return rpc.StartReply(started), nil
}

// measured hands a start over to the engine with new readings of the disks.
func (a *API) measured(ctx context.Context, start *engine.StartRequest, workspace string) (engine.Started, error) {
	start.Room, start.Device = a.room(ctx, workspace)
	start.StateRoom, _ = a.room(ctx, a.opts.Dir.Path())
	return a.opts.Engine.Start(ctx, *start)
}

// lacksRoom is the refusal of a start for want of room for its workspace, empty
// where it is another error or none.
func lacksRoom(err error) string {
	var r *engine.Refusal
	if errors.As(err, &r) && rpc.Code(r.Code) == rpc.CodeCapacityRejected && r.Details["root"] == "workspaces" {
		return r.Message
	}
	return ""
}

// owner decides whom a new session belongs to; for an existing one its owner
// stays what it is.
func (a *API) owner(p rpc.Peer, session string, req *rpc.StartRequest) (Owner, error) {
	if v, ok := a.opts.Engine.View(session); ok && req.Owner == "" {
		return Owner{v.Lease.UID, v.Lease.GID}, nil
	}
	owner, defaults := Owner{p.UID, p.GID}, a.tuning.Load().Defaults
	switch {
	case req.Owner != "":
		named, err := lookupOwner(req.Owner)
		if err != nil {
			return Owner{}, err
		}
		if named.UID != p.UID && p.Role != rpc.RoleOperator {
			return Owner{}, rpc.Errorf(rpc.CodeForbidden, "only operators may start sessions of another user")
		}
		owner = named
	case p.UID == 0 && defaults.Owner != nil:
		owner = *defaults.Owner
	}
	if owner.UID == 0 && !defaults.AllowRoot {
		return Owner{}, rpc.Errorf(rpc.CodeInvalidRequest,
			"a session must not run as root: name another owner, or set sessions.default_owner, or sessions.allow_root where that is meant")
	}
	if a.opts.UID != 0 && owner.UID != a.opts.UID {
		return Owner{}, rpc.Errorf(rpc.CodeForbidden, "this daemon runs as uid %d and can start sessions of that uid only", a.opts.UID)
	}
	return owner, nil
}

// lookupOwner finds a user by name or number.
func lookupOwner(name string) (Owner, error) {
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	if err != nil {
		uid, numErr := strconv.ParseUint(name, 10, 32)
		if numErr != nil || uid == 1<<32-1 {
			return Owner{}, rpc.Errorf(rpc.CodeInvalidRequest, "owner %q is no user of this host", name)
		}
		return Owner{uint32(uid), uint32(uid)}, nil
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		return Owner{}, rpc.Errorf(rpc.CodeInvalidRequest, "owner %q has no numeric uid", name)
	}
	return Owner{uint32(uid), uint32(gid)}, nil
}

// LookupOwner finds the user of the setting sessions.default_owner.
func LookupOwner(name string) (Owner, error) { return lookupOwner(name) }

// spec validates a specification and completes it.
func (a *API) spec(session string, owner Owner, in *rpc.SessionSpec) (*record.Spec, error) {
	if err := validate(in); err != nil {
		return nil, err
	}
	provider, err := a.provider(in)
	if err != nil {
		return nil, err
	}
	defaults := a.tuning.Load().Defaults
	out := &record.Spec{
		Session: session, Command: in.Command, Env: in.Env, Provider: provider,
		Terminal: in.Terminal, Rows: in.Rows, Cols: in.Cols, Grace: -1,
		ReserveBytes: defaults.ReserveBytes, ReserveInodes: defaults.ReserveInodes,
		MaxProcesses: in.Limits.Processes, MaxMemoryBytes: in.Limits.MemoryBytes,
		MaxCPUPercent: in.Limits.CPUPercent, MaxOpenFiles: in.Limits.OpenFiles,
		Source: sourceOf(in.Source), Setup: in.Setup, Pinned: in.Pinned,
		Allocation: in.Allocation,
	}
	if in.Terminal && in.Rows == 0 && in.Cols == 0 {
		out.Rows, out.Cols = 24, 80
	}
	if in.RetentionSeconds != nil {
		if out.Retention = time.Duration(*in.RetentionSeconds * float64(time.Second)); out.Retention == 0 {
			out.Retention = -1
		}
	}
	if in.GraceSeconds != nil {
		out.Grace = time.Duration(*in.GraceSeconds * float64(time.Second))
	}
	if in.ReserveBytes != nil {
		out.ReserveBytes = *in.ReserveBytes
	}
	if in.ReserveInodes != nil {
		out.ReserveInodes = *in.ReserveInodes
	}
	if in.Workspace != "" {
		if out.Workspace, err = a.workspace(in.Workspace, owner); err != nil {
			return nil, err
		}
	}
	// The digest is of what the client has said: what berth fills in stays with
	// the session for its life and may differ from today's settings.
	out.Digest = digest(in)
	return out, nil
}

// workspace checks a directory that the client names: it must exist and belong
// to the session's owner, and berth's own directories are none. The look is the
// daemon's, so that what is no directory of the owner's has one answer: it must
// not tell a user what there is where the user cannot look.
func (a *API) workspace(path string, owner Owner) (string, error) {
	if !filepath.IsAbs(path) {
		return "", rpc.Errorf(rpc.CodeInvalidRequest, "workspace %q: not an absolute path", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil || !ownDirectory(real, owner.UID) {
		return "", rpc.Errorf(rpc.CodeWorkspaceMissing,
			"workspace %q is not a directory that exists and belongs to uid %d, whose session it is to be", path, owner.UID)
	}
	if text, err := json.Marshal(real); err != nil || len(text) > pathMax {
		return "", rpc.Errorf(rpc.CodeInvalidRequest, "workspace: the path is too long, at most %d bytes as JSON text", pathMax)
	}
	if state := a.opts.Dir.Path(); within(real, state) || within(state, real) {
		return "", rpc.Errorf(rpc.CodeInvalidRequest, "workspace %q overlaps berth's own directory %q", path, state)
	}
	return real, nil
}

func ownDirectory(path string, uid uint32) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == uid
}

// within reports whether a clean path is dir or lies below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// texts bounds what a request says of itself.
func texts(key, why string) error {
	switch {
	case len(key) > keyMax:
		return rpc.Errorf(rpc.CodeInvalidRequest, "key: %d bytes, at most %d", len(key), keyMax)
	case len(why) > whyMax:
		return rpc.Errorf(rpc.CodeInvalidRequest, "why: %d bytes, at most %d", len(why), whyMax)
	}
	return nil
}

// validate checks what needs no look at the host.
func validate(in *rpc.SessionSpec) error {
	invalid := func(format string, args ...any) error { return rpc.Errorf(rpc.CodeInvalidRequest, format, args...) }
	if len(in.Command) == 0 || in.Command[0] == "" {
		return invalid("spec.command: at least one element, the program, is needed")
	}
	switch in.Allocation {
	case "", "dedicated":
	case record.AllocationShared:
		return rpc.Errorf(rpc.CodeAllocationRetired, "spec.allocation: shared allocations are retired; leave it out, each session has a sandbox of its own")
	default:
		return invalid("spec.allocation: %q, want dedicated or nothing", in.Allocation)
	}
	size := 0
	for i, arg := range in.Command {
		if strings.IndexByte(arg, 0) >= 0 {
			return invalid("spec.command[%d]: holds a NUL byte", i)
		}
		size += len(arg)
	}
	for i, env := range in.Env {
		name, _, ok := strings.Cut(env, "=")
		if !ok || name == "" || strings.IndexByte(env, 0) >= 0 {
			return invalid("spec.env[%d]: want NAME=value", i)
		}
		if strings.HasPrefix(name, "BERTH_") {
			return invalid("spec.env[%d]: names that begin with BERTH_ are berth's own", i)
		}
		size += len(env)
	}
	if size > specMax {
		return invalid("spec: command and environment have %d bytes, at most %d", size, specMax)
	}
	if g := in.GraceSeconds; g != nil && !(*g >= 0 && *g <= 3600) {
		return invalid("spec.grace_seconds: %v, want 0 to 3600", *g)
	}
	if r := in.RetentionSeconds; r != nil && !(*r >= 0 && *r <= 1e9) {
		return invalid("spec.retention_seconds: %v, want 0 to 1e9", *r)
	}
	if !in.Terminal && (in.Rows != 0 || in.Cols != 0) {
		return invalid("spec.rows, spec.cols: the session has no terminal")
	}
	return validateSource(in)
}

// digest is the hex SHA-256 of a value's JSON, which for structs is canonical.
func digest(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("internal error: encoding a request for its digest: %v", err))
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// room is the newest reading of the file system that holds path, and which one
// that is.
func (a *API) room(ctx context.Context, path string) (admit.Room, uint64) {
	ctx, cancel := bound(ctx, spaceBound)
	defer cancel()
	space, err := a.opts.Space.Probe(ctx, path)
	if err != nil {
		return admit.Room{}, 0
	}
	return roomOf(space), space.Device
}
