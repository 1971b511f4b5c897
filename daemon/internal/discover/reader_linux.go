package discover

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reader reads processes one at a time into buffers of its own. One goroutine uses it at a time.
type reader struct {
	s       *Scanner
	root    int    // directory descriptor of the tree; -1 between scans
	path    []byte // what is being opened, NUL at its end
	dents   []byte // entries of the root
	sub     []byte // entries of a directory below a process
	environ []byte
	small   []byte // stat, status, cgroup, fdinfo
	cmdline []byte
	statx   unix.Statx_t

	kthreads []int // pids of kernel threads at the beginning of the scan, ascending
}

func newReader(s *Scanner) *reader {
	return &reader{
		s:       s,
		root:    -1,
		path:    make([]byte, 0, 64),
		dents:   make([]byte, 32<<10),
		sub:     make([]byte, 8<<10),
		environ: make([]byte, firstEnviron),
		small:   make([]byte, 8<<10),
	}
}

func (r *reader) open() error {
	fd, errno := openat(unix.AT_FDCWD, append([]byte(r.s.root), 0), unix.O_DIRECTORY)
	if errno != 0 {
		return fmt.Errorf("opening %q: %w", r.s.root, errno)
	}
	r.root = fd
	return nil
}

func (r *reader) close() {
	if r.root >= 0 {
		unix.Close(r.root)
		r.root = -1
	}
}

// of returns the path of a file of a process, NUL at its end.
func (r *reader) of(pid int, file string) []byte {
	r.path = strconv.AppendInt(r.path[:0], int64(pid), 10)
	r.path = append(r.path, file...)
	r.path = append(r.path, 0)
	return r.path
}

// ofThread returns the path of a file of one thread, NUL at its end.
func (r *reader) ofThread(pid, tid int, file string) []byte {
	r.path = strconv.AppendInt(r.path[:0], int64(pid), 10)
	r.path = append(r.path, "/task/"...)
	r.path = strconv.AppendInt(r.path, int64(tid), 10)
	r.path = append(r.path, file...)
	r.path = append(r.path, 0)
	return r.path
}

// slurp reads a file whole into *buf, which grows up to limit bytes. more says that it is longer still.
//
// environ_read (fs/proc/base.c) copies everything that fits in one call, and stat is one record: a short
// read is their end, and whole is false. Other files made by seq_file may return less than they hold.
func slurp(dir int, path []byte, buf *[]byte, limit int, whole bool) (n int, more bool, errno syscall.Errno) {
	fd, errno := openat(dir, path, 0)
	if errno != 0 {
		return 0, false, errno
	}
	n, more, errno = slurpOpen(fd, buf, limit, whole)
	closeQuick(fd)
	return n, more, errno
}

func slurpOpen(fd int, buf *[]byte, limit int, whole bool) (n int, more bool, errno syscall.Errno) {
	for {
		got, errno := read(fd, (*buf)[n:])
		if errno != 0 {
			return 0, false, errno
		}
		n += got
		switch {
		case got == 0 || !whole && n < len(*buf):
			return n, false, 0
		case n < len(*buf):
		case len(*buf) >= limit:
			return n, true, 0
		default:
			grown := make([]byte, min(2*len(*buf), limit))
			copy(grown, *buf)
			*buf = grown
		}
	}
}

// outcome is what examine found out about one pid. It is small because nearly all of them say plain.
type outcome struct {
	what   what
	proc   *Proc   // of a hit
	opaque *Opaque // of a blind one
	err    error   // what is fatal: no process was the reason
}

type what uint8

const (
	plain what = iota // nothing of ours
	hit
	blind // in opaque
	gone
	dead // a zombie, not of our tree
	outOfScope
	fatal
)

// examine looks at one process.
func (r *reader) examine(pid int) outcome {
	if r.s.scope != nil {
		if id, errno := r.statAt(r.root, r.of(pid, "")); errno == 0 && r.s.cannotOwn(id.uid) {
			return outcome{what: outOfScope}
		}
	}
	for try := range emptyTries {
		if try > emptyTries/4 {
			time.Sleep(emptyPause)
		} else if try > 0 {
			runtime.Gosched()
		}
		if o, done := r.tryOnce(pid, pid); done && !(o.what == gone && r.exists(pid)) {
			return o
		}
	}
	return r.cannotJudge(pid, Empty)
}

// exists asks for the directory of a process, which is what proves it gone. A file in there may be
// missing although the process lives: when a thread that is not the first executes a program, a directory
// that was looked up a moment earlier belongs to the first one, which is thrown away (de_thread,
// fs/exec.c), and lookups in it fail. Seen on 6.1.
func (r *reader) exists(pid int) bool {
	_, errno := r.statAt(r.root, r.of(pid, ""))
	return errno != unix.ENOENT && errno != unix.ESRCH
}

// tryOnce reads the environment that a thread of pid shows. done is false when it is empty for now.
func (r *reader) tryOnce(pid, tid int) (o outcome, done bool) {
	path := r.of(pid, "/environ")
	if tid != pid {
		path = r.ofThread(pid, tid, "/environ")
	}
	n, more, errno := slurp(r.root, path, &r.environ, maxEnviron, false)
	switch errno {
	case 0, unix.ESRCH:
		if n == 0 {
			return r.empty(pid, tid)
		}
	case unix.ENOENT, unix.ENOTDIR:
		return outcome{what: gone}, true
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM:
		return outcome{what: fatal, err: fmt.Errorf("reading process %d: %w", pid, errno)}, true
	default: // EACCES, EPERM; EIO and EFAULT when it unmapped the memory
		return r.cannotJudge(pid, Unreadable), true
	}
	found := r.s.match.searchEnviron(r.environ[:n])
	if len(r.s.match.argv) > 0 && found.rule == "" {
		found.rule, found.legacy = r.argvRule(r.root, r.of(pid, "/cmdline"))
	}
	switch {
	case found.found():
		return r.confirm(pid, tid)
	case more:
		return r.cannotJudge(pid, TooBig), true
	}
	return outcome{}, true
}

// argvRule asks the operator's rules about an argument vector. One that cannot be read matches none:
// rules find older software on a best effort, they prove nothing.
func (r *reader) argvRule(dir int, path []byte) (rule string, value []byte) {
	if r.cmdline == nil {
		r.cmdline = make([]byte, 8<<10)
	}
	n, _, errno := slurp(dir, path, &r.cmdline, maxCmdline, false)
	if errno != 0 {
		return "", nil
	}
	return r.s.match.searchArgv(r.cmdline[:n])
}

// empty finds out why an environment read as empty.
func (r *reader) empty(pid, tid int) (o outcome, done bool) {
	if _, ok := slices.BinarySearch(r.kthreads, pid); ok {
		return outcome{}, true
	}
	n, _, errno := slurp(r.root, r.of(pid, "/stat"), &r.small, len(r.small), false)
	if errno == unix.ENOENT || errno == unix.ESRCH {
		return outcome{what: gone}, true
	}
	st, ok := parseStat(r.small[:n])
	if errno != 0 || !ok {
		return outcome{}, false
	}
	switch st.emptiness() {
	case kernel:
		return outcome{}, true
	case zombie, dying:
		return r.remains(pid, &st), true
	case headless:
		if tid == pid {
			return r.otherThreads(pid)
		}
	case bare:
		if len(r.s.match.argv) > 0 {
			if rule, _ := r.argvRule(r.root, r.of(pid, "/cmdline")); rule != "" {
				return r.confirm(pid, tid)
			}
		}
		return outcome{}, true
	}
	return outcome{}, false
}

// otherThreads asks the threads of a process whose first one has exited: /proc/PID/environ and fdinfo
// answer for the first thread only, although all of them share one environment and go on with it.
func (r *reader) otherThreads(pid int) (o outcome, done bool) {
	dir, errno := openat(r.root, r.of(pid, "/task"), unix.O_DIRECTORY)
	if errno != 0 {
		return outcome{}, false
	}
	defer unix.Close(dir)
	n, errno := getdents(dir, r.sub)
	if errno != 0 {
		return outcome{}, false
	}
	left := maxThreads
	for tid, _, rest, ok := number(r.sub[:n]); ok && left > 0; tid, _, rest, ok = number(rest) {
		if tid == pid {
			continue
		}
		if o, done := r.tryOnce(pid, tid); done && o.what != gone {
			return o, true
		}
		left--
	}
	return outcome{}, false
}

// remains reports a process without memory, if it lies in one of our trees.
func (r *reader) remains(pid int, st *stat) outcome {
	other := outcome{what: dead}
	if st.emptiness() == dying {
		other.what = plain
	}
	if len(r.s.bases) == 0 {
		return other
	}
	p := Proc{PID: pid, PPID: st.ppid, StartTicks: st.startTicks, State: State(st.state), Zombie: other.what == dead, Kind: Remains}
	p.Comm = string(st.comm)
	n, _, errno := slurp(r.root, r.of(pid, "/cgroup"), &r.small, len(r.small), true)
	if errno != 0 {
		return other
	}
	path, ok := parseCgroup(r.small[:n])
	if !ok || !belowAny(path, r.s.bases) {
		return other
	}
	p.Cgroup = string(path)
	p.UID = r.uid(r.root, r.of(pid, "/status"))
	return outcome{what: hit, proc: &p}
}

// cannotJudge reports a process that hides its markers, unless it is of somebody we cannot be.
func (r *reader) cannotJudge(pid int, why Reason) outcome {
	o := Opaque{PID: pid, UID: r.uid(r.root, r.of(pid, "/status")), Reason: why}
	if o.UID != UnknownUID && !r.s.inScope(o.UID) {
		return outcome{what: outOfScope}
	}
	n, _, errno := slurp(r.root, r.of(pid, "/stat"), &r.small, len(r.small), false)
	if (errno == unix.ENOENT || errno == unix.ESRCH) && !r.exists(pid) {
		return outcome{what: gone}
	}
	if st, ok := parseStat(r.small[:n]); errno == 0 && ok {
		if e := st.emptiness(); e == zombie || e == dying {
			return r.remains(pid, &st)
		}
		o.StartTicks, o.Comm = st.startTicks, string(st.comm)
	}
	if n, _, errno := slurp(r.root, r.of(pid, "/cgroup"), &r.small, len(r.small), true); errno == 0 {
		path, _ := parseCgroup(r.small[:n])
		o.Cgroup = string(path)
	}
	return outcome{what: blind, opaque: &o}
}

// uid returns the effective uid that a status file names, UnknownUID when it cannot be read.
func (r *reader) uid(dir int, path []byte) uint32 {
	n, _, errno := slurp(dir, path, &r.small, len(r.small), true)
	if errno != 0 {
		return UnknownUID
	}
	uid, _ := parseUID(r.small[:n])
	return uid
}

// Paths relative to the directory of a process or of a thread.
var (
	environFile = []byte("environ\x00")
	cmdlineFile = []byte("cmdline\x00")
	statFile    = []byte("stat\x00")
	statusFile  = []byte("status\x00")
	cgroupFile  = []byte("cgroup\x00")
)

// confirm reads a process again that seemed to be a hit, everything behind one directory descriptor:
// that is bound to the process, not to its pid, so nothing is mixed up when the pid changes hands.
func (r *reader) confirm(pid, tid int) (o outcome, done bool) {
	p, errno := r.proc(pid, tid)
	switch {
	case errno == unix.ENOENT || errno == unix.ESRCH:
		return outcome{}, false // it has ended, or the pid is another's now: ask again
	case errno != 0:
		return r.cannotJudge(pid, Unreadable), true
	case p.Kind == Unmarked:
		return outcome{}, true
	case !r.s.inScope(p.UID):
		return outcome{what: outOfScope}, true
	}
	return outcome{what: hit, proc: &p}, true
}

// proc reads all facts of a process; tid is the thread whose environment answers for it. ESRCH when it
// has no address space any more, or none yet.
func (r *reader) proc(pid, tid int) (Proc, syscall.Errno) {
	dir, errno := openat(r.root, r.of(pid, ""), unix.O_DIRECTORY)
	if errno != 0 {
		return Proc{}, errno
	}
	defer unix.Close(dir)
	p := Proc{PID: pid}
	if errno := r.facts(dir, &p); errno != 0 {
		return Proc{}, errno
	}
	file := environFile
	if tid != pid {
		file = append(strconv.AppendInt([]byte("task/"), int64(tid), 10), "/environ\x00"...)
	}
	n, _, errno := slurp(dir, file, &r.environ, maxEnviron, false)
	if errno != 0 {
		return p, errno
	}
	found := r.s.match.searchEnviron(r.environ[:n])
	if len(r.s.match.argv) > 0 && found.rule == "" {
		found.rule, found.legacy = r.argvRule(dir, cmdlineFile)
	}
	if found.found() {
		r.s.match.fill(&p, &found)
	} else if n == 0 {
		return p, unix.ESRCH
	}
	return p, 0
}

// facts reads stat, status and cgroup of the process whose directory dir is.
func (r *reader) facts(dir int, p *Proc) syscall.Errno {
	n, _, errno := slurp(dir, statFile, &r.small, len(r.small), false)
	if errno != 0 {
		return errno
	}
	st, ok := parseStat(r.small[:n])
	if !ok {
		return unix.EBADMSG
	}
	p.PPID, p.StartTicks, p.State, p.Comm = st.ppid, st.startTicks, State(st.state), string(st.comm)
	p.Zombie = st.emptiness() == zombie
	if p.UID = r.uid(dir, statusFile); p.UID == UnknownUID {
		return unix.ESRCH
	}
	// A kernel without cgroups has no such file, nor has a process that has just been reaped; the
	// environment, read after this, tells.
	if n, _, errno = slurp(dir, cgroupFile, &r.small, len(r.small), true); errno == 0 {
		path, _ := parseCgroup(r.small[:n])
		p.Cgroup = string(path)
	}
	return 0
}
