package cgroupfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Open makes the base PARENT/NAME, or finds it, and proves on a throw-away child that this process can
// make cgroups there, clone into them and kill what is in them. An empty parent means: the mount's root,
// where that is allowed, else the outermost cgroup above the process's own that was delegated, else its own.
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

// candidates are the parents worth trying: the root of the mount; every cgroup from there down to our own
// that was delegated, the outermost first; our own cgroup. So the tree of an ordinary user is made in the
// cgroup of the user's service manager (user@.service) and not in that of the scope or service of the
// moment: it outlives them, is found by the next daemon, and can get controllers, as that cgroup holds no
// processes of its own. The same goes for a unit with DelegateSubgroup=.
func candidates(mount string) []string {
	c := []string{mount}
	own, err := PathOf(0, mount)
	if err != nil || own == mount {
		return c
	}
	var marked []string
	for up := own; up != mount && up != "/"; up = path.Dir(up) {
		if delegated(up) {
			marked = append(marked, up)
		}
	}
	slices.Reverse(marked)
	c = append(c, marked...)
	if !slices.Contains(c, own) {
		c = append(c, own)
	}
	return c
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

// Attach opens the existing base at path as it is: nothing is made, proved or changed. It is for programs
// beside the daemon that owns the base, such as its wrappers and berthctl, which need not be allowed to do
// all that a Tree offers. fs.ErrNotExist means that there is no such directory, and says nothing about
// leaves.
func Attach(path string) (*Tree, error) {
	mount, mode := Detect()
	if mode == None {
		return nil, fmt.Errorf("attaching to cgroup %q: %w", path, ErrUnavailable)
	}
	t, err := locate(mount, mode, path)
	if err != nil {
		return nil, fmt.Errorf("attaching to cgroup %q: %w", path, err)
	}
	if err := t.hold(); err != nil {
		return nil, fmt.Errorf("attaching: %w", err)
	}
	return t, nil
}

// OpenSlice opens the existing cgroup at path, a slice of systemd's that holds leaves which are scopes, and
// proves there what Open proves. Which controllers its children get is systemd's to say: nothing is handed
// down. fs.ErrNotExist as with Attach.
func OpenSlice(path string) (*Tree, error) {
	t, err := Attach(path)
	if err != nil {
		return nil, err
	}
	if err := t.probe(); err != nil {
		t.dir.Close()
		return nil, fmt.Errorf("opening slice: %w", err)
	}
	return t, nil
}

// locate says where the cgroup at base lies in the hierarchy, whether or not it exists.
func locate(mount string, mode Mode, base string) (*Tree, error) {
	root, err := mountRoot(mount)
	if err != nil {
		return nil, err
	}
	rel, ok := below(base, mount)
	if !ok || rel == "" {
		return nil, fmt.Errorf("%s is not below the cgroup2 mount %s", base, mount)
	}
	return &Tree{mode: mode, mount: mount, root: root, path: base, procPath: path.Join(root, rel)}, nil
}

func open(mount string, mode Mode, parent, name string) (*Tree, error) {
	if !isCgroup2(parent) {
		return nil, fmt.Errorf("%s is not a cgroup2 directory", parent)
	}
	t, err := locate(mount, mode, path.Join(parent, name))
	if err != nil {
		return nil, err
	}
	made := true
	if err := unix.Mkdir(t.path, 0o755); errors.Is(err, unix.EEXIST) {
		made = false
	} else if err != nil {
		return nil, fmt.Errorf("making base cgroup %s: %w", t.path, err)
	}
	if err = t.hold(); err == nil {
		handDown(parent)
		enable(t.fd())
		if err = t.probe(); err == nil { // with the controllers in place, since they can spoil it
			return t, nil
		}
		t.dir.Close()
	}
	if made {
		_ = unix.Rmdir(t.path)
	}
	return nil, err
}

// hold opens the base, following no link in its last part.
func (t *Tree) hold() error {
	fd, err := unix.Open(t.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening base cgroup %s: %w", t.path, err)
	}
	var st unix.Stat_t
	var fs unix.Statfs_t
	err = errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &fs))
	if err == nil && fs.Type != unix.CGROUP2_SUPER_MAGIC {
		err = errors.New("not a cgroup2 directory")
	}
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("opening base cgroup %s: %w", t.path, err)
	}
	t.dir, t.dev, t.inode = os.NewFile(uintptr(fd), t.path), st.Dev, st.Ino
	return nil
}

// probe proves mkdir, clone-into and cgroup.kill on a throw-away child.
func (t *Tree) probe() error {
	t.sweepProbes()
	name := fmt.Sprintf("%s%d-%d", probePrefix, os.Getpid(), time.Now().UnixNano())
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

// handDown is enable for the base's parent.
func handDown(path string) {
	if fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
		enable(fd)
		unix.Close(fd)
	}
}

// enable hands the wanted controllers that the cgroup has down to its children, one by one if need be,
// because the kernel takes all of a write or nothing. Failing is not an error: another hierarchy may hold
// the controller, and a fence needs none. SetLimits reports it.
//
// A cgroup with processes of its own is left alone, unless it is the root. The kernel refuses domain
// controllers there (EBUSY) but accepts pids and cpu, which turns the cgroup into a threaded domain and
// every cgroup below it into an invalid one that nothing can be cloned into (EOPNOTSUPP).
func enable(dir int) {
	if !isRoot(dir) {
		if procs, err := readAt(dir, "cgroup.procs", make([]byte, 1024)); err != nil || len(procs) > 0 {
			return
		}
	}
	has, on := controllers(dir, "cgroup.controllers"), controllers(dir, "cgroup.subtree_control")
	var missing []string
	for _, c := range wanted {
		if slices.Contains(has, c) && !slices.Contains(on, c) {
			missing = append(missing, "+"+c)
		}
	}
	if len(missing) == 0 {
		return
	}
	if writeAt(dir, "cgroup.subtree_control", strings.Join(missing, " ")) == nil {
		return
	}
	for _, c := range missing {
		_ = writeAt(dir, "cgroup.subtree_control", c)
	}
}

// isRoot tells the hierarchy's real root, which alone has no cgroup.type, from that of a namespace.
func isRoot(dir int) bool {
	var buf [64]byte
	_, err := readAt(dir, "cgroup.type", buf[:])
	return errors.Is(err, unix.ENOENT)
}

func controllers(dir int, rel string) []string {
	var buf [256]byte
	b, err := readAt(dir, rel, buf[:])
	if err != nil {
		return nil
	}
	return strings.Fields(string(bytes.TrimSpace(b)))
}
