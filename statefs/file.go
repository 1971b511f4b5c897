package statefs

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/berthd/berth/statefs/failpoint"
	"golang.org/x/sys/unix"
)

// tempPrefix begins the names of files that are not yet whole. The names that
// callers use never begin with it.
const tempPrefix = ".tmp-"

// maxSocketPath is the longest path that fits into sockaddr_un with its
// terminating zero; unix(7): sun_path has 108 bytes.
const maxSocketPath = 107

// maxName is the longest id, in bytes.
const maxName = 128

// ErrSocketPath is wrapped by what CheckSocketPath returns.
var ErrSocketPath = errors.New("path of a Unix socket is longer than 107 bytes")

// WriteFile replaces the file at path by one that holds data and has exactly
// the permission bits perm, whatever the umask. A reader sees the old file or
// the new one, also after a crash or a power cut at any point; once WriteFile
// has returned nil the new one is on stable storage.
//
// Crash points: (1) before the rename, the old file stays and a temporary
// file, named .tmp- and 16 hex digits, may be left beside it (Open sweeps
// those of the state directory); (2) after the rename and before the
// directory's fsync, a power cut may bring back the old file.
//
// An error before the rename changes nothing and removes the temporary file.
// An error of the directory's fsync leaves the new file visible but perhaps
// not durable. No failed fsync is tried again: the second one would report
// success for pages that the kernel has dropped (fsync(2), NOTES). The last
// component of path is never followed: a symbolic link there is replaced.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	dir, base := filepath.Split(path)
	if base == "" || base == "." || base == ".." {
		return fmt.Errorf("writing %q: not the name of a file", path)
	}
	if dir == "" {
		dir = "."
	}
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("writing %q: opening its directory: %w", path, pathless(err))
	}
	defer d.Close()
	if err := writeFileAt(d, base, data, perm); err != nil {
		return fmt.Errorf("writing %q: %w", path, err)
	}
	return nil
}

// writeFileAt is WriteFile for the name base in the open directory d.
func writeFileAt(d *os.File, base string, data []byte, perm fs.FileMode) error {
	temp := tempName()
	if err := writeTemp(d, temp, data, perm); err != nil {
		return err
	}
	dirfd := int(d.Fd())
	rename := func() error { return unix.Renameat(dirfd, temp, dirfd, base) }
	err := failpoint.Hit("file.rename.before")
	if err == nil {
		err = eintr(rename)
	}
	if err != nil {
		_ = unix.Unlinkat(dirfd, temp, 0)
		return fmt.Errorf("renaming: %w", err)
	}
	if err := failpoint.Hit("file.rename.after"); err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		return fmt.Errorf("syncing its directory: %w", pathless(err))
	}
	return nil
}

// writeTemp makes the new file temp in d with its content on stable storage,
// or leaves nothing.
func writeTemp(d *os.File, temp string, data []byte, perm fs.FileMode) (err error) {
	fd, err := openat(int(d.Fd()), temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("creating a temporary file: %w", err)
	}
	f := os.NewFile(uintptr(fd), temp)
	defer func() {
		if cerr := f.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("closing: %w", pathless(cerr))
		}
		if err != nil {
			_ = unix.Unlinkat(int(d.Fd()), temp, 0)
		}
	}()
	if _, err := f.Write(data); err != nil {
		return fmt.Errorf("writing: %w", pathless(err))
	}
	// After the content, so that a file that grants more never lacks it.
	if err := f.Chmod(perm); err != nil {
		return fmt.Errorf("setting its mode: %w", pathless(err))
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("syncing: %w", pathless(err))
	}
	return nil
}

func tempName() string {
	// It need not be a secret, only new; the wrapper does without crypto/rand.
	return fmt.Sprintf("%s%016x", tempPrefix, rand.Uint64())
}

// CheckSocketPath says whether a Unix socket can be bound at path: it returns
// an error that wraps ErrSocketPath when path is longer than the 107 bytes
// that fit into sun_path (unix(7)). It looks at the text only. To be asked
// when the configuration is read, not when the socket is made.
func CheckSocketPath(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("%w: %q has %d", ErrSocketPath, path, len(path))
	}
	return nil
}

// SafeName says whether id may name a session and with it a directory: a
// letter or digit, then up to 127 letters, digits, "_", "." or "-". Such a
// name is never hidden, never "." or "..", never an option, has no separator.
func SafeName(id string) bool { return safeName(id, maxName) }

func safeName(s string, limit int) bool {
	if s == "" || len(s) > limit {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return true
}

// openat opens with O_CLOEXEC and without an interrupted result.
func openat(dirfd int, name string, flags int, mode uint32) (fd int, err error) {
	err = eintr(func() error {
		fd, err = unix.Openat(dirfd, name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	return fd, err
}

// eintr repeats call while a signal interrupts it: file systems in user space
// and the network let Go's preemption signal through.
func eintr(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// pathless takes operation and path out of an error of package os: here they
// are a descriptor's or a temporary file's and say nothing to the reader.
func pathless(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
