package statefs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// errLockReplaced is a lock file that was exchanged while it was being locked.
var errLockReplaced = errors.New("the lock file was replaced meanwhile")

// How long a lock is waited for. A child that a daemon was making when it was
// killed holds the lock until it has reached its exec, which takes long where
// the program has to be read from a busy disk first. While the process that
// took the lock lives, somebody else has the directory, and there is no point
// in waiting much.
const (
	lockPatience     = time.Second
	lockPatienceDead = 30 * time.Second
	lockPause        = 10 * time.Millisecond
)

// takeLock takes flock(2) on the lock file of dir. The kernel gives it back
// when the process has ended, however it ended; children have the descriptor
// only until their exec.
func takeLock(dir *os.File) (*os.File, error) {
	fd, err := openat(int(dir.Fd()), lockName, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock file: %w", err)
	}
	f := os.NewFile(uintptr(fd), lockName)
	if err := lockFile(dir, f); err != nil {
		_ = f.Close()
		return nil, err
	}
	// For people, and for the other daemon's error message where /proc/locks
	// does not help. Not needed: a full disk must not keep the daemon down.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

func lockFile(dir, f *os.File) error {
	try := func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
	err := eintr(try)
	for began := time.Now(); err == unix.EWOULDBLOCK; err = eintr(try) {
		if waited := time.Since(began); waited > lockPatienceDead || waited > lockPatience && !ended(lockHolder(f)) {
			break
		}
		time.Sleep(lockPause)
	}
	if err == unix.EWOULDBLOCK {
		if pid := lockHolder(f); pid > 0 {
			return fmt.Errorf("%w (process %d)", ErrLocked, pid)
		}
		return ErrLocked
	}
	if err != nil {
		return fmt.Errorf("locking the lock file: %w", err)
	}
	// Somebody may have removed the file between our open and our lock: then
	// we hold a lock that nobody else will ever see.
	var held, named unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &held); err != nil {
		return fmt.Errorf("checking the lock file: %w", err)
	}
	if err := unix.Fstatat(int(dir.Fd()), lockName, &named, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("checking the lock file: %w", err)
	}
	if held.Dev != named.Dev || held.Ino != named.Ino {
		return errLockReplaced
	}
	return nil
}

// dropLock gives the lock back, also when a child that is just being made has
// the descriptor too: flock(2) with LOCK_UN ends it for all of them.
func dropLock(f *os.File) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
		return fmt.Errorf("unlocking the lock file: %w", err)
	}
	return f.Close()
}

// ended reports whether a process is known and is no more, or a zombie.
func ended(pid int) bool {
	if pid <= 0 {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) && unix.Kill(pid, 0) == unix.ESRCH
	}
	_, state, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// lockHolder returns the pid of the process that has locked f, or 0. The
// kernel's list is asked first: the file's own content may be of an earlier holder.
func lockHolder(f *os.File) int {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0
	}
	if list, err := os.Open("/proc/locks"); err == nil {
		defer list.Close()
		for lines := bufio.NewScanner(list); lines.Scan(); {
			if pid := parseLock(lines.Text(), st.Dev, st.Ino); pid > 0 {
				return pid
			}
		}
	}
	var b [16]byte
	n, _ := f.ReadAt(b[:], 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil || pid <= 0 {
		return 0
	}
	return pid
}

// parseLock returns the pid in a line of /proc/locks when the line is a
// flock on the given file, else 0. proc_locks(5):
// "1: FLOCK  ADVISORY  WRITE 709 08:13:2883613 0 EOF".
func parseLock(line string, dev, ino uint64) int {
	f := strings.Fields(line)
	if len(f) < 6 || f[1] != "FLOCK" {
		return 0 // also a waiter's line, which has "->" there
	}
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(dev), unix.Minor(dev), ino)
	pid, err := strconv.Atoi(f[4])
	if f[5] != want || err != nil || pid <= 0 {
		return 0
	}
	return pid
}
