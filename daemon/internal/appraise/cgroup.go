package appraise

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/statefs/cgroupfs"
)

// clearBound bounds the wait for killed processes and the removal of their cgroup.
const clearBound = 10 * time.Second

// leaf makes a cgroup for one run; both results are nil without cgroups.
func (a *Appraiser) leaf(session string) (*cgroupfs.Leaf, *os.File, error) {
	if a.opts.Tree.Mode() == cgroupfs.None {
		return nil, nil, nil
	}
	leaf, err := a.opts.Tree.Make(cgroupDir + session + "-" + rand.Text()[:8])
	if err != nil {
		return nil, nil, fmt.Errorf("making a cgroup to look at a workspace in: %w", err)
	}
	dir, err := leaf.OpenWork()
	if err != nil {
		a.clear(leaf)
		return nil, nil, fmt.Errorf("opening the cgroup to look at a workspace in: %w", err)
	}
	return leaf, dir, nil
}

// clear kills whatever the run has left, and removes its cgroup.
func (a *Appraiser) clear(leaf *cgroupfs.Leaf) {
	ctx, cancel := context.WithTimeout(context.Background(), clearBound)
	defer cancel()
	err := leaf.Kill()
	if err == nil {
		err = leaf.WaitEmpty(ctx)
	}
	if err == nil {
		err = leaf.Remove(ctx)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.opts.Logger.Warn("a cgroup in which a workspace was looked at is left; the next start tries again", "cgroup", leaf.Path(), "error", err)
	}
}

// leftovers are the cgroups that an earlier daemon has made.
func leftovers(opts *Options) []string {
	if opts.Tree.Mode() == cgroupfs.None {
		return nil
	}
	names, err := opts.Tree.List()
	if err != nil {
		opts.Logger.Warn("leftovers of an earlier daemon cannot be looked for", "error", err)
		return nil
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, cgroupDir) })
}

// Sweep ends what an earlier daemon was having looked at. It is for a goroutine
// of its own: what hangs in a file system takes its time.
func (a *Appraiser) Sweep() {
	for _, name := range a.left {
		if leaf, err := a.opts.Tree.Open(name); err == nil {
			a.clear(leaf)
		}
	}
}
