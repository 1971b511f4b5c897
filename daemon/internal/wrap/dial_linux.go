package wrap

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxSocketPath is the longest path that sockaddr_un holds, unix(7).
const maxSocketPath = 107

// errStranger: somebody else listens where the daemon should.
var errStranger = errors.New("the listener is neither root nor this wrapper's user")

// dialer connects to one Unix socket, again and again, without package net,
// which would double the wrapper's size, and without garbage, which would make
// the wrapper collect it: a daemon may be away for days.
type dialer struct {
	path string
	addr unix.SockaddrUnix
}

// dial connects. Connecting never blocks: a full backlog is EAGAIN. The result
// is non-blocking and takes deadlines. The token goes to whoever listens, so
// that is checked first (SO_PEERCRED names who called listen(2)).
func (d *dialer) dial() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := d.connect(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && peer.Uid != 0 && peer.Uid != uint32(os.Geteuid()) {
		err = errStranger
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "wrap.sock"), nil
}

// connect connects fd, through a descriptor of the directory when the path is
// too long for the address.
func (d *dialer) connect(fd int) error {
	if len(d.path) <= maxSocketPath {
		d.addr.Name = d.path
		return unix.Connect(fd, &d.addr)
	}
	dir, err := unix.Open(filepath.Dir(d.path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	d.addr.Name = "/proc/self/fd/" + strconv.Itoa(dir) + "/" + filepath.Base(d.path)
	return unix.Connect(fd, &d.addr)
}
