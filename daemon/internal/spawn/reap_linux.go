package spawn

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childInfo is siginfo_t as waitid(2) fills it in for a child, on every architecture but MIPS.
type childInfo struct {
	signo, errno, code int32
	_                  [wordPad]int32 // the union behind the header is aligned like a pointer
	pid                int32
	uid                uint32
	status             int32
	_                  [104]byte
}

const wordPad = ^uint(0) >> 63 // 1 on 64 bits

// Values of si_code for SIGCHLD, include/uapi/asm-generic/siginfo.h.
const (
	cldExited = 1
	cldDumped = 3
)

type reaping uint8

const (
	notChild reaping = iota // never ours, or reaped by somebody else
	running
	reaped
)

// reap takes the exit status of the pidfd's process when that is a child of ours and has exited. It
// never waits and touches no other child.
func reap(pidfd int) (Status, reaping) { return waitChild(pidfd, unix.WEXITED|unix.WNOHANG) }

// isChild asks the same without taking anything.
func isChild(pidfd int) bool {
	_, r := waitChild(pidfd, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
	return r != notChild
}

func waitChild(pidfd, options int) (Status, reaping) {
	var info childInfo
	for {
		err := unix.Waitid(unix.P_PIDFD, pidfd, (*unix.Siginfo)(unsafe.Pointer(&info)), options, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil { // ECHILD
			return Status{}, notChild
		}
		break
	}
	switch {
	case info.pid == 0:
		return Status{}, running
	case info.code == cldExited:
		return Status{Ending: Exited, Code: int(info.status)}, reaped
	}
	return Status{Ending: Signalled, Signal: syscall.Signal(info.status), Core: info.code == cldDumped}, reaped
}

// The kernel writes all of siginfo_t.
var _ [unsafe.Sizeof(childInfo{}) - unsafe.Sizeof(unix.Siginfo{})]byte
