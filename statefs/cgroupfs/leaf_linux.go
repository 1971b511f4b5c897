package cgroupfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	wrapDir = "wrap"
	workDir = "work"
)

// Leaf is the cgroup of one generation of one session. It holds no descriptor. Errors of its methods
// match fs.ErrNotExist exactly when the leaf is proven gone (see Tree.Open); every other error means
// that nothing is known.
type Leaf struct {
	tree  *Tree
	name  string
	inode uint64
}

// Name returns the directory's name in the base.
func (l *Leaf) Name() string { return l.name }

// Path returns the leaf's directory.
func (l *Leaf) Path() string { return l.tree.leafPath(l.name) }

// WrapPath returns the directory of the wrapper's cgroup, which has no limits.
func (l *Leaf) WrapPath() string { return l.tree.leafPath(l.name, wrapDir) }

// WorkPath returns the directory of the cgroup of everything else.
func (l *Leaf) WorkPath() string { return l.tree.leafPath(l.name, workDir) }

// Inode returns the leaf's inode number, which is its cgroup id.
func (l *Leaf) Inode() uint64 { return l.inode }

// ParentInode returns the base's inode number, as Tree.Inode.
func (l *Leaf) ParentInode() uint64 { return l.tree.inode }

// OpenWrap opens wrap for cloning a process into it (SysProcAttr.UseCgroupFD). The caller closes it.
func (l *Leaf) OpenWrap() (*os.File, error) { return l.openChild(wrapDir) }

// OpenWork opens work for cloning a process into it. The caller closes it.
func (l *Leaf) OpenWork() (*os.File, error) { return l.openChild(workDir) }

func (l *Leaf) openChild(child string) (*os.File, error) {
	rel := l.name + "/" + child
	fd, err := openDirAt(l.tree.fd(), rel)
	if err != nil {
		return nil, l.fail("opening", rel, err)
	}
	return os.NewFile(uintptr(fd), l.tree.leafPath(rel)), nil
}

func (l *Leaf) fail(verb, rel string, err error) error {
	return l.tree.fail(fmt.Sprintf("%s cgroup %q", verb, rel), l.name, err)
}

// Populated reports whether a live process is anywhere in the leaf, in whatever depth and under whatever
// name: the kernel's word, for one open, one read and one close. Zombies do not count.
func (l *Leaf) Populated() (bool, error) {
	e, err := l.events(l.name)
	return e.populated, err
}

// WorkPopulated is Populated for work alone.
func (l *Leaf) WorkPopulated() (bool, error) {
	e, err := l.events(l.name + "/" + workDir)
	return e.populated, err
}

// events reads cgroup.events of the leaf or of one of its children. A child that is missing while the
// leaf is there (a making that was cut short, a removal under way) is empty.
func (l *Leaf) events(rel string) (events, error) {
	var buf [128]byte
	b, err := readAt(l.tree.fd(), rel+"/cgroup.events", buf[:])
	if err != nil {
		if rel != l.name && l.missing(rel, err) {
			return events{}, nil
		}
		return events{}, l.fail("reading", rel, err)
	}
	e, err := parseEvents(b)
	if err != nil {
		return events{}, fmt.Errorf("reading cgroup %q: %w", rel, err)
	}
	return e, nil
}

// missing reports whether rel is proven not to exist inside a leaf that does.
func (l *Leaf) missing(rel string, cause error) bool {
	if !vanished(cause) {
		return false
	}
	if _, err := l.tree.Open(l.name); err != nil {
		return false
	}
	fd, err := openDirAt(l.tree.fd(), rel)
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, fs.ErrNotExist)
}

// Kill kills everything in the leaf, the wrapper included, with one write that no fork outruns, frozen
// or not (cgroup.kill, Linux 5.14). It does not wait: see WaitEmpty. The kernel also kills whatever is
// cloned into the leaf later (seen on 6.18). A leaf that is gone is no error.
func (l *Leaf) Kill() error { return l.kill(l.name) }

// KillWork is Kill for work alone; the wrapper lives on.
func (l *Leaf) KillWork() error { return l.kill(l.name + "/" + workDir) }

func (l *Leaf) kill(rel string) error {
	err := writeAt(l.tree.fd(), rel+"/cgroup.kill", "1")
	if err == nil || l.missing(rel, err) {
		return nil
	}
	if err = l.fail("killing", rel, err); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Freeze stops everything in work and returns once the kernel says that all of it is stopped. When ctx
// ends first, or anything fails, the freeze is taken back. A freeze that succeeded is undone by Thaw
// alone, so its caller notes it durably first. Killing works on what is frozen.
func (l *Leaf) Freeze(ctx context.Context) error {
	rel := l.name + "/" + workDir
	err := writeAt(l.tree.fd(), rel+"/cgroup.freeze", "1")
	if err != nil {
		return l.fail("freezing", rel, err)
	}
	err = poll(ctx, func() (bool, error) {
		e, err := l.events(rel)
		return e.frozen, err
	})
	if err == nil {
		return nil
	}
	if terr := l.Thaw(); terr != nil && !errors.Is(terr, fs.ErrNotExist) {
		return fmt.Errorf("freezing cgroup %q: %w; STILL FROZEN: %v", rel, err, terr)
	}
	return fmt.Errorf("freezing cgroup %q: %w", rel, err)
}

// Thaw undoes Freeze; work that is not frozen stays as it is.
func (l *Leaf) Thaw() error {
	rel := l.name + "/" + workDir
	err := writeAt(l.tree.fd(), rel+"/cgroup.freeze", "0")
	if err == nil || l.missing(rel, err) {
		return nil
	}
	return l.fail("thawing", rel, err)
}

// Frozen reports whether work was told to freeze, whether or not all of it has stopped by now: what a
// daemon that starts again has to undo unless a durable note says otherwise.
func (l *Leaf) Frozen() (bool, error) {
	rel := l.name + "/" + workDir
	var buf [16]byte
	b, err := readAt(l.tree.fd(), rel+"/cgroup.freeze", buf[:])
	if err != nil {
		if l.missing(rel, err) {
			return false, nil
		}
		return false, l.fail("reading", rel, err)
	}
	return string(b) == "1\n", nil
}

// WaitEmpty returns nil once the leaf is empty or gone; ctx's error when that ends first.
func (l *Leaf) WaitEmpty(ctx context.Context) error { return l.waitEmpty(ctx, l.Populated) }

// WaitWorkEmpty is WaitEmpty for work alone.
func (l *Leaf) WaitWorkEmpty(ctx context.Context) error { return l.waitEmpty(ctx, l.WorkPopulated) }

func (l *Leaf) waitEmpty(ctx context.Context, populated func() (bool, error)) error {
	err := poll(ctx, func() (bool, error) {
		p, err := populated()
		return !p, err
	})
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("waiting for cgroup %q to empty: %w", l.name, err)
}

// The pace of polling. The kernel limits notifications of cgroup.events to one in 10 ms, so looking is
// quicker than being told; a look costs some 8 µs.
const (
	pollFirst = 100 * time.Microsecond
	pollMost  = 10 * time.Millisecond
)

// poll calls done until it says true or fails, with growing pauses, at least once, and returns ctx's
// error when that ends first.
func poll(ctx context.Context, done func() (bool, error)) error {
	for pause := pollFirst; ; pause = min(2*pause, pollMost) {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}
