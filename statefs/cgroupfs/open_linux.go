package cgroupfs

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Open makes the base PARENT/NAME, or finds it, and proves on a throw-away child that this process can
// make cgroups there, clone into them and kill what is in them. An empty parent means: the mount's root,
// where that is allowed, else the process's own cgroup if it was delegated to it.
//
// Where the proof fails the result is a Tree of Mode None whose Reason says why, and no error: the host
// runs with weaker evidence then. An error means that an argument makes no sense.
func Open(parent, name string) (*Tree, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if parent != "" && (!path.IsAbs(parent) || path.Clean(parent) != parent) {
		return nil, fmt.Errorf("opening cgroup parent %q: not a clean absolute path", parent)
	}
	mount, mode := Detect()
	if mode == None {
		return &Tree{reason: "no cgroup2 file system is mounted at " + pureMount + " or " + hybridMount}, nil
	}
	parents := []string{parent}
	if parent == "" {
		parents = candidates(mount)
	}
	var reasons []string
	for _, p := range parents {
		t, err := open(mount, mode, p, name)
		if err == nil {
			return t, nil
		}
		reasons = append(reasons, err.Error())
	}
	return &Tree{reason: strings.Join(reasons, "; ")}, nil
}

// candidates are the parents worth trying: the root of the mount; what was delegated to the unit when
// systemd put us into a subgroup of it (DelegateSubgroup=); our own cgroup.
func candidates(mount string) []string {
	c := []string{mount}
	own, err := PathOf(0, mount)
	if err != nil || own == mount {
		return c
	}
	if up := path.Dir(own); up != mount && delegated(up) && !delegated(own) {
		c = append(c, up)
	}
	return append(c, own)
}

// delegated asks for the mark that systemd leaves on a cgroup it will not touch any more, see the
// "Delegation" part of systemd's CGROUP_DELEGATION document.
func delegated(dir string) bool {
	var buf [8]byte
	for _, attr := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Lgetxattr(dir, attr, buf[:]); err == nil && string(buf[:n]) == "1" {
			return true
		}
	}
	return false
}

func open(mount string, mode Mode, parent, name string) (*Tree, error) {
	if !isCgroup2(parent) {
		return nil, fmt.Errorf("%s is not a cgroup2 directory", parent)
	}
	root, err := mountRoot(mount)
	if err != nil {
		return nil, err
	}
	rel, ok := below(parent, mount)
	if !ok {
		return nil, fmt.Errorf("%s is not below the cgroup2 mount %s", parent, mount)
	}
	t := &Tree{mode: mode, path: path.Join(parent, name), procPath: path.Join(root, rel, name)}
	made := true
	if err := unix.Mkdir(t.path, 0o755); errors.Is(err, unix.EEXIST) {
		made = false
	} else if err != nil {
		return nil, fmt.Errorf("making base cgroup %s: %w", t.path, err)
	}
	if err := t.hold(parent, name); err != nil {
		if made {
			_ = unix.Rmdir(t.path)
		}
		return nil, err
	}
	return t, nil
}

// hold opens the base, proves that it works and hands the controllers down to it.
func (t *Tree) hold(parent, name string) error {
	up, err := unix.Open(parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening cgroup %s: %w", parent, err)
	}
	defer unix.Close(up)
	fd, err := openDirAt(up, name)
	if err != nil {
		return fmt.Errorf("opening base cgroup %s: %w", t.path, err)
	}
	t.dir = os.NewFile(uintptr(fd), t.path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.dir.Close()
		return fmt.Errorf("opening base cgroup %s: %w", t.path, err)
	}
	t.dev, t.inode = st.Dev, st.Ino
	if err := t.probe(); err != nil {
		t.dir.Close()
		return err
	}
	enable(up, "")
	enable(fd, "")
	return nil
}

// probe proves mkdir, clone-into and cgroup.kill on a throw-away child.
func (t *Tree) probe() error {
	t.sweepProbes()
	name := probePrefix + strings.ToLower(rand.Text())
	if err := unix.Mkdirat(t.fd(), name, 0o755); err != nil {
		return fmt.Errorf("making a cgroup in %s: %w", t.path, err)
	}
	defer unix.Unlinkat(t.fd(), name, unix.AT_REMOVEDIR)
	dir, err := openDirAt(t.fd(), name)
	if err != nil {
		return fmt.Errorf("opening a cgroup in %s: %w", t.path, err)
	}
	defer unix.Close(dir)
	if err := cloneInto(dir); err != nil {
		return fmt.Errorf("cloning a process into a cgroup in %s: %w", t.path, err)
	}
	if err := writeAt(dir, "cgroup.kill", "1"); err != nil {
		return fmt.Errorf("killing a cgroup in %s: %w", t.path, err)
	}
	return nil
}

// cloneInto proves that a process can be born in the cgroup, without needing a program to run: the child
// is asked to execute a path that is too long for the kernel. ENAMETOOLONG is an answer that only a
// child gives; clone3(2) itself never does, so whatever else comes back is the refusal.
func cloneInto(dir int) error {
	attr := syscall.ProcAttr{Sys: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: dir}}
	_, err := syscall.ForkExec("/"+strings.Repeat("x", unix.PathMax), []string{"probe"}, &attr)
	if err == syscall.ENAMETOOLONG {
		return nil
	}
	if err == nil {
		return errors.New("internal error: a path that is too long was executed")
	}
	return err
}

// sweepProbes removes what a daemon that died while probing has left.
func (t *Tree) sweepProbes() {
	names, err := subdirs(t.fd(), ".")
	if err != nil {
		return
	}
	for _, n := range names {
		if strings.HasPrefix(n, probePrefix) {
			_ = unix.Unlinkat(t.fd(), n, unix.AT_REMOVEDIR)
		}
	}
}

// wanted are the controllers that limits need.
var wanted = []string{"memory", "pids", "cpu", "io"}

// enable hands the wanted controllers that the cgroup has down to its children, one by one, because the
// kernel takes all of a write or nothing. Failing is not an error: a parent with processes in it cannot
// (EBUSY), another hierarchy may hold the controller, and a fence needs none. SetLimits reports it.
func enable(dir int, rel string) {
	has := controllers(dir, path.Join(rel, "cgroup.controllers"))
	on := controllers(dir, path.Join(rel, "cgroup.subtree_control"))
	var missing []string
	for _, c := range wanted {
		if slices.Contains(has, c) && !slices.Contains(on, c) {
			missing = append(missing, "+"+c)
		}
	}
	if len(missing) == 0 {
		return
	}
	file := path.Join(rel, "cgroup.subtree_control")
	if writeAt(dir, file, strings.Join(missing, " ")) == nil {
		return
	}
	for _, c := range missing {
		_ = writeAt(dir, file, c)
	}
}

func controllers(dir int, rel string) []string {
	var buf [256]byte
	b, err := readAt(dir, rel, buf[:])
	if err != nil {
		return nil
	}
	return strings.Fields(string(bytes.TrimSpace(b)))
}
