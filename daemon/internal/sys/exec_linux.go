package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// execBound bounds the wait for the end of an exec that has begun, or of a
	// process that dies in it. The kernel needs microseconds, an emulated
	// machine on a busy host milliseconds.
	execBound = 10 * time.Second
	// execPause is the time between two looks.
	execPause = time.Millisecond
)

// KilledBeforeExec reports whether a child, whose start has just succeeded and which nobody has reaped,
// has died without ever having executed a program: a start only sees that the child's descriptors have
// closed, which both an exec and a death do. stat is what the kernel says of a child that lives.
//
// The flag that tells them apart (PF_FORKNOEXEC) can still be set for a moment after an exec has closed
// its descriptors: it was on Linux 6.12, in one start of three on an emulated machine. So a
// child with the flag is waited for, until it has lost it or has ended; pidfd may be -1. After
// a bound it is taken for alive, and its end is seen as any other. An error means that the child's record
// could not be read.
func KilledBeforeExec(pid, pidfd int) (killed bool, stat Stat, err error) {
	for deadline := time.Now().Add(execBound); ; {
		stat, err := ReadStat(pid)
		if err != nil {
			return false, Stat{}, err
		}
		if stat.Flags&FlagForkNoExec == 0 || time.Now().After(deadline) {
			return false, stat, nil
		}
		if stat.Zombie() {
			return true, stat, nil
		}
		if pidfd < 0 {
			time.Sleep(execPause)
			continue
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(execPause.Milliseconds())) // only a pause that its end cuts short
	}
}
