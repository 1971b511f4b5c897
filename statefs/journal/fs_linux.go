package journal

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// directory is the real FS: system calls relative to one directory descriptor, which also carries the lock.
type directory struct {
	path string
	dir  *os.File
}

// lockKind says which flock(2) openDirectory takes.
type lockKind int

const (
	lockNone lockKind = iota
	lockExclusive
)

// openDirectory opens path. With lockExclusive it fails with ErrLocked when another open description holds the lock;
// flock(2) belongs to the open file description, so two Opens in one process exclude each other too.
func openDirectory(path string, lock lockKind) (*directory, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	d := &directory{path: path, dir: f}
	if lock == lockNone {
		return d, nil
	}
	if err := lockPatiently(int(f.Fd())); err != nil {
		_ = f.Close() // read-only descriptor, nothing written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("locking: %w", err)
	}
	return d, nil
}

// lockPatience is how long a writer waits for the lock: longer than a reader's question (locked) can hold it.
const lockPatience = 100 * time.Millisecond

func lockPatiently(fd int) error {
	begin := time.Now()
	for {
		err := retryEINTR(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Since(begin) > lockPatience {
			return err
		}
		time.Sleep(lockPatience / 20)
	}
}

// locked reports whether a writer is at work. flock(2) has no query, so it takes a shared lock for an instant, which a
// starting writer waits out (lockPatience).
func (d *directory) locked() (bool, error) {
	fd, err := unix.Openat(int(d.dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(fd) }()
	err = retryEINTR(func() error { return unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

func (d *directory) Open(name string, mode Mode) (File, error) {
	flags := unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NOCTTY
	switch mode {
	case ReadOnly:
		flags |= unix.O_RDONLY
	case ReadWrite:
		flags |= unix.O_RDWR
	case Create:
		flags |= unix.O_RDWR | unix.O_CREAT | unix.O_EXCL
	default:
		panic(fmt.Sprintf("internal error: open mode %d", mode))
	}
	var fd int
	err := retryEINTR(func() (err error) {
		fd, err = unix.Openat(int(d.dir.Fd()), name, flags, 0o600)
		return err
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return &descriptor{fd: fd, name: name}, nil
}

func (d *directory) Rename(from, to string) error {
	fd := int(d.dir.Fd())
	if err := unix.Renameat(fd, from, fd, to); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

func (d *directory) Remove(name string) error {
	if err := unix.Unlinkat(int(d.dir.Fd()), name, 0); err != nil {
		return &os.PathError{Op: "unlink", Path: name, Err: err}
	}
	return nil
}

// Names opens the directory anew, since a shared read position would mix concurrent listings.
func (d *directory) Names() ([]string, error) {
	fd, err := unix.Openat(int(d.dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: d.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer func() { _ = f.Close() }()
	return f.Readdirnames(-1)
}

func (d *directory) Sync() error {
	if err := unix.Fsync(int(d.dir.Fd())); err != nil {
		return &os.PathError{Op: "fsync", Path: d.path, Err: err}
	}
	return nil
}

// Close releases the lock, where there is one, and the descriptor. The close alone would leave the lock to a child of
// this process that has not reached its exec.
func (d *directory) Close() error {
	return errors.Join(unix.Flock(int(d.dir.Fd()), unix.LOCK_UN), d.dir.Close())
}

// descriptor is a file as a bare descriptor: the journal's files live as long as the journal, and os.File would add a
// lock and a poller check to every call.
type descriptor struct {
	fd   int
	name string
}

func (d *descriptor) Pread(p []byte, off int64) (int, error)  { return unix.Pread(d.fd, p, off) }
func (d *descriptor) Pwrite(p []byte, off int64) (int, error) { return unix.Pwrite(d.fd, p, off) }
func (d *descriptor) Datasync() error                         { return unix.Fdatasync(d.fd) }
func (d *descriptor) Close() error                            { return unix.Close(d.fd) }

func (d *descriptor) Info() (FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return FileInfo{}, &os.PathError{Op: "fstat", Path: d.name, Err: err}
	}
	return FileInfo{Bytes: st.Size, AllocatedBytes: st.Blocks * 512, Inode: st.Ino}, nil
}

func retryEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// writeFull writes all of p at off, going on after short writes and EINTR.
func writeFull(f File, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := f.Pwrite(p, off)
		if n > 0 {
			p, off = p[n:], off+int64(n)
			if err == nil {
				continue
			}
		}
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n <= 0: // a write of nothing without an error would loop for ever
			return unix.EIO
		}
	}
	return nil
}

// readFull reads up to len(p) bytes at off and returns how many there were before the end of the file.
func readFull(f File, p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := f.Pread(p[done:], off+int64(done))
		if n > 0 {
			done += n
		}
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return done, err
		case n <= 0:
			return done, nil
		}
	}
	return done, nil
}
