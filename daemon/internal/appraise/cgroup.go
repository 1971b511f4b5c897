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

// nonce is how many random characters end a cgroup's name.
const nonce = 8

// leaf makes a cgroup for one run; both results are nil without cgroups.
func (a *Appraiser) leaf(prefix, session string, limits cgroupfs.Limits) (*cgroupfs.Leaf, *os.File, error) {
	if a.opts.Tree.Mode() == cgroupfs.None {
		return nil, nil, nil
	}
	leaf, err := a.opts.Tree.Make(prefix + session + "-" + rand.Text()[:nonce])
	if err != nil {
		return nil, nil, fmt.Errorf("making a cgroup to work on a workspace in: %w", err)
	}
	for _, u := range leaf.SetLimits(limits) {
		a.opts.Logger.Warn("a limit could not be set for the work on a workspace", "session", session, "file", u.File, "error", u.Err)
	}
	dir, err := leaf.OpenWork()
	if err != nil {
		a.clear(leaf)
		return nil, nil, fmt.Errorf("opening the cgroup to work on a workspace in: %w", err)
	}
	return leaf, dir, nil
}

// clear kills whatever the run has left, and removes its cgroup.
func (a *Appraiser) clear(leaf *cgroupfs.Leaf) {
	if err := end(context.Background(), leaf); err != nil {
		a.opts.Logger.Warn("a cgroup in which a workspace was worked on is left; the next start tries again", "cgroup", leaf.Path(), "error", err)
	}
}

// end proves that nothing of a run is left.
func end(ctx context.Context, leaf *cgroupfs.Leaf) error {
	ctx, cancel := context.WithTimeout(ctx, clearBound)
	defer cancel()
	err := leaf.Kill()
	if err == nil {
		err = leaf.WaitEmpty(ctx)
	}
	if err == nil {
		err = leaf.Remove(ctx)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Fence ends what an earlier preparation of the session may have left, of this
// daemon or of one before, and proves it: two must not work on one workspace, and
// none on one that is being deleted.
func (a *Appraiser) Fence(ctx context.Context, session string) error {
	if a.opts.Tree.Mode() == cgroupfs.None {
		return nil
	}
	names, err := a.opts.Tree.List()
	if err != nil {
		return fmt.Errorf("looking for an earlier preparation: %w", err)
	}
	for _, name := range names {
		rest, ok := strings.CutPrefix(name, prepareDir+session+"-")
		if !ok || len(rest) != nonce {
			continue
		}
		leaf, err := a.opts.Tree.Open(name)
		if err == nil {
			err = end(ctx, leaf)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("ending an earlier preparation: %w", err)
		}
	}
	return nil
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
	return slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, lookDir) && !strings.HasPrefix(name, prepareDir)
	})
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
