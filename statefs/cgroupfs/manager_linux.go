package cgroupfs

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// ManagedSlice returns the directory that a top-level slice of systemd's has, or would have, and the same as
// /proc/PID/cgroup spells it, without asking systemd. ok is false where the first process is not a systemd
// that manages the version 2 hierarchy.
func ManagedSlice(name string) (dir, procPath string, ok bool) {
	mount, mode := Detect()
	if mode == None {
		return "", "", false
	}
	// Made by systemd when it begins to manage the system, see sd_booted(3).
	var st unix.Stat_t
	if unix.Lstat("/run/systemd/system", &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return "", "", false
	}
	// It sits in init.scope itself, so that its root holds no process.
	own, _, err := procCgroup(1)
	root, ok := strings.CutSuffix(own, "/init.scope")
	if err != nil || !ok {
		return "", "", false
	}
	mounted, err := mountRoot(mount)
	procPath = path.Join("/", root, name)
	rel, within := below(procPath, mounted)
	if err != nil || !within {
		return "", "", false
	}
	return path.Join(mount, rel), procPath, true
}

// hostAttr names, on a slice, the host whose leaves are in it.
const hostAttr = "user.berth.host"

// Mark notes on the base which host's leaves it holds, and returns the host that was noted there before, ""
// when none was. A base that holds leaves of another host stays that host's: mine is false then, and nothing
// was changed.
func (t *Tree) Mark(host string) (before string, mine bool, err error) {
	doing := fmt.Sprintf("marking base cgroup %q", t.path)
	if err := t.usable(doing); err != nil {
		return "", false, err
	}
	at := fmt.Sprintf("/proc/self/fd/%d/.", t.fd())
	var buf [64]byte
	switch n, err := unix.Lgetxattr(at, hostAttr, buf[:]); {
	case err == nil:
		before = string(buf[:n])
	case err != unix.ENODATA:
		return "", false, fmt.Errorf("%s: %w", doing, err)
	}
	if before == host {
		return before, true, nil
	}
	if before != "" {
		names, err := t.List()
		if err != nil {
			return before, false, fmt.Errorf("%s: %w", doing, err)
		}
		for _, name := range names {
			if _, _, ok := ParseLeafName(name); ok {
				return before, false, nil
			}
		}
	}
	if err := unix.Lsetxattr(at, hostAttr, []byte(host), 0); err != nil {
		return before, false, fmt.Errorf("%s: %w", doing, err)
	}
	return before, true, nil
}
