package statefs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// trashRoot is a directory below which trees may be trashed.
type trashRoot struct {
	path     string
	dev, ino uint64
	own      bool // it has a trash of its own
}

// AddRoot says that trees below the directory root (absolute) may be trashed.
// Open has added sessions and workspaces of the state directory; any other
// directory that holds workspaces is to be added at every start, before Put,
// List and Empty. Adding one again is allowed. root must belong to the
// effective uid and be writable by nobody else: else ErrUnfit.
func (t *Trash) AddRoot(root string) error {
	root = filepath.Clean(root)
	r, err := t.examineRoot(root)
	if err != nil {
		return fmt.Errorf("adding %q to the trash: %w", root, err)
	}
	t.keep(r)
	return nil
}

func (t *Trash) keep(r trashRoot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.roots = slices.DeleteFunc(t.roots, func(old trashRoot) bool { return old.path == r.path })
	t.roots = append(t.roots, r)
	// The longest first: that is the one that a path belongs to.
	slices.SortFunc(t.roots, func(a, b trashRoot) int { return len(b.path) - len(a.path) })
}

func (t *Trash) examineRoot(root string) (trashRoot, error) {
	if !filepath.IsAbs(root) {
		return trashRoot{}, fmt.Errorf("%w: not an absolute path", ErrUnfit)
	}
	f, err := os.OpenFile(root, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return trashRoot{}, pathless(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return trashRoot{}, err
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return trashRoot{}, fmt.Errorf("%w: uid %d, mode %04o; others can exchange what is in it", ErrUnfit, st.Uid, st.Mode&0o7777)
	}
	r := trashRoot{path: root, dev: st.Dev, ino: st.Ino}
	own, err := t.needsOwn(f)
	if err == nil && own {
		return t.makeOwn(r, f)
	}
	return r, err
}

// makeOwn makes the trash of a root, which is open as f.
func (t *Trash) makeOwn(r trashRoot, f *os.File) (trashRoot, error) {
	side, _, err := ensureDir(int(f.Fd()), t.side, privateMode)
	if err != nil {
		return trashRoot{}, fmt.Errorf("making its trash: %w", err)
	}
	_ = side.Close()
	r.own = true
	t.keep(r)
	return r, nil
}

// needsOwn says whether root is on another mount than the main trash, or has
// a trash of its own already.
func (t *Trash) needsOwn(root *os.File) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(root.Fd()), t.side, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		return true, nil
	}
	trash, err := t.openMain()
	if err != nil {
		return false, err
	}
	defer trash.Close()
	a, err := mountID(int(root.Fd()))
	if err != nil {
		return false, err
	}
	b, err := mountID(int(trash.Fd()))
	return a != b, err
}

// openMain opens the state directory's trash.
func (t *Trash) openMain() (*os.File, error) {
	f, err := os.OpenFile(t.main, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// open opens the root, if it is still the same directory.
func (r trashRoot) open() (*os.File, error) {
	f, err := os.OpenFile(r.path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		_ = f.Close()
		return nil, err
	}
	if st.Dev != r.dev || st.Ino != r.ino {
		_ = f.Close()
		return nil, fmt.Errorf("%q is %w", r.path, ErrRootChanged)
	}
	return f, nil
}

// openFor opens the trash that serves the root, which is open as f.
func (t *Trash) openFor(r trashRoot, f *os.File) (*os.File, error) {
	if !r.own {
		return t.openMain()
	}
	return openDir(int(f.Fd()), t.side)
}

func (t *Trash) rootOf(path string) (r trashRoot, rel string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.roots {
		if rel, ok := strings.CutPrefix(path, r.path+"/"); ok && filepath.Clean(path) == path {
			if first, _, _ := strings.Cut(rel, "/"); first == t.side {
				break
			}
			return r, rel, nil
		}
	}
	return trashRoot{}, "", ErrOutside
}

// each calls f with every trash, the main one first. A root that cannot be
// opened does not keep the others; the errors are joined.
func (t *Trash) each(f func(trash *os.File) error) error {
	t.mu.Lock()
	roots := slices.Clone(t.roots)
	t.mu.Unlock()
	main, err := t.openMain()
	if err == nil {
		err = f(main)
		_ = main.Close()
	}
	for _, r := range roots {
		if r.own {
			err = errors.Join(err, t.with(r, f))
		}
	}
	return err
}

func (t *Trash) with(r trashRoot, f func(trash *os.File) error) error {
	root, err := r.open()
	if err != nil {
		return err
	}
	defer root.Close()
	fd, err := openat(int(root.Fd()), t.side, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	trash := os.NewFile(uintptr(fd), filepath.Join(r.path, t.side))
	defer trash.Close()
	return f(trash)
}
