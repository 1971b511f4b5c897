package sys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Identity names one process for as long as records of it exist. The zero value names none.
type Identity struct {
	PID        int    // in the namespace of the epoch; a hint, never enough on its own
	StartTicks uint64 // clock ticks since boot, /proc/PID/stat field 22
	PidfdInode uint64 // unique while the machine is up; 0 where the kernel has no pidfs (before 6.9)
	BootID     string
}

var (
	// ErrGone: the process that the identity names has been reaped, or belonged to an earlier boot.
	ErrGone = errors.New("process is gone")
	// ErrReused: the pid belongs to another process now, so the one that was meant is gone.
	ErrReused = errors.New("pid belongs to another process")
	// ErrForbidden: the pid is one that berth never signals: ≤ 1, its own, its parent's.
	ErrForbidden = errors.New("pid must not be touched")
)

// String is for logs.
func (i Identity) String() string {
	return fmt.Sprintf("pid %d started %d inode %d", i.PID, i.StartTicks, i.PidfdInode)
}

// SelfIdentity returns the identity of the calling process.
func SelfIdentity() (Identity, error) { return IdentityOf(os.Getpid()) }

// IdentityOf returns the identity of whatever process has pid now, zombies included. ErrGone when there
// is none.
func IdentityOf(pid int) (Identity, error) {
	fd, err := openPidfd(pid)
	if err != nil {
		return Identity{}, err
	}
	defer unix.Close(fd)
	return identify(fd, pid)
}

// IdentityOfPidfd returns the identity of the process that pidfd refers to; ErrGone once it was reaped.
// The caller keeps the descriptor.
func IdentityOfPidfd(pidfd int) (Identity, error) {
	pid, err := pidOfPidfd(pidfd)
	if err != nil {
		return Identity{}, err
	}
	if pid < 0 {
		return Identity{}, fmt.Errorf("identifying a pidfd's process: %w", ErrGone)
	}
	if pid == 0 {
		return Identity{}, errors.New("identifying a pidfd's process: it is outside this pid namespace")
	}
	return identify(pidfd, pid)
}

// identify reads the facts of pid and proves afterwards that pidfd's process had not been reaped by
// then: its pid could not have been given to another meanwhile, so the facts are its own.
func identify(pidfd, pid int) (Identity, error) {
	boot, err := BootID()
	if err != nil {
		return Identity{}, err
	}
	inode, err := PidfdInode(pidfd)
	if err != nil {
		return Identity{}, err
	}
	st, err := statBehind(pidfd, pid)
	if err != nil {
		return Identity{}, err
	}
	if gone, err := reaped(pidfd); err != nil {
		return Identity{}, err
	} else if gone {
		return Identity{}, fmt.Errorf("identifying process %d: %w", pid, ErrGone)
	}
	return Identity{PID: pid, StartTicks: st.StartTicks, PidfdInode: inode, BootID: boot}, nil
}

// OpenVerified returns a pidfd of exactly the process that id names; the caller closes it. The pidfd is
// opened before anything is compared: a stat that matches afterwards shows that the recorded process
// held its pid all the time, the moment of the open included.
//
// ErrGone and ErrReused both prove the named process dead (a zombie is not gone: see Observe).
// ErrForbidden is returned for pids that must never be signalled. Any other error proves nothing.
func OpenVerified(id Identity) (pidfd int, err error) {
	if err := permitted(id); err != nil {
		return -1, err
	}
	boot, err := BootID()
	if err != nil {
		return -1, err
	}
	if id.BootID != boot {
		return -1, fmt.Errorf("verifying %v: of boot %s: %w", id, id.BootID, ErrGone)
	}
	fd, err := openPidfd(id.PID)
	if err != nil {
		return -1, err
	}
	if _, err := verify(fd, id); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// permitted refuses what no record, however damaged or forged, may lead berth to signal.
func permitted(id Identity) error {
	switch {
	case id.PID <= 1, id.PID == os.Getpid(), id.PID == os.Getppid():
		return fmt.Errorf("verifying %v: %w", id, ErrForbidden)
	case id.StartTicks == 0, id.BootID == "":
		return fmt.Errorf("verifying %v: start time or boot id missing: %w", id, ErrForbidden)
	}
	return nil
}

// verify compares an open pidfd, and whatever has its pid, with id.
func verify(pidfd int, id Identity) (Stat, error) {
	inode, err := PidfdInode(pidfd)
	if err != nil {
		return Stat{}, err
	}
	if id.PidfdInode != 0 && inode != 0 && inode != id.PidfdInode {
		return Stat{}, fmt.Errorf("verifying %v: inode is %d: %w", id, inode, ErrReused)
	}
	st, err := statBehind(pidfd, id.PID)
	if err != nil {
		return Stat{}, err
	}
	if st.StartTicks != id.StartTicks {
		return Stat{}, fmt.Errorf("verifying %v: start time is %d: %w", id, st.StartTicks, ErrReused)
	}
	return st, nil
}

// openPidfd maps what pidfd_open(2) says of a pid that has no process: ESRCH, or, while the number still
// names a thread, a process group or a session, EINVAL (ENOENT since 6.16).
func openPidfd(pid int) (int, error) {
	if pid <= 0 {
		return -1, fmt.Errorf("opening process %d: %w", pid, ErrForbidden)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return -1, fmt.Errorf("opening process %d: %w", pid, ErrGone)
	}
	return -1, fmt.Errorf("opening process %d: %w", pid, err)
}

// statBehind reads /proc/PID/stat. A missing file is ErrGone only when the pidfd agrees: with hidepid or
// ProtectProc the file of a live process is missing too.
func statBehind(pidfd, pid int) (Stat, error) {
	st, err := ReadStat(pid)
	if err == nil || !(errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)) {
		return st, err
	}
	if gone, perr := reaped(pidfd); perr == nil && gone {
		return Stat{}, fmt.Errorf("reading process %d: %w", pid, ErrGone)
	}
	return Stat{}, fmt.Errorf("reading process %d, which exists but is hidden: %v", pid, err)
}

// ReadStat reads /proc/PID/stat of whatever process has pid now.
func ReadStat(pid int) (Stat, error) {
	var buf [1024]byte // 52 numbers and a command of 15 bytes (64 for kernel threads)
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Stat{}, fmt.Errorf("opening %s: %w", path, err)
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return Stat{}, fmt.Errorf("reading %s: %w", path, err)
	}
	st, err := ParseStat(buf[:n])
	if err != nil {
		return Stat{}, fmt.Errorf("reading %s: %w", path, err)
	}
	if st.PID != pid {
		return Stat{}, fmt.Errorf("reading %s: it names process %d", path, st.PID)
	}
	return st, nil
}

// SignalVerified sends sig to exactly the process that id names, through a pidfd; signal 0 only checks.
// Errors are those of OpenVerified, and EPERM.
func SignalVerified(id Identity, sig unix.Signal) error {
	fd, err := OpenVerified(id)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return SignalPidfd(fd, sig)
}

// SignalPidfd sends sig through a pidfd that the caller has verified. ErrGone when it was reaped.
func SignalPidfd(pidfd int, sig unix.Signal) error {
	err := unix.PidfdSendSignal(pidfd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signalling with %v: %w", sig, ErrGone)
	}
	if err != nil {
		return fmt.Errorf("signalling with %v: %w", sig, err)
	}
	return nil
}
