package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// copy copies a directory into the empty workspace: directories, files and links
// with their modes and times. What is neither (sockets, pipes, devices) is left
// out and named in the log; another file system below the directory is an error,
// as is a repository that is not whole by itself: its copy would share what
// belongs to the original.
func (p *preparation) copy(ctx context.Context) error {
	if err := p.wipe(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(p.Copy, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return failed(FailedSource, "the source is not a directory that can be read")
	}
	c := &copier{p: p, device: st.Dev}
	if err := c.dir(ctx, p.Copy, p.root, 0); err != nil {
		return err
	}
	return p.stamp(false)
}

// copier is one copying.
type copier struct {
	p      *preparation
	device uint64
}

// dir copies what is in a directory. The modes of directories come last, since
// one may forbid to write in it.
func (c *copier) dir(ctx context.Context, from, to string, depth int) error {
	if depth > maxDepth {
		return failed(FailedSource, "directories are nested too deeply")
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return failed(FailedSource, "reading a directory: %w", err)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := c.entry(ctx, filepath.Join(from, e.Name()), filepath.Join(to, e.Name()), depth); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) entry(ctx context.Context, from, to string, depth int) error {
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return failed(FailedSource, "%q: %w", from, err)
	}
	if filepath.Base(from) == ".git" {
		if err := selfContained(c.p.Copy, from, &st); err != nil {
			return err
		}
	}
	mode := os.FileMode(st.Mode & 0o777)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if st.Dev != c.device {
			return failed(FailedSource, "%q: another file system is mounted there", from)
		}
		if filepath.Base(from) == "berth" && filepath.Base(filepath.Dir(from)) == ".git" {
			return nil // the original's own stamp
		}
		if err := os.Mkdir(to, 0o700); err != nil {
			return err
		}
		if err := c.dir(ctx, from, to, depth+1); err != nil {
			return err
		}
		if err := os.Chmod(to, mode); err != nil {
			return err
		}
	case unix.S_IFREG:
		if err := copyFile(ctx, from, to, mode); err != nil {
			return err
		}
	case unix.S_IFLNK:
		target, err := os.Readlink(from)
		if err != nil {
			return failed(FailedSource, "%q: %w", from, err)
		}
		return os.Symlink(target, to)
	default:
		fmt.Fprintf(c.p.log, "berth: %q is neither a file nor a directory and is left out\n", from)
		return nil
	}
	at := time.Unix(st.Mtim.Unix())
	return os.Chtimes(to, at, at)
}

// selfContained refuses a ".git" that leads out of the directory that is copied,
// or to the original by an absolute path, and one that borrows objects.
func selfContained(root, git string, st *unix.Stat_t) error {
	shared := func(why string) error {
		return failed(FailedSource, "%q %s: the copy would share it; clone it instead", git, why)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		for _, name := range []string{"objects/info/alternates", "commondir"} {
			if info, err := os.Lstat(filepath.Join(git, name)); err == nil && info.Size() > 0 {
				return shared("has " + name)
			}
		}
		return nil
	case unix.S_IFREG:
		data, err := readHead(git, maxStamp)
		if err != nil {
			return failed(FailedSource, "%q: %w", git, err)
		}
		path, ok := strings.CutPrefix(strings.TrimSpace(string(data)), "gitdir: ")
		if !ok {
			return nil // an ordinary file
		}
		if full := filepath.Join(filepath.Dir(git), path); filepath.IsAbs(path) || !strings.HasPrefix(full, filepath.Clean(root)+"/") {
			return shared("leads to a repository elsewhere")
		}
		return nil
	}
	return shared("is a link")
}

func readHead(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// copyFile copies a plain file to one that does not exist. Where the file system
// can, the copy shares the blocks until one of both is written to (ioctl_ficlone(2));
// holes stay holes.
func copyFile(ctx context.Context, from, to string, mode fs.FileMode) (err error) {
	src, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return failed(FailedSource, "%q: %w", from, err)
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return failed(FailedSource, "%q is not a plain file any more", from)
	}
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) != nil {
		if err := copyData(ctx, src, dst, info.Size()); err != nil {
			return err
		}
	}
	return dst.Chmod(mode)
}

// copyData copies what is not a hole.
func copyData(ctx context.Context, src, dst *os.File, size int64) error {
	const piece = 64 << 20 // between two looks at ctx
	for at := int64(0); at < size; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		begin, err := unix.Seek(int(src.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			break // a hole up to the end
		}
		end := size
		if err == nil {
			end, err = unix.Seek(int(src.Fd()), begin, unix.SEEK_HOLE)
		}
		if err == unix.EINVAL { // a file system that cannot tell
			begin, end, err = at, size, nil
		}
		if err != nil {
			return err
		}
		n := min(end-begin, piece)
		_, err = src.Seek(begin, io.SeekStart)
		if err == nil {
			_, err = dst.Seek(begin, io.SeekStart)
		}
		if err == nil {
			n, err = io.CopyN(dst, src, n)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		at = begin + n
	}
	if info, err := src.Stat(); err != nil {
		return err
	} else if info.Size() < size {
		size = info.Size() // it has become shorter
	}
	return dst.Truncate(size) // for a hole at the end
}
