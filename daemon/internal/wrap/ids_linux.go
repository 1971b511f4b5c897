package wrap

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawSetIDs gives the calling thread, and no other, the ids. The goroutine must
// be locked to a thread that is never used again, or that executes a program.
func rawSetIDs(uid, gid uint32, groups []uint32) error {
	list := uintptr(0)
	if len(groups) > 0 {
		list = uintptr(unsafe.Pointer(&groups[0]))
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), list, 0); e != 0 {
		return fmt.Errorf("setting supplementary groups: %w", e)
	}
	g, u := uintptr(gid), uintptr(uid)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, g, g, g); e != 0 {
		return fmt.Errorf("setting gid %d: %w", gid, e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, u, u, u); e != 0 {
		return fmt.Errorf("setting uid %d: %w", uid, e)
	}
	return nil
}
