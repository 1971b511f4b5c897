package sys

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

var pidfs = sync.OnceValue(func() bool {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return onPidfs(fd)
})

// HasPidfs reports whether a pidfd's inode number is unique to its process for as long as the machine is
// up (pidfs, Linux 6.9). Older kernels give every pidfd the same anonymous inode.
func HasPidfs() bool { return pidfs() }

func onPidfs(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.PID_FS_MAGIC
}

// PidfdInode returns the inode that names the pidfd's process, 0 where the kernel has no pidfs.
func PidfdInode(pidfd int) (uint64, error) {
	if !HasPidfs() {
		return 0, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(pidfd, &st); err != nil {
		return 0, fmt.Errorf("reading a pidfd's inode: %w", err)
	}
	return st.Ino, nil
}

// pidOfPidfd asks fdinfo, which every kernel with pidfds has (5.2), for the pid in our namespace.
// It is -1 once the process has been reaped and 0 when it is not visible from our pid namespace.
func pidOfPidfd(pidfd int) (int, error) {
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0, fmt.Errorf("reading a pidfd's pid: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Pid:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(v))
			if err != nil {
				return 0, fmt.Errorf("reading a pidfd's pid: %w", err)
			}
			return pid, nil
		}
	}
	return 0, errors.New("reading a pidfd's pid: no Pid line, not a pidfd")
}

// reaped reports whether nothing is left of the pidfd's process, not even a zombie. Signal 0 is a probe
// (pidfd_send_signal(2)); EPERM means that it exists and is not ours to signal.
func reaped(pidfd int) (bool, error) {
	switch err := unix.PidfdSendSignal(pidfd, 0, nil, 0); {
	case err == nil, errors.Is(err, unix.EPERM):
		return false, nil
	case errors.Is(err, unix.ESRCH):
		return true, nil
	default:
		return false, fmt.Errorf("probing a pidfd: %w", err)
	}
}

var exitInfo = sync.OnceValue(func() bool {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.IoctlPidfdInfo(fd, &unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}) == nil
})

// HasExitInfo reports whether ReapedStatus may ever answer: the kernel knows PIDFD_GET_INFO (6.13).
func HasExitInfo() bool { return exitInfo() }

// ReapedStatus returns the wait status of a process that somebody else has reaped, which need not have
// been our child. ok is false while it has not been reaped and on kernels before 6.15, which do not
// keep it (PIDFD_GET_INFO with PIDFD_INFO_EXIT, include/uapi/linux/pidfd.h).
func ReapedStatus(pidfd int) (status syscall.WaitStatus, ok bool) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if err := unix.IoctlPidfdInfo(pidfd, &info); err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return 0, false
	}
	return syscall.WaitStatus(info.Exit_code), true
}
