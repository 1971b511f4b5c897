package daemontest

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// as runs f in a thread with other ids, which ends with it: connections that f
// makes are another user's. f must not start goroutines that connect.
func as(t *testing.T, uid, gid int, groups []int, f func()) {
	t.Helper()
	needRoot(t)
	done := make(chan error, 1)
	go func() { // ends with f
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := become(uid, gid, groups); err != nil {
			done <- err
			return
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// become changes the ids of the calling thread alone; the functions of package
// syscall change those of all threads.
func become(uid, gid int, groups []int) error {
	ids := make([]int32, len(groups)+1) // never empty, it has an address
	for i, g := range groups {
		ids[i] = int32(g)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&ids[0])), 0); e != 0 {
		return e
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); e != 0 {
		return e
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
		return e
	}
	return nil
}
