package daemontest

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// nextUID counts the uids that tests have taken.
var nextUID atomic.Uint32

// uidBase is where the uids of this run begin, so that runs at one time have
// each their own: with a uid for every session of a test, what is left of it can
// be counted, and a bound on processes is its own.
var uidBase = sync.OnceValue(func() int {
	base, span := 300_000, 64
	if data, err := os.ReadFile("/proc/self/uid_map"); err == nil { // user_namespaces(7)
		var inside, outside, n int
		if _, err := fmt.Sscan(string(data), &inside, &outside, &n); err == nil && n < 4_000_000 {
			return 40_000 // a container with few uids: one run at a time
		}
	}
	return base + os.Getpid()*span
})

// ownUID is a uid that is the test's own. What is left of it after the test is
// a fault, and is ended.
func ownUID(t *testing.T) int {
	t.Helper()
	needRoot(t)
	uid := uidBase() + int(nextUID.Add(1))
	if left := processesOf(t, uid); len(left) > 0 {
		t.Skipf("uid %d, which should be free, has processes %v", uid, left)
	}
	t.Cleanup(func() {
		for _, pid := range processesOf(t, uid) {
			t.Errorf("process %d of uid %d was left", pid, uid)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	return uid
}

// processesOf lists the live processes of a uid.
func processesOf(t *testing.T, uid int) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		status, err := os.ReadFile("/proc/" + e.Name() + "/status")
		if err != nil || strings.Contains(string(status), "\nState:\tZ") {
			continue
		}
		if strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", uid)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// as runs f in a thread with other ids, which ends with it: connections that f
// makes are another user's. f must not start goroutines that connect.
func as(t *testing.T, uid, gid int, groups []int, f func()) {
	t.Helper()
	needRoot(t)
	done := make(chan error, 1)
	go onThread(func() { // ends with f
		if err := become(uid, gid, groups); err != nil {
			done <- err
			return
		}
		f()
		done <- nil
	})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// onThread runs f on a thread that ends with it. The main thread cannot end,
// and what /proc shows of a process is that of its main thread.
func onThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		f()
		return // locked: the thread ends with the goroutine
	}
	done := make(chan struct{})
	go func() { // ends with f
		defer close(done)
		onThread(f) // on another thread, as this one is taken
	}()
	<-done
	runtime.UnlockOSThread()
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
