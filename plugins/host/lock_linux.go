package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/plugins/sandbox/serve"
)

// lockName is the file in a provider's directory whose flock(2) lock means
// that a process of this provider lives. The daemon takes it and passes the open file
// description on, as descriptor 3: the lock lasts as long as any process has
// that description, without the plugin's help, and ends with the last one.
const lockName = "lock"

const (
	// lockRetry is the time between two tries at a held lock.
	lockRetry = 2 * time.Millisecond
	// lockPatience is how many tries fail before the holder is looked for: a
	// child that is just being forked has a copy of every descriptor until it
	// execs.
	lockPatience = 5
)

// takeLock locks dir for a new plugin process. When a process of an earlier
// start still holds the lock (its daemon died and it did not notice, or it
// left a descendant), it is ended first: never two of one host. bound limits
// that. A holder that does not carry the marks of this host and provider is left
// alone, and when it does not let go within bound, takeLock fails naming it.
func takeLock(ctx context.Context, dir, hostID, kind string, bound time.Duration) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening lock: %w", err)
	}
	if err := lock(ctx, f, hostID, kind); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %q: %w", f.Name(), err)
	}
	return f, nil
}

func lock(ctx context.Context, f *os.File, hostID, kind string) error {
	// The name under which other processes' descriptors show it: without links.
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return fmt.Errorf("naming it: %w", err)
	}
	var holder error
	for try := 1; ; try++ {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != unix.EINTR && err != unix.EWOULDBLOCK {
			return err
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), holder)
		}
		if try%lockPatience == 0 {
			holder = endHolders(path, hostID, kind)
		}
		select {
		case <-ctx.Done():
		case <-time.After(lockRetry):
		}
	}
}

// endHolders kills the marked processes that hold the lock on path. Its error
// names one that it left alone or could not kill.
func endHolders(path, hostID, kind string) error {
	pids, err := pidsOf("/proc")
	if err != nil {
		return err
	}
	var left error
	for _, pid := range pids {
		if pid == os.Getpid() || !holds(pid, path) {
			continue
		}
		if err := endHolder(pid, path, hostID, kind); err != nil {
			left = err
		}
	}
	return left
}

// endHolder kills pid through a descriptor that was opened first and checked
// afterwards, so that a recycled pid is never hit. See pidfd_open(2).
func endHolder(pid int, path, hostID, kind string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // it has gone
	}
	defer unix.Close(fd)
	marked, err := hasMarks(pid, hostID, kind)
	switch {
	case !holds(pid, path):
		return nil // it let go, or this is a process of another kind by now
	case err != nil:
		return fmt.Errorf("held by process %d, which cannot be identified: %w", pid, err)
	case !marked:
		return fmt.Errorf("held by process %d, which is not a process of this provider", pid)
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("held by process %d, which cannot be killed: %w", pid, err)
	}
	return nil
}

// hasMarks reads the environment that pid was started with (proc_pid_environ(5)).
func hasMarks(pid int, hostID, kind string) (bool, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false, err
	}
	env := strings.Split(string(b), "\x00")
	return slices.Contains(env, serve.EnvHost+"="+hostID) && slices.Contains(env, serve.EnvProvider+"="+kind), nil
}

// holds reports whether pid has the file at path open with an flock lock: its
// fdinfo shows one (proc_pid_fdinfo(5)). Unreadable means no.
func holds(pid int, path string) bool {
	fds, err := pidsOf(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		// readlink, unlike stat, cannot hang in a dead mount.
		if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); err != nil || to != path {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
		if err == nil && strings.Contains(string(info), "FLOCK") {
			return true
		}
	}
	return false
}

// pidsOf lists the entries of dir that are numbers, in no order.
func pidsOf(dir string) ([]int, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
