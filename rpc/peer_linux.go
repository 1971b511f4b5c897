package rpc

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// credentials are the other end of a connection as the kernel noted them when
// it connected: SO_PEERCRED and SO_PEERGROUPS, unix(7) and socket(7).
type credentials struct {
	pid    int
	uid    uint32
	gid    uint32
	groups []uint32 // gid and the supplementary groups
}

// peerCredentials asks the kernel who is on the other end of c.
func peerCredentials(c *net.UnixConn) (credentials, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return credentials{}, fmt.Errorf("reading peer credentials: %w", err)
	}
	var cred credentials
	var callErr error
	err = raw.Control(func(fd uintptr) {
		var u *unix.Ucred
		if u, callErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); callErr != nil {
			return
		}
		cred = credentials{pid: int(u.Pid), uid: u.Uid, gid: u.Gid}
		cred.groups, callErr = peerGroups(int(fd))
		cred.groups = append(cred.groups, u.Gid)
	})
	if err := errors.Join(err, callErr); err != nil {
		return credentials{}, fmt.Errorf("reading peer credentials: %w", err)
	}
	return cred, nil
}

// peerGroups reads SO_PEERGROUPS: the peer's supplementary groups at the time
// of its connect. Kernels before 4.13 do not have it; the peer then has only
// its primary group.
func peerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups) * 4)
		_, _, errno := syscall.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			return groups[:size/4], nil
		case unix.ERANGE: // size now says how much there is (net/core/sock.c)
			groups = make([]uint32, size/4)
		case unix.ENOPROTOOPT, unix.ENODATA:
			return nil, nil
		default:
			return nil, errno
		}
	}
}
