package cgroupfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/berthd/berth/statefs/failpoint"
	"golang.org/x/sys/unix"
)

// beneath keeps every lookup inside the base's own file system: no "..", no link, no mount that somebody
// put over a part of the tree (which answers EXDEV). See openat2(2).
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openAt opens rel below the directory fd. EAGAIN is the kernel's "a rename raced with me".
func openAt(dir int, rel string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: beneath}
	for range 64 {
		fd, err := unix.Openat2(dir, rel, &how)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		return fd, err
	}
	return -1, unix.EAGAIN
}

func openDirAt(dir int, rel string) (int, error) {
	return openAt(dir, rel, unix.O_PATH|unix.O_DIRECTORY)
}

// readAt reads the control file rel, into buf as long as that has room. A cgroup that was removed
// between the open and the read answers ENODEV.
func readAt(dir int, rel string, buf []byte) ([]byte, error) {
	fd, err := openAt(dir, rel, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return drain(fd, buf)
}

// maxRead bounds what drain takes: a list of PID_MAX_LIMIT (4 Mi) pids is smaller.
const maxRead = 64 << 20

// drain reads a descriptor to its end and closes it. The result lies in buf if that is large enough.
func drain(fd int, buf []byte) ([]byte, error) {
	defer unix.Close(fd)
	n := 0
	for {
		if n == len(buf) {
			if n >= maxRead {
				return nil, unix.EFBIG
			}
			buf = append(buf, make([]byte, 3*n)...)
		}
		m, err := unix.Read(fd, buf[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if m == 0 {
			return buf[:n], nil
		}
		n += m
	}
}

// writeAt writes value to the control file rel in one write(2), as the kernel wants it.
func writeAt(dir int, rel, value string) error {
	if err := failpoint.Hit("cgroup.write.before"); err != nil {
		return err
	}
	fd, err := openAt(dir, rel, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Write(fd, []byte(value))
		if err != unix.EINTR {
			return err
		}
	}
}

// subdirs lists the directories in dir (a descriptor, kept by the caller). A cgroup's link count is the
// number of its children plus two (fs/kernfs/inode.c), which saves reading 60 entries of a childless one.
func subdirs(dir int, rel string) ([]string, error) {
	fd, err := openAt(dir, rel, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if st.Nlink == 2 {
		unix.Close(fd)
		return nil, nil
	}
	f := os.NewFile(uintptr(fd), rel)
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// vanished reports whether an error is what a removed cgroup answers: ENOENT to an open, ENODEV to a
// descriptor that was open already.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// events is the content of cgroup.events.
type events struct{ populated, frozen bool }

// parseEvents decodes cgroup.events. Unknown keys are left alone, the kernel may add some; a populated
// that is missing or neither 0 nor 1 is an error, because false would be a claim.
func parseEvents(b []byte) (events, error) {
	var e events
	seen := false
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if key != "populated" && key != "frozen" {
			continue
		}
		if value != "0" && value != "1" {
			return events{}, fmt.Errorf("parsing cgroup.events: line %q", line)
		}
		if key == "frozen" {
			e.frozen = value == "1"
			continue
		}
		e.populated, seen = value == "1", true
	}
	if !seen {
		return events{}, errors.New("parsing cgroup.events: no populated line")
	}
	return e, nil
}
