package discover

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The wrappers of package unix take strings, which costs an allocation for the NUL behind each; a scan
// makes three calls for every process of the machine. They go through Syscall, not RawSyscall: they may
// block, and the scheduler must be able to give the thread's work to another.

// openat opens path, which ends in NUL, relative to dir for reading. An interrupted call is repeated.
func openat(dir int, path []byte, flags int) (fd int, errno syscall.Errno) {
	for {
		r, _, e := unix.Syscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(&path[0])),
			uintptr(flags|unix.O_RDONLY|unix.O_CLOEXEC), 0, 0, 0)
		if e != unix.EINTR {
			return int(r), e
		}
	}
}

// read fills b as far as one read(2) does.
func read(fd int, b []byte) (n int, errno syscall.Errno) {
	for {
		r, _, e := unix.Syscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if e == 0 {
			return int(r), 0
		}
		if e != unix.EINTR {
			return 0, e
		}
	}
}

// closeQuick closes a file of a proc file system, which does not block: it was open for reading, and
// letting go of an address space (mmdrop) frees no pages.
func closeQuick(fd int) {
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
}

// getdents fills b with entries of the directory, getdents64(2); 0 is the end.
func getdents(fd int, b []byte) (n int, errno syscall.Errno) {
	for {
		r, _, e := unix.Syscall(unix.SYS_GETDENTS64, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if e == 0 {
			return int(r), 0
		}
		if e != unix.EINTR {
			return 0, e
		}
	}
}

// fileID is what stat(2) says of a file.
type fileID struct {
	major, minor uint32
	inode        uint64
	uid          uint32
}

// statAt follows a symbolic link at the end of path, which ends in NUL.
func (r *reader) statAt(dir int, path []byte) (fileID, syscall.Errno) {
	const mask = unix.STATX_INO | unix.STATX_UID
	_, _, e := unix.Syscall6(unix.SYS_STATX, uintptr(dir), uintptr(unsafe.Pointer(&path[0])),
		unix.AT_NO_AUTOMOUNT, mask, uintptr(unsafe.Pointer(&r.statx)), 0)
	if e != 0 {
		return fileID{}, e
	}
	return fileID{r.statx.Dev_major, r.statx.Dev_minor, r.statx.Ino, r.statx.Uid}, 0
}

// number takes the next entry whose name is a number from the entries of getdents. next is the
// directory's offset behind it. ok is false when b is used up.
func number(b []byte) (n int, next int64, rest []byte, ok bool) {
	const head = 19 // ino, off, reclen, type: struct linux_dirent64, getdents(2)
	for len(b) > head {
		size := int(*(*uint16)(unsafe.Pointer(&b[16])))
		if size <= head || size > len(b) {
			return 0, 0, nil, false
		}
		name := b[head:size]
		next = *(*int64)(unsafe.Pointer(&b[8]))
		b = b[size:]
		if n, ok := leadingNumber(name); ok {
			return n, next, b, true
		}
	}
	return 0, 0, nil, false
}

// leadingNumber parses a name that ends in NUL: digits and nothing else, as pids, tids and descriptors.
func leadingNumber(name []byte) (n int, ok bool) {
	for i, c := range name {
		switch {
		case c == 0:
			return n, i > 0
		case c < '0' || c > '9' || i > 9:
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return 0, false
}
