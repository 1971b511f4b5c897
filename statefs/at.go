package statefs

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// beneath is how every path below a directory that others can write to is
// opened: no way out, no link, no mount (openat2(2), Linux 5.6).
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

// ErrName is an id that SafeName refuses, or a generation of 0.
var ErrName = errors.New("not a name for a directory")

// openBeneath opens path below dirfd under the rules of beneath.
func openBeneath(dirfd int, path string, flags uint64) (fd int, err error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: beneath}
	err = eintr(func() error {
		fd, err = unix.Openat2(dirfd, path, &how)
		return err
	})
	return fd, err
}

// openDir opens the directory name of dirfd; a link there is refused, a mount
// point is not.
func openDir(dirfd int, name string) (*os.File, error) {
	fd, err := openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err == unix.ENOTDIR || err == unix.ELOOP {
		return nil, fmt.Errorf("%w: %q is not a directory", ErrUnfit, name)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// ensureDir opens the directory name of dirfd with the given mode and our own
// uid, and makes it when there is none; made says which. Crash point: a new
// directory may keep a mode that the umask has narrowed; the next call widens it.
func ensureDir(dirfd int, name string, mode uint32) (f *os.File, made bool, err error) {
	err = eintr(func() error { return unix.Mkdirat(dirfd, name, mode) })
	if err != nil && err != unix.EEXIST {
		return nil, false, err
	}
	made = err == nil
	if f, err = openDir(dirfd, name); err != nil {
		return nil, false, err
	}
	if err := checkOwn(f, mode); err != nil {
		_ = f.Close()
		return nil, false, err
	}
	return f, made, nil
}

// checkOwn refuses a directory of another uid or with a wider mode, and widens
// a tighter one.
func checkOwn(f *os.File, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: %q belongs to uid %d, this process is uid %d", ErrUnfit, f.Name(), st.Uid, os.Geteuid())
	}
	have := st.Mode & 0o777
	if have&^mode != 0 {
		return fmt.Errorf("%w: %q has mode %04o, more than %04o", ErrUnfit, f.Name(), have, mode)
	}
	if have != mode {
		return unix.Fchmod(int(f.Fd()), mode)
	}
	return nil
}

// procFD names an open descriptor, also one that was opened with O_PATH, for
// calls that take paths. It is followed to exactly what is open (proc_pid_fd(5)).
func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
