package appraise

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
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

// sweep ends what an earlier daemon was having looked at.
func (a *Appraiser) sweep() {
	if a.opts.Tree.Mode() == cgroupfs.None {
		return
	}
	names, err := a.opts.Tree.List()
	if err != nil {
		a.opts.Logger.Warn("leftovers of an earlier daemon cannot be looked for", "error", err)
		return
	}
	for _, name := range names {
		if !strings.HasPrefix(name, cgroupDir) {
			continue
		}
		if leaf, err := a.opts.Tree.Open(name); err == nil {
			a.clear(leaf)
		}
	}
}
