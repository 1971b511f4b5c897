package effect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/berthd/berth/daemon/internal/appraise"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/workspace"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs"
	"github.com/berthd/berth/statefs/cgroupfs"
	"github.com/berthd/berth/statefs/failpoint"
	"github.com/berthd/berth/statefs/record"
)

// prepareLog is the file, in the directory of a generation, of what the steps have
// printed.
const prepareLog = "prepare.log"

// step is one step of filling a workspace.
type step struct {
	verb    string
	number  int    // of setup commands, from 1
	command string // of a setup command
}

// steps are what a specification asks for, in order. The first one makes the
// directory and makes sure that there is nothing in it: whatever later steps find
// there is their own.
func steps(spec *record.Spec) []step {
	list := []step{{verb: workspace.VerbClaim}}
	switch src := spec.Source; {
	case src == nil:
	case src.Copy != "":
		list = append(list, step{verb: workspace.VerbCopy})
	default:
		list = append(list, step{verb: workspace.VerbClone}, step{verb: workspace.VerbCheckout})
	}
	for i, command := range spec.Setup {
		list = append(list, step{verb: workspace.VerbSetup, number: i + 1, command: command})
	}
	return list
}

// fill does the steps that are not done yet, each only once the one before is on
// disk.
//
// Crash points: (1) in a step, which the next start does again: copy and clone
// begin with an empty directory, git's own steps and setup commands are repeated;
// (2) after a step and before it is on disk, the same; (3) after the last one, the
// stamp in the git directory says so and nothing is done twice.
func (h *Host) fill(ctx context.Context, p engine.LaunchPlan, dir string) error {
	if err := h.opts.Appraiser.Fence(ctx, p.Key.Session); err != nil {
		return err
	}
	all := steps(&p.Spec)
	for i := p.Lease.Preparation.Done; i < len(all); i++ {
		if err := failpoint.Hit("prepare.step.before"); err != nil {
			return err
		}
		began := time.Now()
		end, err := h.step(ctx, p, dir, all[i], i == len(all)-1)
		if err == nil {
			err = failpoint.Hit("prepare.step.after")
		}
		if err != nil {
			return unusable(fmt.Errorf("preparing workspace %q: %w", p.Lease.Workspace, err))
		}
		if ctx.Err() != nil {
			return fmt.Errorf("preparing workspace %q: %w", p.Lease.Workspace, ctx.Err())
		}
		prepared := end.Failure == "" && end.Prepared
		err = p.Stepped(ctx, engine.StepResult{
			Step: all[i].verb, Number: all[i].number, Failure: end.Failure, Code: end.Code, Signal: end.Signal,
			Took: time.Since(began), Last: prepared || i == len(all)-1, From: end.From,
		})
		_ = failpoint.Hit("prepare.step.durable")
		switch {
		case err != nil:
			return err
		case end.Failure != "":
			return h.unprepared(p, dir, all[i], end)
		case prepared:
			return nil
		}
	}
	return nil
}

// step does one step.
func (h *Host) step(ctx context.Context, p engine.LaunchPlan, dir string, s step, last bool) (*workspace.End, error) {
	if s.verb == workspace.VerbClaim && p.FirstUse {
		path, err := statefs.MakeWorkspace(h.opts.Dir.Workspaces(), p.Key.Session, p.Lease.UID, p.Lease.GID)
		if err != nil {
			return nil, err
		}
		if empty, err := isEmpty(path); err != nil || empty {
			return &workspace.End{}, err
		}
	} else if err := present(p); err != nil {
		return nil, err
	}
	subject := appraise.Subject{Session: p.Key.Session, Root: p.Lease.Workspace, UID: p.Lease.UID, GID: p.Lease.GID}
	source := p.Spec.Source
	if source == nil {
		source = &record.Source{}
	}
	end, err := h.opts.Appraiser.Prepare(ctx, subject, appraise.Step{
		Verb: s.verb, Log: filepath.Join(dir, prepareLog),
		Limits: cgroupfs.Limits{
			PidsMax: p.Spec.MaxProcesses, MemoryMaxBytes: p.Spec.MaxMemoryBytes,
			CPUMax: time.Duration(p.Spec.MaxCPUPercent) * cgroupfs.CPUPeriod / 100,
		},
		Step: workspace.Step{
			Stamp: workspace.Stamp{Host: h.opts.HostID, Session: p.Key.Session, Generation: p.Key.Generation}, Last: last,
			Copy: source.Copy, Clone: source.Clone, Branch: source.Branch, WorkBranch: source.WorkBranch, Depth: source.Depth,
			Command: s.command, Env: p.Spec.Env, Home: homeOf(p.Lease.UID, p.Lease.Workspace),
		},
	})
	if err == nil && s.verb == workspace.VerbClaim && p.FirstUse && end.Failure == "" && !end.Prepared {
		end.Failure = workspace.FailedNotEmpty
	}
	return end, err
}

// unprepared is the refusal for a step that has failed.
func (h *Host) unprepared(p engine.LaunchPlan, dir string, s step, end *workspace.End) error {
	name := s.verb
	if s.number > 0 {
		name = fmt.Sprintf("%s command %d", s.verb, s.number)
	}
	how := end.Failure
	switch {
	case end.Signal != 0:
		how += fmt.Sprintf(", signal %d", end.Signal)
	case end.Code != 0:
		how += fmt.Sprintf(", exit status %d", end.Code)
	}
	return &engine.Refusal{
		Code: engine.Code(rpc.CodeUnprepared),
		Message: fmt.Sprintf("the workspace of session %q could not be prepared: %s failed (%s); %s on the host has what it printed",
			p.Key.Session, name, how, filepath.Join(dir, prepareLog)),
		Details: map[string]any{"step": s.verb, "number": s.number, "failure": end.Failure, "code": end.Code, "signal": end.Signal},
	}
}

// present refuses a workspace that is not there: it is never silently made anew.
func present(p engine.LaunchPlan) error {
	info, err := os.Stat(p.Lease.Workspace)
	if err == nil && info.IsDir() {
		return nil
	}
	return &engine.Refusal{
		Code:    engine.Code(rpc.CodeWorkspaceMissing),
		Message: fmt.Sprintf("workspace %q of session %q is missing; nothing was started", p.Lease.Workspace, p.Key.Session),
	}
}

// isEmpty reports whether a directory holds nothing.
func isEmpty(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}
