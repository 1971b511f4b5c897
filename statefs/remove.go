package statefs

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berthd/berth/statefs/failpoint"
	"golang.org/x/sys/unix"
)

const (
	// flatDepth is how deep a tree is deleted in place. What lies deeper is
	// first moved up to the tree's top, so that a tree of any depth (an agent
	// can nest without end) needs few descriptors and little stack.
	flatDepth = 48
	// direntBytes is the buffer for getdents64, one for every depth.
	direntBytes = 32 << 10
	// checkEvery is how many entries are deleted between two looks at the context.
	checkEvery = 64
)

// remover deletes one tree. It never stops at an entry that it cannot delete:
// it goes on and returns the first such error at the end.
type remover struct {
	ctx     context.Context
	top     int // the tree's top directory
	removed uint64
	buffers [][]byte
	failed  error // first entry that could not be deleted
}

// removeTree deletes the directory (or file) name of the directory parent and
// all below it.
func removeTree(ctx context.Context, parent int, name string) error {
	r := &remover{ctx: ctx}
	fd, err := r.enter(parent, name)
	switch {
	case err == unix.ENOENT:
		return nil
	case err == unix.ENOTDIR || err == unix.ELOOP:
		r.note(r.unlink(parent, name, 0), parent, name)
		return r.failed
	case err != nil:
		r.note(err, parent, name)
		return r.failed
	}
	r.top = fd
	defer unix.Close(fd)
	if err := r.empty(fd, parent, name, 0); err != nil {
		return err
	}
	return r.failed
}

// empty deletes what is in the open directory fd, then fd itself, which is
// name in parent. It reads again as long as something is left and anything
// could be deleted: entries are added by what is moved up, and by processes
// that have not ended. The result is nil or the context's error.
func (r *remover) empty(fd, parent int, name string, depth int) error {
	for {
		before := r.removed
		if err := r.pass(fd, depth); err != nil {
			return err
		}
		err := r.rmdir(parent, name)
		if err != unix.ENOTEMPTY && err != unix.EEXIST {
			r.note(err, parent, name)
			return nil
		}
		if r.removed == before {
			r.note(err, parent, name)
			return nil
		}
		if _, err := unix.Seek(fd, 0, 0); err != nil {
			r.note(err, parent, name)
			return nil
		}
	}
}

// pass goes through the directory fd once and deletes every entry.
func (r *remover) pass(fd, depth int) error {
	for len(r.buffers) <= depth {
		r.buffers = append(r.buffers, make([]byte, direntBytes))
	}
	buf := r.buffers[depth]
	for {
		var n int
		err := eintr(func() (err error) {
			n, err = unix.Getdents(fd, buf)
			return err
		})
		if err == unix.ENOENT { // the directory is gone: somebody else deletes it too
			return nil
		}
		if err != nil {
			r.note(err, fd, ".")
			return nil
		}
		if n == 0 {
			return nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			var e dirent
			e, rest = nextDirent(rest)
			if e.name == "." || e.name == ".." {
				continue
			}
			if err := r.entry(fd, e, depth); err != nil {
				return err
			}
		}
	}
}

// dirent is one entry of a directory.
type dirent struct {
	name string
	kind uint8
}

// nextDirent takes one struct linux_dirent64 from b, getdents(2): inode and
// offset (8 bytes each), record length (2), type (1), name up to a zero.
func nextDirent(b []byte) (dirent, []byte) {
	size := int(binary.NativeEndian.Uint16(b[16:18]))
	name, _, _ := bytes.Cut(b[19:size], []byte{0})
	return dirent{name: string(name), kind: b[18]}, b[size:]
}

// entry deletes one entry of the directory dir.
func (r *remover) entry(dir int, e dirent, depth int) error {
	if r.removed%checkEvery == 0 && r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	if err := failpoint.Hit("trash.entry.before"); err != nil {
		return err
	}
	if e.kind != unix.DT_DIR {
		// Also where the file system does not tell the type: a directory is
		// then refused with EISDIR.
		err := r.unlink(dir, e.name, 0)
		if err != unix.EISDIR {
			r.note(err, dir, e.name)
			return nil
		}
	}
	if depth >= flatDepth && r.moveUp(dir, e.name) {
		return nil
	}
	fd, err := r.enter(dir, e.name)
	switch {
	case err == unix.ENOENT:
		return nil
	case err == unix.ENOTDIR || err == unix.ELOOP:
		// It was exchanged since it was read.
		r.note(r.unlink(dir, e.name, 0), dir, e.name)
		return nil
	case err != nil:
		r.note(err, dir, e.name)
		return nil
	}
	defer unix.Close(fd)
	return r.empty(fd, dir, e.name, depth+1)
}

// moveUp moves the directory name of dir to the tree's top, under a name that
// nothing else has. False when it cannot (a full disk, a mount point): it is
// then deleted where it is.
func (r *remover) moveUp(dir int, name string) bool {
	err := eintr(func() error {
		return unix.Renameat2(dir, name, r.top, tempName(), unix.RENAME_NOREPLACE)
	})
	if err != nil {
		return false
	}
	r.removed++ // it is progress for the directory that it was in
	return true
}

// enter opens the directory name of dir for reading, without following a link
// or crossing a mount, and takes away what forbids it.
func (r *remover) enter(dir int, name string) (int, error) {
	fd, err := openBeneath(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != unix.EACCES {
		return fd, err
	}
	if !unlockEntry(dir, name) {
		return fd, err
	}
	return openBeneath(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

func (r *remover) rmdir(dir int, name string) error {
	return r.unlink(dir, name, unix.AT_REMOVEDIR)
}

// unlink deletes one name, and takes away what forbids it. A name that is gone
// already is no error.
func (r *remover) unlink(dir int, name string, flags int) error {
	err := eintr(func() error { return unix.Unlinkat(dir, name, flags) })
	if err == unix.EACCES || err == unix.EPERM {
		if unlockEntry(dir, name) {
			err = eintr(func() error { return unix.Unlinkat(dir, name, flags) })
		}
	}
	if err == nil {
		r.removed++
	}
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// note keeps the first error, with the path that it is about. EXDEV (openat2)
// and EBUSY (unlink, rmdir of a mount point, also a file's) mean a mount.
func (r *remover) note(err error, dir int, name string) {
	if err == nil || r.failed != nil {
		return
	}
	path := name
	if at, perr := os.Readlink(procFD(dir)); perr == nil {
		path = filepath.Join(at, name)
	}
	if err == unix.EXDEV || err == unix.EBUSY {
		r.failed = &MountedError{Path: filepath.Dir(path), MountPoint: path}
		return
	}
	if err == unix.EPERM || err == unix.EACCES {
		if lerr := locked(dir, name); lerr != nil {
			r.failed = lerr
			return
		}
	}
	r.failed = fmt.Errorf("deleting %q: %w", path, err)
}

// unlockEntry takes away what forbids to delete name from dir or to enter it:
// dir's and a directory's mode. It says whether anything changed.
func unlockEntry(dir int, name string) bool {
	changed := unlock(dir)
	fd, err := openBeneath(dir, name, unix.O_PATH)
	if err != nil {
		return changed
	}
	defer unix.Close(fd)
	return unlock(fd) || changed
}

// unlock gives the owner every permission on the open directory fd (O_PATH is
// enough). It says whether anything changed. The immutable and append-only
// attributes stay: only root can set them, so somebody who may forbid the
// deletion has done so on purpose.
func unlock(fd int) bool {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o700 == 0o700 {
		return false
	}
	return unix.Chmod(procFD(fd), st.Mode&0o777|0o700) == nil
}

// LockedError refuses to delete what somebody has locked with an attribute
// (chattr(1)). Whoever has set it takes it away; the deletion then goes on.
type LockedError struct {
	// Path is the file or directory that has the attribute.
	Path string
	// Attribute is "i" (immutable) or "a" (append-only).
	Attribute string
}

// Error says what to do.
func (e *LockedError) Error() string {
	word := "immutable"
	if e.Attribute == "a" {
		word = "append-only"
	}
	return fmt.Sprintf("%q is %s, by an attribute that only root can set: \"chattr -%s\" lets the deletion go on", e.Path, word, e.Attribute)
}

// Is makes it what the kernel says of such a file.
func (e *LockedError) Is(target error) bool { return target == unix.EPERM }

// locked tells why name of the directory dir may not be deleted, nil when no
// attribute is the reason. A file's own immutable attribute counts, and both
// attributes of the directory that it is in.
func locked(dir int, name string) error {
	at, err := os.Readlink(procFD(dir))
	if err != nil {
		return nil
	}
	if fd, err := openBeneath(dir, name, unix.O_PATH); err == nil {
		defer unix.Close(fd)
		if a := attribute(fd); a != "" {
			return &LockedError{Path: filepath.Join(at, name), Attribute: a}
		}
	}
	if a := attribute(dir); a != "" {
		return &LockedError{Path: at, Attribute: a}
	}
	return nil
}

// Attributes of statx(2), include/uapi/linux/stat.h.
const (
	statxImmutable = 0x10 // STATX_ATTR_IMMUTABLE
	statxAppend    = 0x20 // STATX_ATTR_APPEND
)

// attribute is the one of fd (O_PATH is enough) that forbids its deletion.
func attribute(fd int) string {
	var stx unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &stx); err != nil {
		return ""
	}
	switch {
	case stx.Attributes&statxImmutable != 0:
		return "i"
	case stx.Attributes&statxAppend != 0:
		return "a"
	}
	return ""
}
