package cgroupfs

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// IsScope reports whether the leaf is made to be a scope of systemd's.
func (l *Leaf) IsScope() bool { return IsScope(l.name) }

// OpenEntry opens the cgroup that the wrapper is cloned into: wrap, or the leaf itself where that is to be
// a scope, because systemd takes processes into the scope's own cgroup and nowhere else. The caller closes it.
func (l *Leaf) OpenEntry() (*os.File, error) {
	if !l.IsScope() {
		return l.OpenWrap()
	}
	fd, err := openDirAt(l.tree.fd(), l.name)
	if err != nil {
		return nil, l.fail("opening", l.name, err)
	}
	return os.NewFile(uintptr(fd), l.Path()), nil
}

// Settle moves the wrapper from the leaf itself to wrap, with all its threads, and hands the controllers
// down, which the kernel allows while nothing is in the leaf itself. For leaves that are scopes, after
// systemd was asked. The caller makes sure that the pid is still that of the wrapper, which runs nothing
// yet.
func (l *Leaf) Settle(pid int) error {
	rel := l.name + "/" + wrapDir
	if err := writeAt(l.tree.fd(), rel+"/cgroup.procs", strconv.Itoa(pid)); err != nil {
		return l.fail("moving the wrapper to", rel, err)
	}
	dir, err := openDirAt(l.tree.fd(), l.name)
	if err != nil {
		return l.fail("opening", l.name, err)
	}
	defer unix.Close(dir)
	enable(dir)
	return nil
}

// Managed reports whether systemd holds the leaf to be a unit of its own: it has left its mark on the
// directory. A leaf that was made to be a scope need not have become one.
func (l *Leaf) Managed() (bool, error) {
	if !l.IsScope() {
		return false, nil
	}
	dir, err := openDirAt(l.tree.fd(), l.name)
	if err != nil {
		return false, l.fail("opening", l.name, err)
	}
	defer unix.Close(dir)
	return delegated(fmt.Sprintf("/proc/self/fd/%d/.", dir)), nil
}
