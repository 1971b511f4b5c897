package wrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxSocketPath is the longest path that sockaddr_un holds, unix(7).
const maxSocketPath = 107

// errStranger: somebody else listens where the daemon should.
var errStranger = errors.New("the listener is neither root nor this wrapper's user")

// dial connects to the Unix socket at path without package net, which would
// double the wrapper's size. Connecting never blocks: a full backlog is EAGAIN.
// The result is non-blocking and takes deadlines. The token goes to whoever
// listens, so that is checked first (SO_PEERCRED names who called listen(2)).
func dial(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("making a socket: %w", err)
	}
	if err := connect(fd, path); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("connecting to %q: %w", path, err)
	}
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && peer.Uid != 0 && peer.Uid != uint32(os.Geteuid()) {
		err = errStranger
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("connecting to %q: %w", path, err)
	}
	return os.NewFile(uintptr(fd), "wrap.sock"), nil
}

// connect connects fd, through a descriptor of the directory when the path is
// too long for the address.
func connect(fd int, path string) error {
	if len(path) <= maxSocketPath {
		return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	short := "/proc/self/fd/" + strconv.Itoa(dir) + "/" + filepath.Base(path)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: short})
}
