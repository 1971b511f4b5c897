package wrap

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/daemon/internal/sys"
)

// descendants returns the living processes below pid, by pid, with their
// start time. The wrapper is the subreaper, so whatever forks twice, makes its
// own session or loses its parent stays below it. The walk is no snapshot: what
// forks meanwhile is found by the next one.
func descendants(pid int) map[int]uint64 {
	found := map[int]uint64{}
	parents := []int{pid}
	for len(parents) > 0 {
		parent := parents[0]
		parents = parents[1:]
		for _, child := range childrenOf(parent) {
			if _, ok := found[child]; ok {
				continue
			}
			st, err := statOf(child)
			if err != nil {
				continue // gone meanwhile
			}
			parents = append(parents, child)
			if !st.Zombie() {
				found[child] = st.StartTicks
			}
		}
	}
	return found
}

// childrenOf lists the children of all threads of pid, see proc_pid_task(5).
// Kernels without CONFIG_PROC_CHILDREN are scanned instead.
func childrenOf(pid int) []int {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var pids []int
	for _, t := range tasks {
		data, err := os.ReadFile(dir + "/" + t.Name() + "/children")
		if err != nil {
			if !haveChildrenFile() {
				return scanChildren(pid)
			}
			continue // the thread is gone
		}
		for _, field := range bytes.Fields(data) {
			if n, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

func haveChildrenFile() bool {
	_, err := os.Stat("/proc/thread-self/children")
	return err == nil
}

// scanChildren looks through the whole of /proc.
func scanChildren(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := statOf(n); err == nil && st.PPID == pid {
			pids = append(pids, n)
		}
	}
	return pids
}

func statOf(pid int) (sys.Stat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return sys.Stat{}, err
	}
	return sys.ParseStat(data)
}

// signalOne sends sig to the process that has pid and started at ticks: it is
// opened first and looked at then, so that nobody else can be hit.
func signalOne(pid int, ticks uint64, sig syscall.Signal) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // gone
	}
	defer unix.Close(fd)
	st, err := statOf(pid)
	if err != nil || st.StartTicks != ticks || pid == os.Getpid() {
		return
	}
	_ = unix.PidfdSendSignal(fd, sig, nil, 0) // gone, or another uid's: the next walk tells
}
