package discover

import "bytes"

// stat is what the scan uses of /proc/PID/stat, proc_pid_stat(5). Package sys has a parser too; this one
// exists because a scan parses one for each of the machine's kernel threads and must not allocate.
type stat struct {
	comm       []byte // into the parsed buffer
	state      byte
	ppid       int
	flags      uint64
	threads    uint64
	startTicks uint64
	size       uint64 // of the address space, in bytes
	endCode    uint64
	envStart   uint64
	envEnd     uint64
}

// Bits of stat.flags, include/linux/sched.h.
const (
	flagExiting = 0x4      // PF_EXITING
	flagKthread = 0x200000 // PF_KTHREAD
)

// parseStat decodes the content of /proc/PID/stat. The command lies between the first '(' and the last
// ')' since it may hold either. Fields that an older kernel does not have stay 0.
func parseStat(b []byte) (s stat, ok bool) {
	begin, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if begin < 1 || end < begin {
		return stat{}, false
	}
	s.comm = b[begin+1 : end]
	rest := b[end+1:]
	for field := 3; ; field++ {
		rest = bytes.TrimLeft(rest, " \n")
		if len(rest) == 0 {
			return s, field > 22
		}
		i := bytes.IndexAny(rest, " \n")
		if i < 0 {
			i = len(rest)
		}
		if !s.set(field, rest[:i]) {
			return stat{}, false
		}
		rest = rest[i:]
	}
}

// set stores one field, counted as in proc_pid_stat(5).
func (s *stat) set(field int, text []byte) bool {
	var to *uint64
	switch field {
	case 3:
		s.state = text[0]
		return len(text) == 1
	case 4:
		n, ok := parseUint(text)
		s.ppid = int(n)
		return ok && n < 1<<31
	case 9:
		to = &s.flags
	case 20:
		to = &s.threads
	case 22:
		to = &s.startTicks
	case 23:
		to = &s.size
	case 27:
		to = &s.endCode
	case 50:
		to = &s.envStart
	case 51:
		to = &s.envEnd
	default:
		return true
	}
	n, ok := parseUint(text)
	*to = n
	return ok
}

// emptiness is why an environment reads as empty.
type emptiness uint8

const (
	transient emptiness = iota // between two programs, or on its way out: ask again
	kernel                     // a kernel thread
	zombie                     // exited, holds nothing
	dying                      // on its way there: no memory any more, will never run a program again
	headless                   // its first thread has exited, others go on
	bare                       // was started with no environment at all
)

// emptiness tells the reasons apart that look the same to a reader of environ: 0 bytes, or ESRCH from
// Linux 6.14 on when there is no address space.
//
// bare needs care. While execve(2) copies pointers, create_elf_tables (fs/binfmt_elf.c) holds
// env_end == env_start for some microseconds although an environment follows. end_code is set only after
// that, and the kernel prints it before env_end, so end_code != 0 shows that the window has passed.
//
// So does zombie. A first thread that has exited has the state Z too, and when another thread executes a
// program it takes the first one's place; whoever held on to the first one then reads Z and 0 threads,
// which the kernel prints for what has been released.
func (s *stat) emptiness() emptiness {
	exited := s.state == 'Z' || s.state == 'X'
	exiting := exited || s.flags&flagExiting != 0
	switch {
	case s.flags&flagKthread != 0:
		return kernel
	case exited && s.threads == 1:
		return zombie
	case exiting && s.threads > 1:
		return headless
	case exiting && s.threads == 1 && s.size == 0:
		return dying
	case !exiting && s.endCode != 0 && s.envStart != 0 && s.envStart == s.envEnd:
		return bare
	}
	return transient
}

// parseUID returns the effective uid from the content of /proc/PID/status, proc_pid_status(5).
func parseUID(b []byte) (uint32, bool) {
	_, b, ok := bytes.Cut(b, []byte("\nUid:\t")) // the command before it is escaped: no newline in it
	if !ok {
		return UnknownUID, false
	}
	_, b, ok = bytes.Cut(b, []byte("\t"))
	if !ok {
		return UnknownUID, false
	}
	if i := bytes.IndexAny(b, "\t\n"); i >= 0 {
		b = b[:i]
	}
	n, ok := parseUint(b)
	if !ok || n > 1<<32-1 {
		return UnknownUID, false
	}
	return uint32(n), true
}

var deletedMark = []byte(" (deleted)")

// parseCgroup returns the path in the v2 hierarchy from the content of /proc/PID/cgroup, cgroups(7):
// the line "0::PATH". ok is false where there is none. The kernel appends " (deleted)" for a zombie
// whose cgroup has been removed; names of our leaves have no blanks, so it is taken off.
func parseCgroup(b []byte) (path []byte, ok bool) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		if p, found := bytes.CutPrefix(line, []byte("0::")); found {
			return bytes.TrimSuffix(p, deletedMark), len(p) > 0 && p[0] == '/'
		}
	}
	return nil, false
}

// belowAny is below for several bases.
func belowAny(path []byte, bases []string) bool {
	for _, base := range bases {
		if below(path, base) {
			return true
		}
	}
	return false
}

// below reports whether the cgroup path is base or lies beneath it.
func below(path []byte, base string) bool {
	rest, ok := bytes.CutPrefix(path, []byte(base))
	return ok && (len(rest) == 0 || rest[0] == '/' || base == "/")
}

// lockLine is one "lock:" line of /proc/PID/fdinfo/N, proc_pid_fdinfo(5), in the form of proc_locks(5):
// "lock:\t1: OFDLCK ADVISORY  WRITE -1 08:01:1234 0 EOF".
type lockLine struct {
	kind  []byte // POSIX OFDLCK FLOCK …
	major uint32
	minor uint32
	inode uint64
}

// nextLock returns the first lock line of b and what follows it. ok is false at the end; a line that
// does not parse is passed over.
func nextLock(b []byte) (l lockLine, rest []byte, ok bool) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		text, found := bytes.CutPrefix(line, []byte("lock:"))
		if !found {
			continue
		}
		if l, ok := parseLock(text); ok {
			return l, b, true
		}
	}
	return lockLine{}, nil, false
}

// parseLock decodes "1: OFDLCK ADVISORY  WRITE -1 08:01:1234 0 EOF".
func parseLock(b []byte) (l lockLine, ok bool) {
	var field []byte
	for i := 0; ; i++ {
		b = bytes.TrimLeft(b, " \t")
		if field, b, _ = bytes.Cut(b, []byte(" ")); len(field) == 0 {
			return lockLine{}, false
		}
		switch i {
		case 1:
			l.kind = field
		case 5:
			return l, l.setFile(field)
		}
	}
}

// setFile decodes "MAJOR:MINOR:INODE", hexadecimal but for the inode.
func (l *lockLine) setFile(b []byte) bool {
	major, b, ok1 := bytes.Cut(b, []byte(":"))
	minor, b, ok2 := bytes.Cut(b, []byte(":"))
	var okMajor, okMinor, okInode bool
	l.major, okMajor = parseHex32(major)
	l.minor, okMinor = parseHex32(minor)
	l.inode, okInode = parseUint(b)
	return ok1 && ok2 && okMajor && okMinor && okInode
}

func parseHex32(b []byte) (n uint32, ok bool) {
	if len(b) == 0 || len(b) > 8 {
		return 0, false
	}
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | uint32(c-'0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | uint32(c-'a'+10)
		default:
			return 0, false
		}
	}
	return n, true
}
