package evidence

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lockFile is the file that a lock is on.
type lockFile struct{ dev, inode uint64 }

// askLock asks who would refuse a write lock on the whole file at path, without taking any (F_OFD_GETLK,
// fcntl_locking(2)). It opens for reading only and blocks on nothing but the file system.
//
// A missing file is an answer (nobody can hold what is not there) only as long as the state directory
// that was opened at start is the one that leads to it; whoever removes a file that is locked, or the
// directory around it, has write access to the daemon's own state.
func (p *Prober) askLock(path string) (a Answer, on lockFile, detail string) {
	fd, err := p.openState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Absent, lockFile{}, "no lock file"
	}
	if err != nil {
		return Unknown, lockFile{}, err.Error()
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Unknown, lockFile{}, err.Error()
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return Unknown, lockFile{}, "the lock is not a regular file"
	}
	on = lockFile{st.Dev, st.Ino}
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET}
	for {
		err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &l)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return Unknown, on, err.Error()
		case l.Type == unix.F_UNLCK:
			return Absent, on, "free"
		case l.Pid > 0: // a lock of fcntl(2)'s old kind, which no wrapper takes
			return Present, on, fmt.Sprintf("held by process %d in the old way", l.Pid)
		}
		return Present, on, "held"
	}
}

// openState opens a file below the state directory: no symbolic link, no "..", no other mount on the way.
// fs.ErrNotExist only when it is proven missing there.
func (p *Prober) openState(path string) (int, error) {
	if p.state == nil {
		return -1, errors.New("opening a lock file: no state directory")
	}
	rel, err := filepath.Rel(p.state.Name(), path)
	if err != nil || rel == "." || rel == ".." || strings.HasPrefix(rel, "../") {
		return -1, fmt.Errorf("opening %q: not below %q", path, p.state.Name())
	}
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	dir := int(p.state.Fd())
	var fd int
	for range lockTries {
		if fd, err = unix.Openat2(dir, rel, &how); err != unix.EAGAIN && err != unix.EINTR {
			break
		}
	}
	if err == nil {
		return fd, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		var st unix.Stat_t
		if serr := unix.Fstat(dir, &st); serr != nil || st.Nlink == 0 {
			return -1, fmt.Errorf("opening %q: the state directory was removed", path)
		}
		return -1, fmt.Errorf("opening %q: %w", path, fs.ErrNotExist)
	}
	return -1, fmt.Errorf("opening %q: %v", path, err)
}

// openDir opens a directory to look things up in.
func openDir(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
