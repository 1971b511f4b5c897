package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// prepares reports whether there is anything to fill a workspace with.
func prepares(spec *record.Spec) bool { return spec.Source != nil || len(spec.Setup) > 0 }

// stepped takes the end of one step of filling a workspace. It returns once that
// is on disk: what comes next must not be done twice, and no agent may get into a
// workspace that could be taken for an unfinished one. ErrNotExpected says that
// the start was given up meanwhile.
func (e *Engine) stepped(ctx context.Context, key WrapperKey, r StepResult) error {
	_, err := ask(ctx, e, journal.Ordinary, func(t *tx, reply func(struct{}, error)) {
		err := t.stepped(key, &r)
		t.answer(func() { reply(struct{}{}, err) })
	})
	return err
}

func (t *tx) stepped(key WrapperKey, r *StepResult) error {
	d := t.draft(key.Session)
	instance := lease.Instance{ID: key.Instance, Generation: key.Generation}
	if d == nil || d.state.Kind != lease.Starting || d.state.Instance != instance || d.lease.Preparation == nil {
		return ErrNotExpected
	}
	p := *d.lease.Preparation // the old one is published
	p.Step, p.Number, p.Failure, p.Code, p.Signal, p.Took = r.Step, r.Number, r.Failure, r.Code, r.Signal, r.Took
	if r.Failure == "" {
		p.Done++
		if r.Last {
			p.Finished = true
			d.lease.WorkspaceMade = d.spec != nil && d.spec.Workspace == ""
		}
	}
	d.lease.Preparation = &p
	detail := stepText(&p)
	if r.From != "" {
		detail += fmt.Sprintf("; it was prepared by session %q before", r.From)
	}
	if r.From != "" || p.Again && p.Finished {
		d.note = detail
	}
	t.put(d, "workspace_step", detail)
	return nil
}

// stepText says how a step has ended. It tells neither what a command is nor what
// it has printed: events are for more eyes than those.
func stepText(p *record.Preparation) string {
	name := p.Step
	if p.Number > 0 {
		name = fmt.Sprintf("%s %d", p.Step, p.Number)
	}
	took := p.Took.Round(time.Millisecond)
	switch {
	case p.Failure == "":
		text := fmt.Sprintf("%s: done in %s", name, took)
		if p.Finished {
			text += "; the workspace is prepared"
			if p.Again {
				text += " again"
			}
		}
		return text
	case p.Signal != 0:
		return fmt.Sprintf("%s: failed (%s, signal %d) after %s", name, p.Failure, p.Signal, took)
	case p.Code != 0:
		return fmt.Sprintf("%s: failed (%s, exit status %d) after %s", name, p.Failure, p.Code, took)
	}
	return fmt.Sprintf("%s: failed (%s) after %s", name, p.Failure, took)
}
