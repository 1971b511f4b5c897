package host

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/plugins/sandbox"
)

// program is a provider's program as it was when it was verified.
type program struct {
	path  string
	inode unix.Stat_t
}

// verify checks that c's program is a regular file that only root or this user
// could have put there, and, when pinned, that it has the right content. Errors are
// *sandbox.Error: not_configured, or configuration_drift for a wrong checksum.
func verify(c Config) (program, error) {
	f, err := os.OpenFile(c.Path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a fifo must not hold us up
	if err != nil {
		return program{}, notConfigured("opening provider %q: %v", c.Path, plain(err))
	}
	defer f.Close()
	p := program{path: c.Path}
	if err := unix.Fstat(int(f.Fd()), &p.inode); err != nil {
		return program{}, notConfigured("asking about provider %q: %v", c.Path, err)
	}
	if err := p.safe(); err != nil {
		return program{}, err
	}
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) // behind symbolic links
	if err != nil {
		return program{}, notConfigured("naming provider %q: %v", c.Path, err)
	}
	for _, path := range []string{c.Path, real} {
		if err := safeParents(path); err != nil {
			return program{}, err
		}
	}
	if c.SHA256 == "" {
		return p, nil
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return program{}, notConfigured("reading provider %q: %v", c.Path, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); !equalHex(got, c.SHA256) {
		return program{}, &sandbox.Error{Reason: sandbox.ConfigurationDrift, Message: fmt.Sprintf(
			"provider %q has SHA-256 %s, configured is %s", c.Path, got, c.SHA256)}
	}
	return p, nil
}

// safe refuses programs that somebody else could have changed.
func (p program) safe() error {
	m := p.inode.Mode
	switch {
	case m&unix.S_IFMT != unix.S_IFREG:
		return notConfigured("provider %q is not a regular file", p.path)
	case m&0o111 == 0:
		return notConfigured("provider %q is not executable", p.path)
	case m&0o022 != 0:
		return notConfigured("provider %q can be written by others (mode %04o)", p.path, m&0o7777)
	case p.inode.Uid != 0 && int(p.inode.Uid) != os.Geteuid():
		return notConfigured("provider %q belongs to uid %d", p.path, p.inode.Uid)
	}
	return nil
}

// safeParents refuses programs below a directory that everybody can write.
func safeParents(path string) error {
	for d := filepath.Dir(path); ; d = filepath.Dir(d) {
		var s unix.Stat_t
		if err := unix.Stat(d, &s); err != nil {
			return notConfigured("asking about directory %q: %v", d, err)
		}
		// In a sticky directory only an entry's owner can replace it.
		if s.Mode&0o002 != 0 && s.Mode&unix.S_ISVTX == 0 {
			return notConfigured("provider %q lies below %q, which everybody can write", path, d)
		}
		if d == "/" {
			return nil
		}
	}
}

// unchanged reports whether the path still leads to the verified file, not
// written since: exec goes by path, so a swap between the check and the exec
// would pass otherwise. It is asked after exec, before the first call.
func (p program) unchanged() error {
	var now unix.Stat_t
	if err := unix.Stat(p.path, &now); err != nil {
		return drift("asking about provider %q again: %v", p.path, err)
	}
	if now.Dev != p.inode.Dev || now.Ino != p.inode.Ino || now.Size != p.inode.Size ||
		now.Mtim != p.inode.Mtim || now.Ctim != p.inode.Ctim {
		return drift("provider %q was replaced while it was being started", p.path)
	}
	return nil
}

func equalHex(a, b string) bool {
	x, errA := hex.DecodeString(a)
	y, errB := hex.DecodeString(b)
	return errA == nil && errB == nil && string(x) == string(y)
}

// plain strips the path that the message names already.
func plain(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

func notConfigured(format string, args ...any) error {
	return &sandbox.Error{Reason: sandbox.NotConfigured, Message: fmt.Sprintf(format, args...)}
}

// drift is retryable: an upgrade in progress looks like this.
func drift(format string, args ...any) error {
	return &sandbox.Error{Reason: sandbox.ConfigurationDrift, Message: fmt.Sprintf(format, args...), Retryable: true}
}
