package wrap

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// errLocked: another process holds the generation's lock.
var errLocked = errors.New("the generation's lock is held by another wrapper")

// takeLock takes the write lock on path's whole length as an open file
// description lock (fcntl(2), F_OFD_SETLK), which ends with the last descriptor
// and not, as a POSIX lock does, with the first close. It does not wait.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: int16(io.SeekStart)}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk)
	if err == nil {
		return f, nil
	}
	f.Close() // nothing was written
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, errLocked
	}
	return nil, fmt.Errorf("locking %q: %w", path, err)
}
