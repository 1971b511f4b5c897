package cgroupfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/berthd/berth/statefs/failpoint"
	"golang.org/x/sys/unix"
)

// removeTries bounds the attempts of Remove; with poll's pace that is about two seconds.
const removeTries = 200

// managerPatience is how long systemd is waited for to remove the directory of a scope that has become
// empty. It learns of that within some 20 ms unless it has much to do.
const managerPatience = time.Second

// AwaitRemoval gives systemd a second to remove a leaf that is a scope of its own and has become empty, and
// reports whether it has not: a scope whose directory somebody else removes first stays with systemd as a
// unit that runs for ever (seen with 252), because the kernel has no way left to say that the cgroup has
// become empty. For other leaves, and for what is not empty, it returns false at once. Remove comes after it
// in any case.
func (l *Leaf) AwaitRemoval(ctx context.Context) (overdue bool) {
	if managed, err := l.Managed(); err != nil || !managed || l.holdsProcess() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, managerPatience)
	defer cancel()
	err := poll(ctx, func() (bool, error) {
		_, err := l.tree.Open(l.name)
		return false, err
	})
	return !errors.Is(err, fs.ErrNotExist)
}

// Remove removes the leaf with everything nested in it, deepest first. A leaf that is gone already, or
// that systemd removes at the same time, is a success, under the same proof as in Tree.Open. While
// something is busy it tries again, for about two seconds or until ctx ends; then ErrPopulated.
// It signals nothing.
func (l *Leaf) Remove(ctx context.Context) error {
	tries := 0
	err := poll(ctx, func() (bool, error) {
		err := l.tree.removeLeaf(l.name)
		if tries++; errors.Is(err, unix.EBUSY) && tries < removeTries {
			return false, nil
		}
		return true, err
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY), errors.Is(err, ctx.Err()) && l.holdsProcess():
		return fmt.Errorf("removing leaf %q: %w", l.name, ErrPopulated)
	case vanished(err):
		if err = l.tree.gone(fmt.Sprintf("removing leaf %q", l.name), l.name, err); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return fmt.Errorf("removing leaf %q: %w", l.name, err)
}

func (l *Leaf) holdsProcess() bool {
	p, err := l.Populated()
	return p && err == nil
}

// removeLeaf makes one attempt. ENOENT and ENODEV of the leaf itself come back to be judged.
func (t *Tree) removeLeaf(leaf string) error { return rmdirTree(t.fd(), leaf) }

// rmdirTree removes the cgroup name in dir, deepest first, never through links or other mounts. Members
// that vanish meanwhile are fine.
func rmdirTree(dir int, name string) error {
	if err := failpoint.Hit("cgroup.remove.before"); err != nil {
		return err
	}
	err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	fd, err := openDirAt(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	names, err := subdirs(fd, ".")
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := rmdirTree(fd, n); err != nil && !vanished(err) {
			return err
		}
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}
