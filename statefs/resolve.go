package statefs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// maxLinks is how many links a path may lead through, as in the kernel.
const maxLinks = 40

// resolve returns path without links, as realpath(3). Unlike that it knows
// before each step which file system the step may hang on, and takes its turn
// there.
func (p *Prober) resolve(name string) (string, error) {
	if !path.IsAbs(name) {
		return "", errors.New("not an absolute path")
	}
	done, rest := "/", name
	for links := 0; rest != ""; {
		first, others, _ := strings.Cut(strings.TrimLeft(rest, "/"), "/")
		rest = others
		next := path.Join(done, first) // cleans "", "." and ".."; done has no links
		if next == done || contains(next, done) {
			done = next
			continue
		}
		target, err := p.readlink(next)
		if err != nil {
			return "", err
		}
		if target == "" {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", unix.ELOOP
		}
		if path.IsAbs(target) {
			done = "/"
		}
		rest = target + "/" + rest
	}
	return done, nil
}

// readlink returns where the link name leads to, or "" when it is none.
func (p *Prober) readlink(name string) (target string, err error) {
	m, err := p.mounts.holding(name)
	if err != nil {
		return "", err
	}
	err = p.onDevice(m.device, func() error {
		var st unix.Stat_t
		if err := eintr(func() error { return unix.Lstat(name, &st) }); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return nil
		}
		target, err = os.Readlink(name)
		return err
	})
	return target, err
}

// mountWatch is this namespace's mount table, read again when it has changed.
// It works on a bare descriptor: poll(2) tells of a change once, and package
// os would have its own poller ask first.
type mountWatch struct {
	mu    sync.Mutex
	open  bool
	fd    int
	table mountTable // nil = not read, or changed
}

// holding returns the mount that holds the path name, which has no links. It
// touches no file system but procfs.
func (w *mountWatch) holding(name string) (mountEntry, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.refreshLocked(); err != nil {
		return mountEntry{}, fmt.Errorf("reading the mount table: %w", err)
	}
	best := -1
	for i, e := range w.table {
		// Of several on one point the last one is on top.
		if contains(e.point, name) && (best < 0 || len(e.point) >= len(w.table[best].point)) {
			best = i
		}
	}
	if best < 0 {
		return mountEntry{}, fmt.Errorf("no mount holds %q", name)
	}
	return w.table[best], nil
}

// refreshLocked reads the table when poll(2) says that it has changed since
// it was read: POLLERR and POLLPRI, proc_pid_mounts(5).
func (w *mountWatch) refreshLocked() error {
	if !w.open {
		fd, err := openat(unix.AT_FDCWD, "/proc/self/mountinfo", unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		w.open, w.fd, w.table = true, fd, nil
	}
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLPRI}}
	n, err := unix.Poll(fds, 0)
	if err == nil && n == 0 && w.table != nil {
		return nil
	}
	w.table = nil
	data, err := readFromStart(w.fd)
	if err != nil {
		return err
	}
	w.table, err = parseMounts(data)
	return err
}

func readFromStart(fd int) ([]byte, error) {
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
		return nil, err
	}
	var data []byte
	for buf := make([]byte, 64<<10); ; {
		var n int
		err := eintr(func() (err error) { n, err = unix.Read(fd, buf); return err })
		if err != nil || n == 0 {
			return data, err
		}
		data = append(data, buf[:n]...)
	}
}

func (w *mountWatch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open {
		_ = unix.Close(w.fd) // only read
		w.open = false
	}
}
