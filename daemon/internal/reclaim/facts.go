package reclaim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berthd/berth/daemon/internal/admit"
	"github.com/berthd/berth/daemon/internal/appraise"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/daemon/internal/workspace"
)

// Judgement is what is known of one workspace, and what follows from it.
type Judgement struct {
	Session string
	Path    string
	// Eligible: it would be given up if room were needed; WhyNot are all reasons
	// against it, nil when there are none.
	Eligible bool
	WhyNot   []string
	// ReleasedFor is how long ago the session was released; Released says that it
	// ever was.
	Released    bool
	ReleasedFor time.Duration
	// Holds describes what is in it, empty = nothing of value, or nobody has looked.
	Holds string
}

// judge finds out about a session's workspace. What is cheap comes first: nobody
// looks into a workspace that is kept anyway, unless thorough.
func (c *Cleaner) judge(ctx context.Context, v *engine.View, thorough bool) Judgement {
	j := Judgement{Session: v.Lease.Session, Path: v.Lease.Workspace}
	_, policy := c.Policy()
	f := admit.Facts{
		Vacant: fact(v.State.Vacant() && v.Lease.Deletion == nil && v.Lease.Unreadable == "" && v.Lease.Reclaim == "" && len(v.Lease.Debts) == 0),
		Pinned: fact(v.Spec == nil || v.Spec.Pinned), Remakeable: c.remakeable(v), Released: admit.No,
	}
	if age, ok := c.opts.Engine.ReleasedFor(&v.Lease); ok {
		f.Released, f.ReleasedFor = admit.Yes, age
		j.Released, j.ReleasedFor = true, age
	}
	// As if nothing were in it: is there any need to look?
	if clear := emptied(f); !thorough {
		if ok, why := admit.Stale(clear, policy); !ok {
			j.WhyNot = why
			return j
		}
	}
	f.Alive = c.alive(ctx, v)
	report, err := c.opts.Appraiser.InspectAll(ctx, appraise.Subject{
		Session: v.Lease.Session, Root: v.Lease.Workspace, UID: v.Lease.UID, GID: v.Lease.GID,
	})
	if err == nil {
		contents(&f, report)
		j.Holds = report.Summary()
	} else {
		j.Holds = "it cannot be looked at: " + err.Error()
	}
	j.Eligible, j.WhyNot = admit.Stale(f, policy)
	return j
}

// emptied are facts of a workspace with nothing in it that speaks against it.
func emptied(f admit.Facts) admit.Facts {
	f.Alive, f.Git, f.Unpushed, f.Uncommitted, f.Stashed, f.Untracked, f.Ignored = admit.No, admit.Yes, admit.No, admit.No, admit.No, admit.No, admit.No
	return f
}

func fact(yes bool) admit.Fact {
	if yes {
		return admit.Yes
	}
	return admit.No
}

// remakeable says whether berth has made the workspace and can do it again. What
// is on another host is taken to be there still; a path of this one is looked at.
func (c *Cleaner) remakeable(v *engine.View) admit.Fact {
	if !v.Lease.WorkspaceMade || v.Spec == nil || v.Spec.Source == nil {
		return admit.No
	}
	path := v.Spec.Source.Copy
	if filepath.IsAbs(v.Spec.Source.Clone) {
		path = v.Spec.Source.Clone
	}
	if path == "" {
		return admit.Yes
	}
	info, err := os.Stat(path)
	switch {
	case err == nil:
		return fact(info.IsDir())
	case os.IsNotExist(err):
		return admit.No
	}
	return admit.Unknown
}

// alive asks the witnesses, all of them where the quick ones cannot tell.
func (c *Cleaner) alive(ctx context.Context, v *engine.View) admit.Fact {
	report := c.opts.Prober.Quick(ctx, v.Subject)
	if report.Verdict != evidence.Absent {
		report = c.opts.Prober.Full(ctx, v.Subject)
	}
	switch report.Verdict {
	case evidence.Absent:
		return admit.No
	case evidence.Present:
		return admit.Yes
	}
	return admit.Unknown
}

// contents fills in what the workspace holds. What could not be looked at leaves
// everything unknown.
func contents(f *admit.Facts, r *workspace.Report) {
	found := map[workspace.Kind]bool{}
	for _, finding := range r.Findings {
		found[finding.Kind] = true
	}
	if r.Error != "" || r.Truncated || found[workspace.Unknown] {
		return
	}
	any := func(kinds ...workspace.Kind) admit.Fact {
		for _, k := range kinds {
			if found[k] {
				return admit.Yes
			}
		}
		return admit.No
	}
	f.Git = fact(r.Repositories > 0)
	f.Unpushed = any(workspace.Unpushed, workspace.Detached)
	f.Uncommitted = any(workspace.Uncommitted, workspace.Hidden, workspace.InProgress)
	f.Stashed = any(workspace.Stash)
	f.Untracked = any(workspace.Untracked, workspace.Files)
	f.Ignored = any(workspace.Ignored)
}

// decision says why a workspace is given up, with the numbers.
func decision(j *Judgement, what string) string {
	return fmt.Sprintf("%s; released %s ago, longest of all that can go; it can be made again and holds nothing uncommitted, unpushed, stashed or untracked",
		what, j.ReleasedFor.Round(time.Second))
}

// Worthless is the last look, by the effect that gives a workspace up: whether there
// is still nothing in it that the policy keeps, and if not, why.
func Worthless(r *workspace.Report, policy admit.Policy) (ok bool, why []string) {
	f := admit.Facts{
		Vacant: admit.Yes, Alive: admit.No, Pinned: admit.No, Released: admit.Yes, ReleasedFor: policy.MinAge, Remakeable: admit.Yes,
	}
	contents(&f, r)
	return admit.Stale(f, policy)
}
