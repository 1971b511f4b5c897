package wrap

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reapLoop is the only place that reaps. Orphans that the wrapper, as the
// subreaper, has inherited are reaped one by one by their pid; the agent's
// status goes to w.ends. Nothing is ever waited for with pid -1, which could
// take a status that somebody else is waiting for.
func (w *wrapper) reapLoop() {
	again := time.NewTicker(reapEvery)
	defer again.Stop()
	for {
		for w.reapOne() {
		}
		select {
		case <-w.child:
		case <-again.C:
		}
	}
}

// reapOne reaps one child that has ended and reports whether there was one.
func (w *wrapper) reapOne() bool {
	pid := endedChild()
	if pid == 0 {
		return false
	}
	if pid != w.agent.pid {
		_, ok := reap(pid)
		return ok
	}
	w.agent.mu.Lock()
	status, ok := reap(pid)
	w.agent.reaped = w.agent.reaped || ok
	w.agent.mu.Unlock()
	if ok {
		w.ends <- status
	}
	return ok
}

func reap(pid int) (unix.WaitStatus, bool) {
	var status unix.WaitStatus
	for {
		got, err := unix.Wait4(pid, &status, unix.WNOHANG|unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		return status, err == nil && got == pid
	}
}

// childInfo is the part of siginfo_t that waitid(2) fills in for a child;
// include/uapi/asm-generic/siginfo.h: the union is aligned to a pointer.
type childInfo struct {
	signo, errno, code int32
	_                  [unsafe.Sizeof(uintptr(0)) - 4]byte
	pid                int32
	_                  [128]byte // at least the size of the kernel's siginfo_t
}

// endedChild returns the pid of a child that has ended and is not yet reaped,
// and leaves it so; 0 = none.
func endedChild() int {
	pid, _ := peekChild()
	return pid
}

// childless reports whether the wrapper has no child, living or dead.
func childless() bool {
	_, err := peekChild()
	return err == unix.ECHILD
}

// peekChild is waitid(2) for any child, without waiting and without reaping
// (WNOWAIT): the pid of one that has ended, 0 when none has, ECHILD when there
// are no children.
func peekChild() (int, error) {
	for {
		var info childInfo
		_, _, e := unix.RawSyscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
			unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, 0, 0)
		switch e {
		case unix.EINTR:
		case 0:
			return int(info.pid), nil
		default:
			return 0, e
		}
	}
}
