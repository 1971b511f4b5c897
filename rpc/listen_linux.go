package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxSocketPath is the longest path of a Unix socket, in bytes, without the
// terminating NUL of sun_path (unix(7)).
const maxSocketPath = 107

// listenBacklog is the length of the queue of connections that wait for accept.
const listenBacklog = 512

// listenLockTimeout bounds the wait for another server that is opening a
// socket in the same directory.
const listenLockTimeout = 5 * time.Second

// ErrSocketInUse is returned by Listen when another process listens on the path.
var ErrSocketInUse = errors.New("another process listens on it")

// CheckSocketPath tells whether path can be the path of a Unix socket:
// absolute and at most 107 bytes long.
func CheckSocketPath(path string) error {
	switch {
	case !filepath.IsAbs(path):
		return fmt.Errorf("socket path %q is not absolute", path)
	case len(path) > maxSocketPath:
		return fmt.Errorf("socket path %q is %d bytes long; a Unix socket's path may have %d", path, len(path), maxSocketPath)
	}
	return nil
}

// Listener is a listening Unix socket that removes its path on Close, if the
// path is still its own.
type Listener struct {
	*net.UnixListener
	path string
	dev  uint64
	ino  uint64
	// once: after the first Close the inode number may belong to a successor.
	once sync.Once
}

// Listen opens a Unix socket at path with the given permission bits and, for
// gid >= 0, that group. There is no instant at which somebody whom mode
// excludes can connect: the socket file is born with mode 0600 or less
// (bind(2) takes the mode of the socket's own inode, which is set first) and
// does not listen before its mode and group are final. A socket that is left
// of a dead process is removed; ErrSocketInUse is returned when a living one
// answers. What is not a socket is never removed.
func Listen(path string, mode os.FileMode, gid int) (*Listener, error) {
	if err := CheckSocketPath(path); err != nil {
		return nil, err
	}
	l, err := listen(path, mode, gid)
	if err != nil {
		return nil, fmt.Errorf("listening on %q: %w", path, err)
	}
	return l, nil
}

func listen(path string, mode os.FileMode, gid int) (*Listener, error) {
	unlock, err := lockDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("making the socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() // FileListener duplicates it
	if err := bindAndListen(fd, path, mode, gid); err != nil {
		return nil, err
	}
	nl, err := net.FileListener(f)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	l := &Listener{UnixListener: nl.(*net.UnixListener), path: path}
	l.SetUnlinkOnClose(false)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, errors.Join(err, nl.Close())
	}
	l.dev, l.ino = st.Dev, st.Ino
	return l, nil
}

func bindAndListen(fd int, path string, mode os.FileMode, gid int) error {
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return fmt.Errorf("setting the mode of the new socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return fmt.Errorf("binding: %w", err)
	}
	// Group before mode: a mode is never open to a group that is not yet ours.
	err := func() error {
		if gid >= 0 {
			if err := os.Lchown(path, -1, gid); err != nil {
				return err
			}
		}
		if err := os.Chmod(path, mode.Perm()); err != nil {
			return err
		}
		return unix.Listen(fd, listenBacklog)
	}()
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// lockDir holds a flock on the directory, so that of two servers that find the
// same dead socket only one removes it and binds.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(listenLockTimeout); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			f.Close()
			return nil, fmt.Errorf("locking %q: %w", dir, err)
		}
	}
}

// removeStale removes the socket at path when nobody listens on it.
func removeStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("there is something that is not a socket (%v)", st.Mode().Type())
	}
	ctx, cancel := context.WithTimeout(context.Background(), listenLockTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		c.Close()
		return ErrSocketInUse
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, unix.EAGAIN): // its queue is full: it does listen
		return ErrSocketInUse
	}
	return fmt.Errorf("asking whether anybody listens: %w", err)
}

// Close stops listening and removes the path, unless another socket has taken it.
func (l *Listener) Close() error {
	l.once.Do(func() {
		var st unix.Stat_t
		if err := unix.Lstat(l.path, &st); err == nil && st.Dev == l.dev && st.Ino == l.ino {
			os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}
