package appraise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/berthd/berth/daemon/internal/workspace"
	"github.com/berthd/berth/statefs/cgroupfs"
	"golang.org/x/sys/unix"
)

// Step is one step of a preparation.
type Step struct {
	Verb string // as workspace.Request has it
	workspace.Step
	// Log is the daemon's file that the output goes to.
	Log    string
	Limits cgroupfs.Limits
}

// Prepare does one step of filling a workspace, within the bounds of a step. An
// error says that it is not known how the step has ended; nothing of it runs any
// more when Prepare returns, or Fence tells so.
func (a *Appraiser) Prepare(ctx context.Context, s Subject, step Step) (*workspace.End, error) {
	log, err := os.OpenFile(step.Log, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of the preparation: %w", err)
	}
	defer log.Close()
	in := room{
		key: slotKey{s.UID, true}, cgroup: prepareDir, limits: step.Limits, files: []*os.File{log}, gently: true,
	}
	if step.Verb == workspace.VerbClone && a.opts.Cache && step.Depth == 0 {
		if mirror, err := a.openMirror(s.UID, step.Clone); err == nil {
			defer mirror.Close()
			in.files, step.Mirror = append(in.files, mirror), true
		}
	}
	step.Quiet = seconds(a.opts.StepQuiet)
	ctx, cancel := context.WithTimeout(ctx, a.opts.StepLimit+graceBound)
	defer cancel()
	report, err := a.runIn(ctx, s, workspace.Request{
		Verb: step.Verb, Root: s.Root, KeepFree: a.opts.KeepFree, Seconds: seconds(a.opts.StepLimit), Step: &step.Step,
	}, in)
	switch {
	case err != nil:
		return nil, err
	case report.End == nil:
		return nil, errors.New(report.Error)
	}
	if step.Verb == workspace.VerbClone && report.End.Failure == "" && !report.End.Prepared && a.opts.Cache && step.Depth == 0 {
		a.keepObjects(ctx, s, step.Clone, report.End.SeedBad)
	}
	if step.Verb == workspace.VerbCheckout && report.End.Failure == workspace.FailedExit {
		a.dropMirror(s.UID, step.Clone) // the objects may be no good: the next try does without
	}
	return report.End, nil
}

func seconds(d time.Duration) int { return max(int(d/time.Second), 1) }
