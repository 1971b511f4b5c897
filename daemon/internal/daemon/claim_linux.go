package daemon

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

var (
	// errClaimed is a cgroup tree that another daemon uses.
	errClaimed = errors.New("another daemon uses it")
	// errCopied is one that is named for the host id.
	errCopied = errors.New("another daemon with the same host id runs: its state directory and this one are copies of each other")
)

const (
	// claimPatience bounds the wait for a tree that a daemon may just have
	// lost: what it was cloning when it was killed holds it until its exec.
	claimPatience = time.Second
	claimPause    = 10 * time.Millisecond
)

// claimOwn claims the cgroup tree that is named for the host id. The lock of the
// state directory does not stop a daemon that runs on a copy of it: that one
// would take this one's sessions for its own, wait in vain for their wrappers,
// and stop them.
func claimOwn(path string) (release func() error, err error) {
	if release, err = claimTree(path); errors.Is(err, errClaimed) {
		err = fmt.Errorf("claiming cgroup tree %q: %w", path, errCopied)
	}
	return release, err
}

// claimTree takes flock(2) on the directory of a cgroup tree; errClaimed when
// another daemon has it. release gives it back.
func claimTree(path string) (release func() error, err error) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("claiming cgroup tree: %w", err)
	}
	try := func() error { return unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
	err = try()
	for end := time.Now().Add(claimPatience); retry(err) && time.Now().Before(end); err = try() {
		time.Sleep(claimPause)
	}
	if err == nil {
		return func() error {
			// Also for a child that has the descriptor until its exec.
			return errors.Join(unix.Flock(int(dir.Fd()), unix.LOCK_UN), dir.Close())
		}, nil
	}
	_ = dir.Close() // the cause matters more
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errClaimed
	}
	return nil, fmt.Errorf("claiming cgroup tree %q: %w", path, err)
}

func retry(err error) bool { return errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) }
