package statefs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berthd/berth/statefs/failpoint"
	"golang.org/x/sys/unix"
)

// partSuffix marks a salvage that is not finished.
const partSuffix = ".part"

// Salvages is the directory of what was saved from deleted workspaces: one
// directory of the daemon's for each, which holds plain files.
type Salvages struct{ path string }

// Salvages returns the directory of what was saved from deleted workspaces.
func (l Layout) Salvages() Salvages { return Salvages{filepath.Join(l.path, salvagesName)} }

// Path returns the directory's path.
func (s Salvages) Path() string { return s.path }

// Find returns the path of the finished salvage name.
func (s Salvages) Find(name string) (string, bool) {
	if !SafeName(name) || strings.HasSuffix(name, partSuffix) {
		return "", false
	}
	path := filepath.Join(s.path, name)
	info, err := os.Lstat(path)
	return path, err == nil && info.IsDir()
}

// Salvage is one that is being made.
type Salvage struct {
	name string
	root *os.File // of all salvages
	dir  *os.File // of this one
	path string
}

// Begin makes an empty directory that the uid can write to, for the salvage
// name; one that was begun before is begun anew.
func (s Salvages) Begin(name string, uid, gid uint32) (*Salvage, error) {
	part := name + partSuffix
	path := filepath.Join(s.path, safeBase(part))
	if !SafeName(part) {
		return nil, fmt.Errorf("beginning salvage %q: %w", name, ErrName)
	}
	fail := func(err error) (*Salvage, error) { return nil, fmt.Errorf("beginning salvage %q: %w", path, err) }
	if err := os.MkdirAll(s.path, 0o711); err != nil {
		return fail(err)
	}
	if err := os.Chmod(s.path, 0o711); err != nil { // whatever the umask is, the uid must get through
		return fail(err)
	}
	if err := os.RemoveAll(path); err != nil { // plain files of ours or of that uid, links are not followed
		return fail(err)
	}
	if err := os.Mkdir(path, privateMode); err != nil {
		return fail(err)
	}
	root, err := os.OpenFile(s.path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return fail(err)
	}
	fd, err := openat(int(root.Fd()), part, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		root.Close()
		return fail(err)
	}
	out := &Salvage{name: name, root: root, dir: os.NewFile(uintptr(fd), path), path: path}
	if int(uid) != os.Geteuid() {
		err = unix.Fchown(fd, int(uid), int(gid))
	}
	if err != nil {
		out.Close()
		return fail(err)
	}
	return out, nil
}

// Path returns the directory to write to.
func (s *Salvage) Path() string { return s.path }

// Close releases the descriptors.
func (s *Salvage) Close() error { return errors.Join(s.dir.Close(), s.root.Close()) }

// Abandon removes what was written.
func (s *Salvage) Abandon() error { return os.RemoveAll(s.path) }

// Finish takes the named files, and nothing else that is there, away from the
// uid, puts all of it on stable storage and gives the directory its name. The
// uid's processes must have ended. It returns the directory's path.
func (s *Salvage) Finish(files []string) (string, error) {
	path := strings.TrimSuffix(s.path, partSuffix)
	if err := s.finish(files); err != nil {
		return "", fmt.Errorf("finishing salvage %q: %w", path, err)
	}
	return path, nil
}

func (s *Salvage) finish(files []string) error {
	fd := int(s.dir.Fd())
	if err := errors.Join(unix.Fchown(fd, os.Geteuid(), os.Getegid()), unix.Fchmod(fd, privateMode)); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, name := range files {
		if err := s.take(name); err != nil {
			return fmt.Errorf("file %q: %w", safeBase(name), err)
		}
		wanted[name] = true
	}
	entries, err := s.dir.ReadDir(-1)
	if err != nil {
		return pathless(err)
	}
	for _, e := range entries {
		if wanted[e.Name()] {
			continue
		}
		if err := os.RemoveAll(filepath.Join(s.path, e.Name())); err != nil {
			return err
		}
	}
	if err := s.dir.Sync(); err != nil {
		return pathless(err)
	}
	if err := failpoint.Hit("salvage.rename.before"); err != nil {
		return err
	}
	root := int(s.root.Fd())
	err = unix.Renameat2(root, s.name+partSuffix, root, s.name, unix.RENAME_NOREPLACE)
	replaced := err == unix.EEXIST
	if replaced { // by an earlier try; at no moment is there none
		err = unix.Renameat2(root, s.name+partSuffix, root, s.name, unix.RENAME_EXCHANGE)
	}
	if err != nil {
		return err
	}
	if err := failpoint.Hit("salvage.rename.after"); err != nil {
		return err
	}
	if err := s.root.Sync(); err != nil {
		return pathless(err)
	}
	if replaced {
		return os.RemoveAll(s.path) // the old one has the unfinished name now
	}
	return nil
}

// take makes one file the daemon's.
func (s *Salvage) take(name string) error {
	if !SafeName(name) {
		return ErrName
	}
	fd, err := openat(int(s.dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
		return fmt.Errorf("%w: not a plain file", ErrUnfit)
	}
	return errors.Join(unix.Fchown(fd, os.Geteuid(), os.Getegid()), unix.Fchmod(fd, 0o600), unix.Fsync(fd))
}

// ageName is the file, in a salvage, with the number of times that it was aged.
const ageName = ".age"

// Age makes every salvage one period older and removes those older than keep
// periods; it returns their names. The caller counts the periods, by a clock
// that nobody sets: what was saved must not go because the time of day jumped.
func (s Salvages) Age(keep int) ([]string, error) {
	entries, err := os.ReadDir(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing salvages: %w", err)
	}
	var gone []string
	var failures []error
	for _, e := range entries {
		if !e.IsDir() || strings.HasSuffix(e.Name(), partSuffix) {
			continue
		}
		removed, err := ageOne(filepath.Join(s.path, e.Name()), keep)
		if err != nil {
			failures = append(failures, err)
		}
		if removed {
			gone = append(gone, e.Name())
		}
	}
	return gone, errors.Join(failures...)
}

func ageOne(path string, keep int) (removed bool, err error) {
	age := 0
	data, err := os.ReadFile(filepath.Join(path, ageName))
	if err == nil {
		age, err = strconv.Atoi(strings.TrimSpace(string(data)))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		age = 0 // what is not understood begins anew: kept for too long, not too short
	}
	if age++; age > keep {
		return true, os.RemoveAll(path)
	}
	return false, WriteFile(filepath.Join(path, ageName), []byte(strconv.Itoa(age)+"\n"), 0o600)
}
