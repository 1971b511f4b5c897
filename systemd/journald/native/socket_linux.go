package native

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of Send, beside those of the system.
var (
	// ErrBusy: journald's queue is full, or it is stopped. The entry may be
	// sent again later.
	ErrBusy = errors.New("journald takes no more at the moment")
	// ErrAway: nobody listens on the socket. The entry may be sent again later.
	ErrAway = errors.New("journald is not there")
)

// sendBuffer is asked for as the socket's send buffer. It bounds what one
// sender may have waiting in journald's queue, and the size of a datagram; the
// kernel gives what net.core.wmem_max allows.
const sendBuffer = 1 << 20

// Socket is a connection to journald. It is made at the first Send, and again
// after journald's socket was made anew. It is for one goroutine at a time. The
// zero Socket with a Path is ready.
type Socket struct {
	Path string

	file *os.File // nil = not connected
	raw  syscall.RawConn
}

// Send hands one entry to journald, and waits at most for patience, which is
// above 0, where that takes no more: journald's queue is a handful of datagrams,
// so that a burst has to wait. An entry that is too large for a datagram goes as a memfd.
func (s *Socket) Send(e *Entry, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for try := 0; ; try++ {
		if err := s.connect(); err != nil {
			return err
		}
		err := s.send(e.buf, deadline)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EAGAIN), errors.Is(err, os.ErrDeadlineExceeded):
			return ErrBusy
		case gone(err) && try == 0:
			s.Close() // its socket was made anew, maybe
		case gone(err):
			s.Close()
			return ErrAway
		default:
			return fmt.Errorf("sending to journald: %w", err)
		}
	}
}

// gone reports whether err says that the socket's peer is no more.
func gone(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOTCONN) ||
		errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

func (s *Socket) send(data []byte, deadline time.Time) error {
	err := s.until(deadline, func(fd int) error { return unix.Send(fd, data, unix.MSG_NOSIGNAL) })
	if err != unix.EMSGSIZE && err != unix.ENOBUFS {
		return err
	}
	memfd, err := sealed(data)
	if err != nil {
		return err
	}
	defer unix.Close(memfd) // journald has its own by then
	rights := unix.UnixRights(memfd)
	return s.until(deadline, func(fd int) error { return unix.Sendmsg(fd, nil, rights, nil, unix.MSG_NOSIGNAL) })
}

// until makes a call until it finds room in journald's queue. The kernel wakes
// a connected sender for that (unix_dgram_peer_wake_me, net/unix/af_unix.c).
func (s *Socket) until(deadline time.Time, call func(fd int) error) error {
	if err := s.file.SetWriteDeadline(deadline); err != nil {
		return err
	}
	var result error
	err := s.raw.Write(func(fd uintptr) bool {
		for {
			if result = call(int(fd)); result != unix.EINTR {
				return result != unix.EAGAIN
			}
		}
	})
	if err != nil {
		return err
	}
	return result
}

// sealed makes a memfd of data. journald refuses one that its sender could
// still change.
func sealed(data []byte) (int, error) {
	fd, err := unix.MemfdCreate("journal-entry", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, err
	}
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil && err != unix.EINTR {
			unix.Close(fd) // the write error is what gets reported
			return -1, err
		}
		data = data[max(n, 0):]
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		unix.Close(fd) // the error before is what gets reported
		return -1, err
	}
	return fd, nil
}

func (s *Socket) connect() error {
	if s.file != nil {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("making a socket for journald: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer) // less is as good: memfds come sooner
	// Connecting a datagram socket waits for nothing, so no signal interrupts it.
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: s.Path}); err != nil {
		unix.Close(fd) // the error before is what gets reported
		if gone(err) || err == unix.ENOENT {
			return ErrAway
		}
		return fmt.Errorf("connecting to journald at %q: %w", s.Path, err)
	}
	s.file = os.NewFile(uintptr(fd), s.Path)
	if s.raw, err = s.file.SyscallConn(); err != nil {
		s.Close()
		return fmt.Errorf("connecting to journald at %q: %w", s.Path, err)
	}
	return nil
}

// Close ends the connection; the next Send makes a new one.
func (s *Socket) Close() {
	if s.file != nil {
		s.file.Close() // nothing is buffered
		s.file, s.raw = nil, nil
	}
}
