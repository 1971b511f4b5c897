package effect

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/spawn"
	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs"
	"github.com/berthd/berth/statefs/cgroupfs"
	"github.com/berthd/berth/statefs/failpoint"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Launch spawns the wrapper parked into its leaf while the workspace and the
// sandbox are being prepared, then sends it the recipe. Its crash points: before
// the spawn nothing lives; between the spawn and the go the wrapper is parked,
// runs nothing, and ends with the daemon's end of the pipe; after the go it
// calls home for ever.
func (h *Host) Launch(ctx context.Context, p engine.LaunchPlan) error {
	if err := failpoint.Hit("launch.before"); err != nil {
		return err
	}
	dir, err := h.opts.Dir.MakeGenerationDir(p.Key.Session, p.Key.Generation)
	if err != nil {
		return unusable(fmt.Errorf("making the instance's directory: %w", err))
	}
	var recipe sandbox.Recipe
	var at berth
	both, bothCtx := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		if err = h.workspace(bothCtx, p, dir); err != nil {
			return err
		}
		recipe, err = h.prepare(bothCtx, p)
		return err
	})
	both.Go(func() (err error) {
		at, err = h.park(bothCtx, p, dir)
		return err
	})
	err = both.Wait()
	if at.parked != nil {
		defer at.parked.Close()
	}
	if err == nil {
		err = h.release(ctx, p, dir, recipe, at)
	}
	if err != nil && at.parked != nil {
		return errors.Join(err, at.parked.Abort())
	}
	if err == nil {
		_ = failpoint.Hit("launch.released") // the session runs: there is no way back
		h.tidy(p.Key)
	}
	return err
}

// tidy does what a launch owes the disk and nobody waits for: it makes the
// instance's directory last, with what the wrapper will write there, and removes
// what is too old to keep.
func (h *Host) tidy(key engine.WrapperKey) {
	if err := h.opts.Dir.SyncGenerationDir(key.Session); err != nil {
		h.opts.Logger.Warn("the instance's directory may not outlive a power cut", "session", key.Session, "error", err)
	}
	h.pruneGenerations(key.Session, key.Generation)
}

// berth is where an instance's wrapper waits for its recipe.
type berth struct {
	parked *spawn.Parked
	leaf   *cgroupfs.Leaf // nil without cgroups
}

// park makes the leaf and starts the wrapper in it, parked.
func (h *Host) park(ctx context.Context, p engine.LaunchPlan, dir string) (berth, error) {
	select {
	case h.launches <- struct{}{}:
		defer func() { <-h.launches }()
	case <-ctx.Done():
		return berth{}, fmt.Errorf("waiting for a launch slot: %w", ctx.Err())
	}
	var at berth
	var err error
	if path := p.Lease.Wrapper.Leaf; path != "" {
		if at.leaf, err = h.opts.Trees.Make(filepath.Base(path)); err != nil {
			return berth{}, fmt.Errorf("making the leaf: %w", err)
		}
	}
	if err := failpoint.Hit("launch.leaf.made"); err != nil {
		return at, err
	}
	req, closeFiles, err := h.request(p, dir, at.leaf)
	if err != nil {
		return at, err
	}
	defer closeFiles()
	if at.parked, err = spawn.Start(ctx, req); err != nil {
		return at, fmt.Errorf("starting the wrapper: %w", err)
	}
	if err := failpoint.Hit("launch.parked"); err != nil {
		return at, err
	}
	for _, w := range at.parked.Warnings {
		h.opts.Logger.Debug("wrapper started with a shortcoming", "session", p.Key.Session, "warning", w)
	}
	return at, nil
}

// workspace makes the session's directory on its first use and fills it, and
// refuses one that was there before and is missing.
func (h *Host) workspace(ctx context.Context, p engine.LaunchPlan, dir string) error {
	if prep := p.Lease.Preparation; prep != nil && !prep.Finished {
		return h.fill(ctx, p, dir)
	}
	if !p.FirstUse {
		return present(p)
	}
	if _, err := statefs.MakeWorkspace(h.opts.Dir.Workspaces(), p.Key.Session, p.Lease.UID, p.Lease.GID); err != nil {
		return unusable(fmt.Errorf("making workspace %q: %w", p.Lease.Workspace, err))
	}
	return nil
}

// unusable gives a failure of berth's own file system its code: the start can be
// tried again once that is mended, so that its key must not replay the failure.
func unusable(err error) error {
	for _, errno := range []unix.Errno{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO} {
		if errors.Is(err, errno) {
			return &engine.Refusal{
				Code: engine.Code(rpc.CodeFilesystemUnusable), Retryable: true, Message: err.Error(),
			}
		}
	}
	return err
}

// prepare asks the provider for the recipe.
func (h *Host) prepare(ctx context.Context, p engine.LaunchPlan) (sandbox.Recipe, error) {
	provider, err := h.opts.Providers.Provider(ctx, p.Spec.Provider)
	if err != nil {
		return sandbox.Recipe{}, providerRefusal(p.Spec.Provider, err)
	}
	if err := failpoint.Hit("launch.prepare.before"); err != nil {
		return sandbox.Recipe{}, err
	}
	recipe, err := provider.Prepare(ctx, sandbox.PrepareRequest{
		Handle: sandbox.Handle(p.Lease.Wrapper.Handle), Host: h.opts.HostID,
		Session: p.Key.Session, Instance: p.Key.Instance, Generation: p.Key.Generation,
		Workspace: p.Lease.Workspace, Command: p.Spec.Command, Env: p.Spec.Env,
		UID: p.Lease.UID, GID: p.Lease.GID, Groups: groupsOf(p.Lease.UID, h.opts.UID),
		Home: homeOf(p.Lease.UID, p.Lease.Workspace), Terminal: p.Spec.Terminal,
		Limits: sandbox.Limits{
			Processes: p.Spec.MaxProcesses, MemoryBytes: p.Spec.MaxMemoryBytes,
			CPUPercent: p.Spec.MaxCPUPercent, OpenFiles: p.Spec.MaxOpenFiles,
		},
	})
	if err == nil {
		err = failpoint.Hit("launch.prepare.after")
	}
	if err != nil {
		return sandbox.Recipe{}, providerRefusal(p.Spec.Provider, err)
	}
	return recipe, nil
}

// providerRefusal gives a provider's error its code.
func providerRefusal(kind string, err error) error {
	code, retryable, details := rpc.CodeProvider, true, map[string]any{"provider": kind}
	var failure *sandbox.Error
	if errors.As(err, &failure) {
		retryable, details["reason"] = failure.Retryable, string(failure.Reason)
		switch failure.Reason {
		case sandbox.CapabilityUnavailable:
			code = rpc.CodeCapability
		case sandbox.InvalidRequest:
			code = rpc.CodeInvalidRequest
		}
	}
	return &engine.Refusal{
		Code: engine.Code(code), Retryable: retryable, Details: details,
		Message: fmt.Sprintf("provider %q: %v", kind, err),
	}
}

// release sets the limits, checks that the parked wrapper is in its fence, tells
// the link server whom to expect, and sends the recipe, which is the go.
func (h *Host) release(ctx context.Context, p engine.LaunchPlan, dir string, recipe sandbox.Recipe, at berth) error {
	launch, digest, err := h.launchObject(p, dir, recipe)
	if err != nil {
		return err
	}
	if at.leaf != nil {
		if err := h.fence(ctx, p, recipe.Cgroup, at); err != nil {
			return err
		}
	}
	if err := failpoint.Hit("launch.fenced"); err != nil {
		return err
	}
	if err := h.opts.Watcher.Add(at.parked.PidFD, p.Key); err != nil {
		return fmt.Errorf("watching the wrapper: %w", err)
	}
	h.opts.Keeper.Keep(p.Key.Session, p.Key.Generation, at.parked.PidFD)
	h.opts.Links.Expect(p.Key, at.parked.Identity, digest)
	err = failpoint.Hit("launch.release.before")
	if err == nil {
		err = at.parked.Release(ctx, launch)
	}
	if err != nil {
		h.opts.Links.Forget(p.Key.Session, p.Key.Generation)
		return fmt.Errorf("sending the recipe: %w", err)
	}
	return nil
}

// launchObject encodes what the wrapper reads from descriptor 3, and the
// recipe's digest.
func (h *Host) launchObject(p engine.LaunchPlan, dir string, recipe sandbox.Recipe) (launch []byte, digest string, err error) {
	body, err := json.Marshal(recipe)
	if err != nil {
		return nil, "", fmt.Errorf("encoding the recipe: %w", err)
	}
	sum := sha256.Sum256(body)
	work := ""
	if p.Lease.Wrapper.Leaf != "" {
		work = filepath.Join(p.Lease.Wrapper.Leaf, "work")
	}
	launch, err = json.Marshal(wire.Launch{
		Version: wire.Version, Host: h.opts.HostID, Session: p.Key.Session, Instance: p.Key.Instance,
		Generation: p.Key.Generation, Token: p.Token, Recipe: body, Dir: dir, Socket: h.opts.Socket,
		WorkCgroup: work, Terminal: p.Spec.Terminal, Size: wire.Size{Rows: p.Spec.Rows, Cols: p.Spec.Cols},
		HeartbeatEvery: h.opts.HeartbeatEvery, SpoolFileBytes: h.opts.SpoolFileBytes,
		SpoolFiles: h.opts.SpoolFiles, DrainTimeout: h.opts.DrainTimeout,
		JournalSocket: h.opts.JournalSocket, JournalRate: h.opts.JournalRate, Provider: p.Lease.Wrapper.Provider,
	})
	return launch, hex.EncodeToString(sum[:]), err
}

// request fills in what spawn needs; closeFiles closes what it has opened.
func (h *Host) request(p engine.LaunchPlan, dir string, leaf *cgroupfs.Leaf) (req spawn.Request, closeFiles func(), err error) {
	log, err := os.OpenFile(filepath.Join(dir, "wrap.log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return req, nil, unusable(fmt.Errorf("opening the wrapper's log: %w", err))
	}
	req = spawn.Request{
		Path: h.opts.WrapPath, Log: log,
		Env: []string{
			"BERTH_HOST=" + h.opts.HostID,
			"BERTH_SESSION=" + p.Key.Session,
			"BERTH_INSTANCE=" + p.Key.Instance,
			"BERTH_GENERATION=" + strconv.FormatUint(p.Key.Generation, 10),
			// There is one wrapper per session and it is idle most of the time: its runtime stays small.
			"GOMAXPROCS=1", "GOGC=20", "GOMEMLIMIT=16MiB",
		},
	}
	if leaf != nil {
		if req.Cgroup, err = leaf.OpenEntry(); err != nil {
			log.Close()
			return req, nil, fmt.Errorf("opening the leaf: %w", err)
		}
	}
	return req, func() {
		log.Close()
		if req.Cgroup != nil {
			req.Cgroup.Close()
		}
	}, nil
}

// pruneGenerations removes the output of generations that are too old to keep.
// The directories are the daemon's own and no agent can reach them.
func (h *Host) pruneGenerations(session string, newest uint64) {
	generations, err := h.generationsOf(session)
	if err != nil {
		return // the next launch tries again
	}
	for _, g := range generations {
		if g+uint64(h.opts.KeepGenerations) <= newest {
			if err := os.RemoveAll(h.opts.Dir.GenerationDir(session, g)); err != nil {
				h.opts.Logger.Warn("old output cannot be removed", "session", session, "generation", g, "error", err)
			}
		}
	}
}
