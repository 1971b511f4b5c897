package reclaim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/daemon/internal/admit"
	"github.com/berthd/berth/daemon/internal/appraise"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/statefs"
	"github.com/hashicorp/go-hclog"
)

const (
	// trashBound bounds one emptying of the trash.
	trashBound = 5 * time.Minute
	// spaceBound bounds the wait for a reading of the disk.
	spaceBound = 2 * time.Second
	// settleBound bounds the wait for the disk to show what was erased, of which
	// others may use some meanwhile, or have shared it; settleSlack is the part of it
	// that may be missing.
	settleBound = 10 * time.Second
	settleEvery = 50 * time.Millisecond
	settleSlack = 10
)

// Options is what a Cleaner needs.
type Options struct {
	Engine    *engine.Engine
	Dir       *statefs.Dir
	Space     *statefs.Prober
	Prober    *evidence.Prober
	Appraiser *appraise.Appraiser
	Settings  Settings
	Logger    hclog.Logger
}

// Settings are what may change while the daemon runs.
type Settings struct {
	// Enabled: workspaces are given up at all.
	Enabled bool
	Policy  admit.Policy
	Marks   admit.Marks
	// Every is how often the disk is looked at; 0 = only when a start finds no room.
	Every time.Duration
}

// Cleaner makes room. It is safe for concurrent use.
type Cleaner struct {
	opts     Options
	settings atomic.Pointer[Settings]
	turn     chan struct{} // full while somebody makes room
}

// New returns a Cleaner.
func New(opts Options) *Cleaner {
	c := &Cleaner{opts: opts, turn: make(chan struct{}, 1)}
	c.Reconfigure(opts.Settings)
	return c
}

// Reconfigure takes over settings from now on.
func (c *Cleaner) Reconfigure(s Settings) { c.settings.Store(&s) }

// Policy is the one of today, and whether workspaces are given up at all.
func (c *Cleaner) Policy() (enabled bool, p admit.Policy) {
	s := c.settings.Load()
	return s.Enabled, s.Policy
}

// Free makes room on the device, one thing at a time, until enough says that there
// is, or nothing is left to give up. enough is asked first: somebody else may have
// made room. Only one call makes room at a time, so that no two give up two things
// where one was enough. why says what the room is for.
func (c *Cleaner) Free(ctx context.Context, device uint64, why string, enough func(context.Context) bool) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return
	}
	victims := c.victims(device, why)
	for !enough(ctx) {
		if ctx.Err() != nil || !victims.next(ctx) {
			return
		}
	}
}

// victims goes through what can be given up, the cheapest first.
type victims struct {
	c       *Cleaner
	device  uint64
	why     string
	mirrors []string
	listed  bool
	trashed bool
	kept    map[string]bool // workspaces that were found to hold something
}

func (c *Cleaner) victims(device uint64, why string) *victims {
	return &victims{c: c, device: device, why: why, kept: map[string]bool{}}
}

// next gives up one thing; false when there is none any more.
func (v *victims) next(ctx context.Context) bool {
	if on, ok := v.c.deviceOf(ctx, v.c.opts.Dir.Path()); ok && on == v.device {
		if v.mirror() {
			return true
		}
	}
	if !v.trashed {
		v.trashed = true
		if v.trash(ctx) {
			return true
		}
	}
	if on, ok := v.c.deviceOf(ctx, v.c.opts.Dir.Workspaces()); !ok || on != v.device || !v.c.settings.Load().Enabled {
		return false
	}
	return v.workspace(ctx)
}

// deviceOf is the file system that a path is on, by a new reading.
func (c *Cleaner) deviceOf(ctx context.Context, path string) (uint64, bool) {
	ctx, cancel := context.WithTimeout(ctx, spaceBound)
	defer cancel()
	space, err := c.opts.Space.Probe(ctx, path)
	return space.Device, err == nil
}

// mirror removes the objects of one repository that were kept for later clones.
func (v *victims) mirror() bool {
	if !v.listed {
		v.listed, v.mirrors = true, v.c.opts.Appraiser.Mirrors()
	}
	for len(v.mirrors) > 0 {
		path := v.mirrors[0]
		v.mirrors = v.mirrors[1:]
		if err := os.RemoveAll(path); err != nil {
			v.c.opts.Logger.Warn("kept objects of clones cannot be removed", "path", path, "error", err)
			continue
		}
		v.c.opts.Logger.Info("removed kept objects of clones to make room", "path", path, "why", v.why)
		return true
	}
	return false
}

// trash erases what is in the trash; false when it was empty.
func (v *victims) trash(ctx context.Context) bool {
	names, err := v.c.opts.Dir.Trash().List()
	if err != nil || len(names) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, trashBound)
	defer cancel()
	if err := v.c.opts.Dir.Trash().Empty(ctx); err != nil {
		v.c.opts.Logger.Warn("the trash could not be emptied to make room", "error", err)
	}
	return true
}

// workspace gives up the workspace that was released longest ago, of those that can
// go. One that turns out to hold something is not tried again.
func (v *victims) workspace(ctx context.Context) bool {
	for ctx.Err() == nil {
		j, ok := v.oldest(ctx)
		if !ok {
			return false
		}
		before := v.c.space(ctx)
		r, err := v.c.opts.Engine.Reclaim(ctx, j.Session, decision(&j, v.why))
		if err != nil {
			v.c.opts.Logger.Info("a workspace was not given up", "session", j.Session, "error", err)
		}
		if r.Gone {
			v.c.settle(ctx, before, r)
			return true
		}
		v.kept[j.Session] = true
	}
	return false
}

// oldest looks into workspaces in the order of their release until one can go.
func (v *victims) oldest(ctx context.Context) (Judgement, bool) {
	candidates := map[string]*engine.View{}
	var all []admit.Candidate
	v.c.opts.Engine.Snapshot().Sessions.Root().Walk(func(_ []byte, view *engine.View) bool {
		id := view.Lease.Session
		if age, ok := v.c.opts.Engine.ReleasedFor(&view.Lease); ok && !v.kept[id] && view.Lease.WorkspaceMade {
			candidates[id] = view
			all = append(all, admit.Candidate{Session: id, ReleasedFor: age})
		}
		return false
	})
	for ctx.Err() == nil {
		i := admit.Oldest(all)
		if i < 0 {
			break
		}
		j := v.c.judge(ctx, candidates[all[i].Session], false)
		if j.Eligible {
			return j, true
		}
		v.kept[all[i].Session] = true
		all = append(all[:i], all[i+1:]...)
	}
	return Judgement{}, false
}

// space is a reading of the disk of the workspaces; the zero Space when there is none.
func (c *Cleaner) space(ctx context.Context) statefs.Space {
	ctx, cancel := context.WithTimeout(ctx, spaceBound)
	defer cancel()
	space, err := c.opts.Space.Probe(ctx, c.opts.Dir.Workspaces())
	if err != nil {
		return statefs.Space{}
	}
	return space
}

// settle waits until the disk shows what has been erased: xfs frees the blocks of
// a deleted file a while later, and who looks too soon gives up too much.
func (c *Cleaner) settle(ctx context.Context, before statefs.Space, r engine.Reclaimed) {
	ctx, cancel := context.WithTimeout(ctx, settleBound)
	defer cancel()
	shown := func(now, then, freed uint64) bool { return now >= then+freed-freed/settleSlack }
	for before.TotalBytes > 0 {
		now := c.space(ctx)
		inodes := before.TotalInodes == 0 || now.TotalInodes != before.TotalInodes || shown(now.FreeInodes, before.FreeInodes, r.Inodes)
		if inodes && shown(now.FreeBytes, before.FreeBytes, r.Bytes) {
			return
		}
		select {
		case <-time.After(settleEvery):
		case <-ctx.Done():
			return
		}
	}
}

// Explain judges all workspaces that the filter lets through, each as far as it can
// be, in the order of the sessions' ids.
func (c *Cleaner) Explain(ctx context.Context, filter func(*engine.View) bool) []Judgement {
	var views []*engine.View
	c.opts.Engine.Snapshot().Sessions.Root().Walk(func(_ []byte, v *engine.View) bool {
		if filter(v) {
			views = append(views, v)
		}
		return false
	})
	all := make([]Judgement, 0, len(views))
	for _, v := range views {
		if ctx.Err() != nil {
			all = append(all, Judgement{Session: v.Lease.Session, Path: v.Lease.Workspace, WhyNot: []string{"not known: there was no time to look"}})
			continue
		}
		all = append(all, c.judge(ctx, v, v.Lease.WorkspaceMade && v.State.Vacant()))
	}
	return all
}

// Run looks at the disk from time to time and makes room while it is low, until ctx
// ends.
func (c *Cleaner) Run(ctx context.Context) {
	low := false
	for {
		every := c.settings.Load().Every
		pause := every
		if pause <= 0 {
			pause = time.Minute // until a reload says otherwise
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		if every > 0 {
			low = c.tend(ctx, low)
		}
	}
}

// tend makes room if the disk of the workspaces is low, and reports whether it
// still is.
func (c *Cleaner) tend(ctx context.Context, wasLow bool) (low bool) {
	path := filepath.Clean(c.opts.Dir.Workspaces())
	look := func(ctx context.Context) (admit.Decision, uint64) {
		ctx, cancel := context.WithTimeout(ctx, spaceBound)
		defer cancel()
		space, err := c.opts.Space.Probe(ctx, path)
		if err != nil {
			return admit.Decision{}, 0
		}
		room := admit.Room{
			FreeBytes: space.FreeBytes, TotalBytes: space.TotalBytes, FreeInodes: space.FreeInodes,
			TotalInodes: space.TotalInodes, Age: space.Age, Known: true,
		}
		reserved := c.opts.Engine.Snapshot().Rooms[space.Device].Reserved
		return admit.Decide(room, reserved, admit.Reservation{}, c.settings.Load().Marks, wasLow), space.Device
	}
	d, device := look(ctx)
	if d.Verdict == 0 || d.Verdict == admit.UnknownCapacity {
		return wasLow // nothing is known: nothing is given up
	}
	if !d.Low {
		return false
	}
	c.opts.Logger.Warn("the disk of the workspaces is low", "room", d.Explain())
	wasLow = true
	c.Free(ctx, device, fmt.Sprintf("the disk is low: %s", d.Explain()), func(ctx context.Context) bool {
		d, _ = look(ctx)
		return d.Verdict == 0 || d.Verdict == admit.UnknownCapacity || !d.Low
	})
	return d.Low
}
