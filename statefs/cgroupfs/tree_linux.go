package cgroupfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/statefs/failpoint"
	"golang.org/x/sys/unix"
)

// Mode says how much of cgroup v2 there is.
type Mode uint8

// Modes. The zero Mode is None.
const (
	None   Mode = iota // no usable tree: evidence is weak
	V2                 // cgroup2 is the host's hierarchy: fence and limits
	Hybrid             // cgroup2 beside version 1, which holds the controllers: a fence without limits
)

// String returns the mode in lower case, as the configuration spells it.
func (m Mode) String() string {
	switch m {
	case V2:
		return "v2"
	case Hybrid:
		return "hybrid"
	}
	return "none"
}

// Where the two layouts mount cgroup2, by systemd's convention that everything follows.
const (
	pureMount   = "/sys/fs/cgroup"
	hybridMount = "/sys/fs/cgroup/unified"
)

var (
	// ErrExists: the leaf has been made before. A leaf is never used twice.
	ErrExists = errors.New("leaf exists")
	// ErrUnavailable: the tree has Mode None.
	ErrUnavailable = errors.New("no cgroup v2 tree")
	// ErrReplaced: the base directory is not the one that was opened, so nothing can be said about leaves.
	ErrReplaced = errors.New("base cgroup was replaced")
	// ErrPopulated: processes keep the cgroup from being removed.
	ErrPopulated = errors.New("cgroup is populated")
)

// Detect returns where cgroup2 is mounted and in which layout; None with an empty mount when it is not.
func Detect() (mount string, mode Mode) {
	if isCgroup2(pureMount) {
		return pureMount, V2
	}
	if isCgroup2(hybridMount) {
		return hybridMount, Hybrid
	}
	return "", None
}

func isCgroup2(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// Tree is the base directory of one host. Its methods may be called concurrently.
type Tree struct {
	mode     Mode
	mount    string // mount point
	root     string // the cgroup that is mounted there, in the terms of procPath
	path     string
	procPath string
	reason   string
	dir      *os.File // O_PATH; nil in Mode None
	dev      uint64
	inode    uint64
}

// Mode returns the layout, None when the tree cannot be used.
func (t *Tree) Mode() Mode { return t.mode }

// Path returns the base's directory, empty in Mode None.
func (t *Tree) Path() string { return t.path }

// ProcPath returns the base as /proc/PID/cgroup spells it for readers in this cgroup namespace.
func (t *Tree) ProcPath() string { return t.procPath }

// Inode returns the base's inode number, which is its cgroup id: 64 bits, not reused during a boot. A
// lease records it, so that a missing leaf counts as gone only below the base that it was made in.
func (t *Tree) Inode() uint64 { return t.inode }

// Reason says why the Mode is None, for people; empty otherwise.
func (t *Tree) Reason() string { return t.reason }

// Close gives the base's descriptor back. The tree must not be used afterwards.
func (t *Tree) Close() error {
	if t.dir == nil {
		return nil
	}
	return t.dir.Close()
}

func (t *Tree) fd() int { return int(t.dir.Fd()) }

func (t *Tree) usable(doing string) error {
	if t.mode == None {
		return fmt.Errorf("%s: %w: %s", doing, ErrUnavailable, t.reason)
	}
	return nil
}

// confirm proves that the base is still what its path leads to. Without that a missing leaf means
// nothing: the base may have been removed and made anew, or hidden by a mount.
func (t *Tree) confirm() error {
	var st unix.Stat_t
	if err := unix.Lstat(t.path, &st); err != nil {
		return fmt.Errorf("looking for base cgroup %q: %v: %w", t.path, err, ErrReplaced)
	}
	if st.Ino != t.inode || st.Dev != t.dev {
		return fmt.Errorf("looking for base cgroup %q: inode %d instead of %d: %w", t.path, st.Ino, t.inode, ErrReplaced)
	}
	return nil
}

// Current reports whether the base's path leads to the directory that was opened; false in Mode None.
func (t *Tree) Current() bool { return t.mode != None && t.confirm() == nil }

// gone turns the ENOENT or ENODEV of an operation on a leaf into fs.ErrNotExist when the leaf's
// directory is proven missing under the confirmed base, and into an error that matches nothing else.
func (t *Tree) gone(doing, leaf string, cause error) error {
	if err := t.confirm(); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	for range removalLooks {
		fd, err := openDirAt(t.fd(), leaf)
		switch {
		case vanished(err):
			return fmt.Errorf("%s: leaf %q: %w", doing, leaf, fs.ErrNotExist)
		case err != nil:
			return fmt.Errorf("%s: %v", doing, err)
		}
		going := removing(fd)
		unix.Close(fd)
		if !going {
			break
		}
		time.Sleep(removalPause)
	}
	return fmt.Errorf("%s: the leaf is there but answers %q", doing, cause)
}

// A removal takes the files of a cgroup away before the directory (cgroup_destroy_locked in
// kernel/cgroup/cgroup.c). Of a leaf that somebody else removes, as systemd does with its scopes, that is to
// be seen for a moment.
const (
	removalLooks = 50
	removalPause = time.Millisecond
)

// removing reports whether the cgroup with that descriptor has lost its files already.
func removing(dir int) bool {
	_, err := readAt(dir, "cgroup.events", make([]byte, 128))
	return vanished(err)
}

// fail words an error of an operation on a leaf; vanished ones are examined by gone.
func (t *Tree) fail(doing, leaf string, err error) error {
	if vanished(err) {
		return t.gone(doing, leaf, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Make makes the leaf and its two children. ErrExists when the directory is there already, in whatever
// state: a leaf is never used twice. What was made is taken back when a later step fails. Controllers
// are handed down as far as the kernel has them; SetLimits says what is missing. A leaf that is to be a
// scope gets them when it is settled: until then its wrapper is in the leaf itself.
func (t *Tree) Make(leaf string) (*Leaf, error) {
	doing := fmt.Sprintf("making leaf %q", leaf)
	if err := t.usable(doing); err != nil {
		return nil, err
	}
	if err := checkName(leaf); err != nil {
		return nil, err
	}
	if err := t.confirm(); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	if err := failpoint.Hit("cgroup.make.before"); err != nil {
		return nil, err
	}
	if err := unix.Mkdirat(t.fd(), leaf, 0o755); errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("%s: %w", doing, ErrExists)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	l, err := t.furnish(leaf)
	if err != nil {
		_ = t.removeLeaf(leaf) // only what we made a moment ago; the first error is the news
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return l, nil
}

// furnish puts the children into a leaf that was just made.
func (t *Tree) furnish(leaf string) (*Leaf, error) {
	dir, err := openDirAt(t.fd(), leaf)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	for _, child := range []string{wrapDir, workDir} {
		if err := failpoint.Hit("cgroup.make.child"); err != nil {
			return nil, err
		}
		if err := unix.Mkdirat(dir, child, 0o755); err != nil {
			return nil, err
		}
	}
	// Best effort, both: bounds on what an agent with write access below work may nest (removing a
	// leaf walks it), and controllers, which a hybrid host does not have here.
	_ = writeAt(dir, "cgroup.max.descendants", maxDescendants)
	_ = writeAt(dir, "cgroup.max.depth", maxDepth)
	if !IsScope(leaf) {
		enable(dir)
	}
	return t.identified(leaf, dir)
}

// Bounds of what may be nested in a leaf: enough for a container with systemd inside it.
const (
	maxDescendants = "4096"
	maxDepth       = "32"
)

func (t *Tree) identified(leaf string, dir int) (*Leaf, error) {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return nil, err
	}
	return &Leaf{tree: t, name: leaf, inode: st.Ino}, nil
}

// Open returns an existing leaf. fs.ErrNotExist means that it is proven gone under the base whose inode
// is Inode; the caller compares that with what it recorded. Every other error means unknown.
func (t *Tree) Open(leaf string) (*Leaf, error) {
	doing := fmt.Sprintf("opening leaf %q", leaf)
	if err := t.usable(doing); err != nil {
		return nil, err
	}
	if err := checkName(leaf); err != nil {
		return nil, err
	}
	dir, err := openDirAt(t.fd(), leaf)
	if err != nil {
		return nil, t.fail(doing, leaf, err)
	}
	defer unix.Close(dir)
	l, err := t.identified(leaf, dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return l, nil
}

// List returns the names of all directories in the base, sorted, never nil on success: leaves, and
// whatever a stranger made there. ParseLeafName tells which are leaves.
func (t *Tree) List() ([]string, error) {
	doing := fmt.Sprintf("listing base cgroup %q", t.path)
	if err := t.usable(doing); err != nil {
		return nil, err
	}
	if err := t.confirm(); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	names, err := subdirs(t.fd(), ".")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return strings.HasPrefix(n, probePrefix) })
	slices.Sort(names)
	return append([]string{}, names...), nil
}

// Remove removes the base. It fails with ErrPopulated while there are leaves or processes in it; a base
// that is gone already is no error. It does nothing in Mode None.
func (t *Tree) Remove() error {
	if t.mode == None {
		return nil
	}
	if err := t.confirm(); err != nil {
		if _, serr := os.Lstat(t.path); errors.Is(serr, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("removing the base: %w", err)
	}
	t.sweepProbes()
	err := unix.Rmdir(t.path)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("removing base cgroup %q: %w", t.path, ErrPopulated)
	}
	if err != nil && !vanished(err) {
		return fmt.Errorf("removing base cgroup %q: %w", t.path, err)
	}
	return nil
}

// PathOf is the function of that name for the mount of this tree, without looking it up again.
func (t *Tree) PathOf(pid int) (string, error) {
	if err := t.usable("locating a process"); err != nil {
		return "", err
	}
	return pathOf(pid, t.mount, t.root)
}

// LeafOf returns the name of the directory of this base that a process is in, at whatever depth. ok is
// false when it is in none. The pid is a hint, as with PathOf.
func (t *Tree) LeafOf(pid int) (leaf string, ok bool, err error) {
	if err := t.usable("locating a process"); err != nil {
		return "", false, err
	}
	p, _, err := procCgroup(pid)
	if err != nil {
		return "", false, err
	}
	leaf, ok = t.LeafOfPath(p)
	return leaf, ok, nil
}

// LeafOfPath is LeafOf for a path that ParseProcCgroup returned.
func (t *Tree) LeafOfPath(procPath string) (leaf string, ok bool) {
	if t.mode == None {
		return "", false
	}
	rel, ok := below(procPath, t.procPath)
	if !ok || rel == "" {
		return "", false
	}
	leaf, _, _ = strings.Cut(rel, "/")
	return leaf, true
}

func (t *Tree) leafPath(parts ...string) string {
	return path.Join(append([]string{t.path}, parts...)...)
}
