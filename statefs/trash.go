package statefs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/berthd/berth/statefs/failpoint"
	"golang.org/x/sys/unix"
)

// maxTrashName is the longest name in the trash, in bytes (NAME_MAX).
const maxTrashName = 255

// Errors of the trash; match with errors.Is.
var (
	// ErrOutside is a path that is not strictly below a root of the trash.
	ErrOutside = errors.New("not below a directory that the trash serves")
	// ErrRootChanged is a root that is another directory than when it was
	// added: its file system was unmounted or another one mounted over it.
	// What is missing there now is not absent.
	ErrRootChanged = errors.New("no longer the directory that it was")
)

// MountedError refuses to move or delete a tree because something is mounted
// at or below it.
type MountedError struct {
	// Path is the tree, or the directory in it that could not be entered.
	Path string
	// MountPoint is where the mount is, as the processes of its namespace see it.
	MountPoint string
	// PID is a process of the namespace that has the mount (its
	// /proc/PID/mountinfo shows it); 0 = the daemon's own. Holder is that
	// process's name.
	PID    int
	Holder string
}

// Error names the mount and, for another namespace, a process in it.
func (e *MountedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%q has a mount at %q, in the daemon's own mount namespace: \"umount\" lets the deletion go on", e.Path, e.MountPoint)
	}
	return fmt.Sprintf("%q has a mount at %q, in the mount namespace of process %d (%s)", e.Path, e.MountPoint, e.PID, e.Holder)
}

// Trash takes trees out of the way by one rename and deletes them later. Its
// methods may be called at once from several goroutines; Purge and Empty take
// long and belong into a worker.
//
// A tree can only be renamed within its mount. So a root on another mount than
// the state directory's trash has one of its own, a hidden directory
// .berth-trash-HOST (first 12 digits of the host id, 0700) in the root itself,
// made when the root is added: later the disk may be full. It is found again
// by adding the same root, not by a record.
type Trash struct {
	main string // the state directory's trash
	side string // the name of a root's own trash

	mu    sync.Mutex
	roots []trashRoot
}

func newTrash(l Layout) *Trash {
	return &Trash{main: filepath.Join(l.path, trashName), side: ".berth-trash-" + l.hostID[:12]}
}

// Put moves the directory at path into the trash under name (as SafeName, but
// up to 255 bytes), by one rename between directories that are held open;
// nothing is followed, no mount is crossed, nothing is copied. The caller has
// chosen and recorded name before: Put may be repeated after a crash, and
// returns nil when path is gone and name is there. It is on stable storage
// when Put returns nil.
//
// Errors: one that matches fs.ErrNotExist when neither is there (whoever sees
// that must not take it for a deletion that was done: see ErrRootChanged);
// *MountedError when anything is mounted at or below path, in this mount
// namespace or in one that can be looked at; fs.ErrExist when both are there;
// ErrOutside, ErrRootChanged, ErrName; ErrUnfit when path is no directory.
func (t *Trash) Put(ctx context.Context, path, name string) error {
	if err := t.put(ctx, path, name); err != nil {
		return fmt.Errorf("moving %q into the trash as %q: %w", path, name, err)
	}
	return nil
}

func (t *Trash) put(ctx context.Context, path, name string) error {
	if !safeName(name, maxTrashName) {
		return ErrName
	}
	r, rel, err := t.rootOf(path)
	if err != nil {
		return err
	}
	root, err := r.open()
	if err != nil {
		return err
	}
	defer root.Close()
	parent, err := openParent(root, rel)
	if err == unix.ENOENT {
		return t.alreadyThere(name)
	}
	if err != nil {
		return mountedAt(err, path, filepath.Dir(path))
	}
	defer parent.Close()
	base := filepath.Base(rel)
	tree, err := openBeneath(int(parent.Fd()), base, unix.O_PATH)
	if err == unix.ENOENT {
		return t.alreadyThere(name)
	}
	if err != nil {
		return mountedAt(err, path, path)
	}
	defer unix.Close(tree)
	if err := checkMounts(ctx, tree, path); err != nil {
		return err
	}
	if t.alreadyThere(name) == nil {
		return fs.ErrExist
	}
	err = t.moveFrom(r, root, parent, base, tree, name)
	if err == unix.EXDEV && !r.own {
		// On one mount, but in another project (quota): as for another mount.
		if r, err = t.makeOwn(r, root); err == nil {
			err = t.moveFrom(r, root, parent, base, tree, name)
		}
	}
	return err
}

func (t *Trash) moveFrom(r trashRoot, root, parent *os.File, base string, tree int, name string) error {
	trash, err := t.openFor(r, root)
	if err != nil {
		return err
	}
	defer trash.Close()
	return move(parent, base, tree, trash, name)
}

// openParent opens the directory above rel, for its fsync too.
func openParent(root *os.File, rel string) (*os.File, error) {
	dir := filepath.Dir(rel)
	fd, err := openBeneath(int(root.Fd()), dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// alreadyThere returns nil when some trash has name, fs.ErrNotExist when none has.
func (t *Trash) alreadyThere(name string) error {
	found := false
	err := t.each(func(trash *os.File) error {
		var st unix.Stat_t
		err := unix.Fstatat(int(trash.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		found = found || err == nil
		if err == unix.ENOENT {
			return nil
		}
		return err
	})
	if found {
		return nil
	}
	if err != nil {
		return err
	}
	return fs.ErrNotExist
}

// mountedAt turns openat2's refusal to cross into the error that names the mount.
func mountedAt(err error, path, point string) error {
	if err == unix.EXDEV {
		return &MountedError{Path: path, MountPoint: point}
	}
	return err
}

// move renames base of parent, which is open as tree, to name in trash.
// Crash points: (1) after the rename, a power cut may undo it: Put is then
// repeated; (2) between the two fsyncs likewise, no file system loses both names.
func move(parent *os.File, base string, tree int, trash *os.File, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("%w: it is not a directory", ErrUnfit)
	}
	rename := func() error {
		return unix.Renameat2(int(parent.Fd()), base, int(trash.Fd()), name, unix.RENAME_NOREPLACE)
	}
	if err := failpoint.Hit("trash.rename.before"); err != nil {
		return err
	}
	err := eintr(rename)
	if err == unix.EACCES || err == unix.EPERM {
		// Its ".." changes, so it must be writable and not immutable itself.
		if unlock(tree) {
			err = eintr(rename)
		}
		if err == unix.EPERM {
			if lerr := locked(int(parent.Fd()), base); lerr != nil {
				return lerr
			}
		}
	}
	if err == unix.EINVAL {
		// A file system without RENAME_NOREPLACE. A plain rename replaces
		// nothing but an empty directory.
		err = eintr(func() error { return unix.Renameat(int(parent.Fd()), base, int(trash.Fd()), name) })
	}
	if err != nil {
		return err
	}
	if err := failpoint.Hit("trash.rename.after"); err != nil {
		return err
	}
	return errors.Join(trash.Sync(), parent.Sync())
}

// checkMounts refuses when something is mounted at or below the open directory
// tree, in any mount namespace that can be looked at; path names it.
func checkMounts(ctx context.Context, tree int, path string) error {
	others, err := foreignMounts(ctx)
	if err != nil {
		return err
	}
	return checkMountsIn(tree, path, others)
}

func checkMountsIn(tree int, path string, others []namespaceMounts) error {
	own, err := readMounts("self")
	if err != nil {
		return err
	}
	at, err := locate(tree, own)
	if err != nil {
		return fmt.Errorf("looking for mounts below it: %w", err)
	}
	if e, ok := own.below(at); ok {
		return &MountedError{Path: path, MountPoint: e.point}
	}
	for _, ns := range others {
		if e, ok := ns.table.below(at); ok {
			return &MountedError{Path: path, MountPoint: e.point, PID: ns.pid, Holder: processName(ns.pid)}
		}
	}
	return nil
}

// processName is what a process calls itself, for people.
func processName(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "ended meanwhile"
	}
	return strings.TrimSpace(string(name))
}

// List returns the names of the trees in the trash, sorted, nil when there are
// none. What can be listed is also returned beside an error (a root that has
// changed).
func (t *Trash) List() ([]string, error) {
	var all []string
	err := t.each(func(trash *os.File) error {
		names, err := trash.Readdirnames(-1)
		all = append(all, names...)
		return err
	})
	slices.Sort(all)
	if err != nil {
		return slices.Compact(all), fmt.Errorf("listing the trash: %w", err)
	}
	return slices.Compact(all), nil
}

// Purge deletes the tree name from the trash. It goes on where an earlier call
// was cancelled or cut off by a crash, and returns nil when nothing of that
// name is left. Directories are entered under the rules of openat2's
// RESOLVE_BENEATH, NO_SYMLINKS and NO_XDEV, links are deleted and not
// followed, modes that forbid deletion are taken away, attributes (chattr(1))
// that do are not, no new space is needed. Errors: ctx's; *MountedError;
// *LockedError; ErrName; else the operating system's for the first thing that
// could not be deleted, after everything else was.
func (t *Trash) Purge(ctx context.Context, name string) error {
	if !safeName(name, maxTrashName) {
		return fmt.Errorf("purging %q from the trash: %w", name, ErrName)
	}
	others, err := foreignMounts(ctx)
	if err == nil {
		err = t.purge(ctx, name, others)
	}
	if err != nil {
		return fmt.Errorf("purging %q from the trash: %w", name, err)
	}
	return nil
}

func (t *Trash) purge(ctx context.Context, name string, others []namespaceMounts) error {
	return t.each(func(trash *os.File) error {
		tree, err := openBeneath(int(trash.Fd()), name, unix.O_PATH)
		if err == unix.ENOENT {
			return nil
		}
		path := filepath.Join(trash.Name(), name)
		if err != nil {
			return mountedAt(err, path, path)
		}
		err = checkMountsIn(tree, path, others)
		_ = unix.Close(tree)
		if err != nil {
			return err
		}
		return removeTree(ctx, int(trash.Fd()), name)
	})
}

// Measure adds up what the tree name in the trash takes, as the function Measure.
func (t *Trash) Measure(ctx context.Context, name string) (Usage, error) {
	if !safeName(name, maxTrashName) {
		return Usage{}, fmt.Errorf("measuring %q in the trash: %w", name, ErrName)
	}
	var all Usage
	err := t.each(func(trash *os.File) error {
		usage, err := Measure(ctx, filepath.Join(procFD(int(trash.Fd())), name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		all = all.Add(usage)
		return err
	})
	return all, err
}

// Empty deletes everything in the trash, as Purge does for one name. A tree
// that cannot be deleted does not keep the others; their errors are joined.
// The mount tables of other namespaces are read once.
func (t *Trash) Empty(ctx context.Context) error {
	names, err := t.List()
	if len(names) == 0 {
		return err
	}
	others, merr := foreignMounts(ctx)
	if merr != nil {
		return fmt.Errorf("emptying the trash: %w", errors.Join(err, merr))
	}
	for _, name := range names {
		if perr := t.purge(ctx, name, others); perr != nil {
			err = errors.Join(err, fmt.Errorf("purging %q from the trash: %w", name, perr))
		}
		if ctx.Err() != nil {
			return err
		}
	}
	return err
}
