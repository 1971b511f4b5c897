package statefs

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// Usage is what a tree takes on its file system.
type Usage struct {
	// Bytes are those of allocated blocks, shared ones (reflinks) in full; a file
	// with several names counts once. Inodes counts directories too.
	Bytes, Inodes uint64
	// Partial: something could not be looked at, lies too deep, or is another file
	// system; the numbers are what was seen.
	Partial bool
}

// Add is both together.
func (u Usage) Add(o Usage) Usage {
	return Usage{u.Bytes + o.Bytes, u.Inodes + o.Inodes, u.Partial || o.Partial}
}

const (
	// measureDepth is how deep a tree is measured.
	measureDepth = 256
	// measureLinks bounds how many files with several names are remembered.
	measureLinks = 1 << 20
)

// Measure adds up what the tree at path takes. Nothing in it is read but names and
// attributes; links are not followed, mounts not entered. It takes as long as
// du(1), so that it belongs into a worker. Errors: one that matches fs.ErrNotExist
// when there is nothing at path, ctx's, else the operating system's for path itself.
func Measure(ctx context.Context, path string) (Usage, error) {
	m := &measurer{ctx: ctx, links: map[uint64]bool{}}
	fd, err := openat(unix.AT_FDCWD, path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Usage{}, fmt.Errorf("measuring %q: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Usage{}, fmt.Errorf("measuring %q: %w", path, err)
	}
	m.device = st.Dev
	m.count(&st)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := m.dir(fd, ".", 0); err != nil {
			return m.usage, fmt.Errorf("measuring %q: %w", path, err)
		}
	}
	return m.usage, nil
}

type measurer struct {
	ctx     context.Context
	device  uint64
	links   map[uint64]bool // inodes with several names that were counted
	usage   Usage
	buffers [][]byte
}

func (m *measurer) count(st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if m.links[st.Ino] {
			return
		}
		if len(m.links) < measureLinks {
			m.links[st.Ino] = true
		}
	}
	m.usage.Bytes += uint64(st.Blocks) * 512 // whatever st_blksize is, see stat(3type)
	m.usage.Inodes++
}

// dir measures what is in the directory name of parent. Its error is the context's.
func (m *measurer) dir(parent int, name string, depth int) error {
	if err := m.ctx.Err(); err != nil {
		return err
	}
	fd, err := openBeneath(parent, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil || depth > measureDepth {
		m.usage.Partial = true
		if err == nil {
			_ = unix.Close(fd)
		}
		return nil
	}
	defer unix.Close(fd)
	for len(m.buffers) <= depth {
		m.buffers = append(m.buffers, make([]byte, direntBytes))
	}
	for {
		n, err := unix.Getdents(fd, m.buffers[depth])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			m.usage.Partial = true
		}
		if err != nil || n <= 0 {
			return nil
		}
		for rest := m.buffers[depth][:n]; len(rest) > 0; {
			var e dirent
			if e, rest = nextDirent(rest); e.name == "." || e.name == ".." {
				continue
			}
			if err := m.entry(fd, e.name, depth); err != nil {
				return err
			}
		}
	}
}

func (m *measurer) entry(dir int, name string, depth int) error {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == unix.ENOENT:
		return nil // it has just gone
	case err != nil || st.Dev != m.device:
		m.usage.Partial = true
		return nil
	}
	m.count(&st)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return m.dir(dir, name, depth+1)
	}
	return nil
}
