package wrap

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/rpc/wire"
)

// defaultSize is what a terminal of no size gets, because programs divide by it.
var defaultSize = wire.Size{Rows: 24, Cols: 80}

// openTerminal makes a pseudo terminal of the given size. The system calls are
// made here and not by a library, because our end must stay non-blocking: a
// read of it has to end by a deadline while a background child holds the
// terminal open (pty.Open and pty.Setsize go through File.Fd, which makes the
// descriptor blocking). The agent's end comes from TIOCGPTPEER (ioctl_tty(2)),
// which needs no path and so no particular mount at /dev/pts.
//
// The wrapper keeps a descriptor of the agent's end, so that a program that
// closes all of its own for a moment does not end the terminal.
func (a *agent) openTerminal(size wire.Size) (*stdio, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a terminal: %w", err)
	}
	a.term = os.NewFile(uintptr(fd), "terminal")
	a.input = a.term
	if a.slave, err = openPeer(fd); err != nil {
		a.close()
		return nil, fmt.Errorf("opening a terminal: %w", err)
	}
	if size.Rows == 0 || size.Cols == 0 {
		size = defaultSize
	}
	if err := a.resize(size); err != nil {
		a.close()
		return nil, err
	}
	return &stdio{files: [3]int{a.slave, a.slave, a.slave}}, nil
}

// openPeer unlocks the terminal of master fd and opens its other end, -1 on
// error.
func openPeer(fd int) (int, error) {
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return -1, fmt.Errorf("unlocking it: %w", err)
	}
	peer, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if e != 0 {
		return -1, fmt.Errorf("opening the agent's end: %w", e)
	}
	return int(peer), nil
}

// closeSlave gives the wrapper's descriptor of the agent's end up: from then on
// the terminal ends with the last process that has it open.
func (a *agent) closeSlave() {
	if a.slave >= 0 {
		unix.Close(a.slave)
		a.slave = -1
	}
}

// resize sets the terminal's size; the kernel sends SIGWINCH to the foreground
// process group.
func (a *agent) resize(size wire.Size) error {
	if a.term == nil {
		return errors.New("the session has no terminal")
	}
	ws := &unix.Winsize{Row: size.Rows, Col: size.Cols}
	sc, err := a.term.SyscallConn()
	if err != nil {
		return fmt.Errorf("resizing the terminal: %w", err)
	}
	var ioctlErr error
	err = sc.Control(func(fd uintptr) { ioctlErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, ws) })
	if err := errors.Join(err, ioctlErr); err != nil {
		return fmt.Errorf("resizing the terminal: %w", err)
	}
	return nil
}
