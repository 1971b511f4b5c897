package discover

import (
	"context"
	"fmt"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Holder is a process with a descriptor whose open file description holds a lock. A description is
// inherited and passed on, so one lock may have several holders.
type Holder struct {
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"start_ticks"`
	UID        uint32 `json:"uid"` // effective
	Comm       string `json:"comm"`
}

// Holders is the answer of LockHolders.
type Holders struct {
	List   []Holder // by pid as /proc lists them
	Opaque []Opaque // processes within the scope whose descriptors could not be read
}

// LockHolders finds out who holds a lock (of fcntl(2), open file description or not, or of flock(2)) on
// the file with that device, as in stat(2), and inode: from the "lock:" lines of /proc/PID/fdinfo,
// proc_pid_fdinfo(5), which Linux prints since 4.1. Only processes within the scope are asked.
//
// It reads all descriptors of all processes, some 5 µs each, so it is for contradictions, not for
// routine. It returns ctx's error when that ends first.
func (s *Scanner) LockHolders(ctx context.Context, dev, inode uint64) (Holders, error) {
	r, err := s.take()
	if err != nil {
		return Holders{}, err
	}
	defer s.give(r)
	var found Holders
	want := fileID{major: unix.Major(dev), minor: unix.Minor(dev), inode: inode}
	for {
		n, errno := getdents(r.root, r.dents)
		if errno != 0 {
			return Holders{}, fmt.Errorf("listing %q: %w", s.root, errno)
		}
		if n == 0 {
			return found, nil
		}
		for pid, _, rest, ok := number(r.dents[:n]); ok; pid, _, rest, ok = number(rest) {
			if err := ctx.Err(); err != nil {
				return Holders{}, fmt.Errorf("looking for holders of a lock: %w", err)
			}
			if err := r.askHolder(pid, want, &found); err != nil {
				return Holders{}, err
			}
		}
	}
}

// Holds reports whether one process holds such a lock; false when there is no such process.
func (s *Scanner) Holds(pid int, dev, inode uint64) (bool, error) {
	r, err := s.take()
	if err != nil {
		return false, err
	}
	defer s.give(r)
	want := fileID{major: unix.Major(dev), minor: unix.Minor(dev), inode: inode}
	holds, errno := r.holds(pid, want)
	switch errno {
	case 0:
		return holds, nil
	case unix.ENOENT, unix.ESRCH:
		return false, nil
	}
	return false, fmt.Errorf("reading descriptors of process %d: %w", pid, errno)
}

// askHolder adds pid to what was found, if it belongs there. The error is one that no process caused.
func (r *reader) askHolder(pid int, want fileID, found *Holders) error {
	if r.s.scope != nil {
		if id, errno := r.statAt(r.root, r.of(pid, "")); errno == 0 && r.s.cannotOwn(id.uid) {
			return nil
		}
	}
	holds, errno := r.holds(pid, want)
	switch errno {
	case 0:
	case unix.ENOENT, unix.ESRCH, unix.ENOTDIR:
		return nil
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM:
		return fmt.Errorf("reading descriptors of process %d: %w", pid, errno)
	default:
		if o := r.cannotJudge(pid, Unreadable); o.what == blind {
			found.Opaque = append(found.Opaque, *o.opaque)
		}
		return nil
	}
	if !holds {
		return nil
	}
	h := Holder{PID: pid, UID: r.uid(r.root, r.of(pid, "/status"))}
	n, _, errno := slurp(r.root, r.of(pid, "/stat"), &r.small, len(r.small), false)
	if errno == unix.ENOENT || errno == unix.ESRCH {
		return nil
	}
	if st, ok := parseStat(r.small[:n]); ok {
		h.StartTicks, h.Comm = st.startTicks, string(st.comm)
	}
	found.List = append(found.List, h)
	return nil
}

// holds goes through the descriptors of pid, and of its other threads when the first one has exited.
func (r *reader) holds(pid int, want fileID) (bool, syscall.Errno) {
	holds, some, errno := r.holdsBelow(r.of(pid, "/fdinfo"), pid, pid, want)
	if errno != 0 || some {
		return holds, errno
	}
	// No descriptor at all: none open, a kernel thread, a zombie, or a first thread that has exited.
	n, _, errno := slurp(r.root, r.of(pid, "/stat"), &r.small, len(r.small), false)
	if errno != 0 {
		return false, errno
	}
	if st, ok := parseStat(r.small[:n]); !ok || st.emptiness() != headless {
		return false, 0
	}
	dir, errno := openat(r.root, r.of(pid, "/task"), unix.O_DIRECTORY)
	if errno != 0 {
		return false, errno
	}
	defer unix.Close(dir)
	var entries [2048]byte
	n, errno = getdents(dir, entries[:])
	for tid, _, rest, ok := number(entries[:n]); ok && errno == 0; tid, _, rest, ok = number(rest) {
		if holds, some, _ := r.holdsBelow(r.ofThread(pid, tid, "/fdinfo"), pid, tid, want); some {
			return holds, 0 // threads share one table
		}
	}
	return false, errno
}

// holdsBelow reads one fdinfo directory. some says that there was a descriptor.
func (r *reader) holdsBelow(path []byte, pid, tid int, want fileID) (holds, some bool, errno syscall.Errno) {
	dir, errno := openat(r.root, path, unix.O_DIRECTORY)
	if errno != 0 {
		return false, false, errno
	}
	defer unix.Close(dir)
	for {
		n, errno := getdents(dir, r.sub)
		if errno != 0 || n == 0 {
			return false, some, errno
		}
		for fd, _, rest, ok := number(r.sub[:n]); ok; fd, _, rest, ok = number(rest) {
			some = true
			r.path = append(strconv.AppendInt(r.path[:0], int64(fd), 10), 0)
			n, _, errno := slurp(dir, r.path, &r.small, 1<<20, true)
			if errno == unix.EMFILE || errno == unix.ENFILE || errno == unix.ENOMEM {
				return false, true, errno
			}
			if errno != 0 {
				continue // closed meanwhile
			}
			if r.locked(r.small[:n], pid, tid, fd, want) {
				return true, true, 0
			}
		}
	}
}

// locked reports whether a lock line in the content of an fdinfo file is about the wanted file. The line
// holds the device of the super block, which on btrfs and overlayfs is not what stat(2) says; the
// descriptor itself is asked then.
func (r *reader) locked(info []byte, pid, tid, fd int, want fileID) bool {
	for {
		line, rest, ok := nextLock(info)
		if !ok {
			return false
		}
		info = rest
		kind := string(line.kind)
		if line.inode != want.inode || kind != "OFDLCK" && kind != "POSIX" && kind != "FLOCK" {
			continue
		}
		if line.major == want.major && line.minor == want.minor {
			return true
		}
		path := r.ofThread(pid, tid, "/fd/")
		path = append(strconv.AppendInt(path[:len(path)-1], int64(fd), 10), 0)
		id, errno := r.statAt(r.root, path)
		if errno == 0 && id.major == want.major && id.minor == want.minor && id.inode == want.inode {
			return true
		}
	}
}
