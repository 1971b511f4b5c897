package wrap

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// explain turns the errno of a failed start into a sentence. The kernel reports
// one number for the working directory, the file and its interpreter, so the
// steps are tried again, as the agent's uid, to see which one it was.
func (s *execSpec) explain(path string, cause error) error {
	var stage *stageError
	if errors.As(cause, &stage) || cause == errKilledBeforeExec {
		return fmt.Errorf("starting %q: %w", s.argv[0], cause)
	}
	var dirErr, fileErr error
	s.asAgent(func() {
		dirErr = unix.Faccessat(unix.AT_FDCWD, s.dir, unix.X_OK, unix.AT_EACCESS)
		fileErr = unix.Faccessat(unix.AT_FDCWD, s.absolute(path), unix.X_OK, unix.AT_EACCESS)
	})
	info, statErr := os.Stat(s.dir)
	switch {
	case dirErr != nil:
		return fmt.Errorf("starting %q: working directory %q: %w", s.argv[0], s.dir, dirErr)
	case statErr == nil && !info.IsDir():
		return fmt.Errorf("starting %q: working directory %q: %w", s.argv[0], s.dir, unix.ENOTDIR)
	case errors.Is(cause, unix.ENOENT) && fileErr == nil:
		return fmt.Errorf("starting %q: %q exists, but its interpreter does not: %w", s.argv[0], path, cause)
	case errors.Is(cause, unix.ENOEXEC):
		return fmt.Errorf("starting %q: %q is not an executable format (no #! line?): %w", s.argv[0], path, cause)
	case errors.Is(cause, unix.ETXTBSY):
		return fmt.Errorf("starting %q: %q is still open for writing: %w", s.argv[0], path, cause)
	case s.cgroupGone(cause):
		return fmt.Errorf("starting %q: the work cgroup %q is gone or was killed: %w", s.argv[0], s.cgroup, cause)
	default:
		return fmt.Errorf("starting %q: %w", s.argv[0], cause)
	}
}

// absolute returns path as the agent would see it from its directory.
func (s *execSpec) absolute(path string) string {
	if path[0] == '/' {
		return path
	}
	return s.dir + "/" + path
}

// cgroupGone reports whether the clone failed because of the cgroup.
func (s *execSpec) cgroupGone(cause error) bool {
	if s.cgroup == "" {
		return false
	}
	_, err := os.Stat(s.cgroup)
	return err != nil || errors.Is(cause, unix.EBUSY) || errors.Is(cause, unix.ENODEV)
}

// asAgent calls f on a thread that has the agent's ids. Credentials belong to
// the thread on Linux; raw system calls change this one only, and it ends with
// the goroutine because that stays locked to it.
func (s *execSpec) asAgent(f func()) {
	if !s.recipe.SetIDs {
		f()
		return
	}
	done := make(chan struct{})
	go func() { // owner: this function
		defer close(done)
		runtime.LockOSThread()
		if err := rawSetIDs(s.recipe.UID, s.recipe.GID, s.recipe.Groups); err != nil {
			return // f's results stay nil: the plain errno is reported
		}
		f()
	}()
	<-done
}
