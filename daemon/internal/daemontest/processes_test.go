package daemontest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/statefs/cgroupfs"
	"golang.org/x/sys/unix"
)

// process is a held process: its pid cannot be mistaken.
type process struct{ pid, fd int }

// hold opens a process that lives.
func hold(t *testing.T, pid int) process {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("opening process %d: %v", pid, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return process{pid, fd}
}

func holdAll(t *testing.T, pids []int) []process {
	t.Helper()
	var all []process
	for _, pid := range pids {
		all = append(all, hold(t, pid))
	}
	return all
}

func (p process) alive() bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, 0)
	return err == nil && n == 0
}

func (p process) signal(t *testing.T, sig unix.Signal) {
	t.Helper()
	if err := unix.PidfdSendSignal(p.fd, sig, nil, 0); err != nil {
		t.Fatalf("signalling process %d: %v", p.pid, err)
	}
}

// halt stops a process and returns when it stands still: a signal takes a while
// to reach each of its threads.
func (h *Host) halt(t *testing.T, p process) {
	t.Helper()
	p.signal(t, unix.SIGSTOP)
	h.Until(fmt.Sprintf("process %d stands still", p.pid), patience, func() error {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.pid))
		for _, task := range tasks {
			if status, err := os.ReadFile(task); err == nil && !strings.Contains(string(status), "\nState:\tT") {
				return errors.New(task)
			}
		}
		return err
	})
}

// untilDead waits for the end of a process.
func (h *Host) untilDead(t *testing.T, p process) {
	t.Helper()
	h.Until(fmt.Sprintf("process %d ends", p.pid), patience, func() error {
		if p.alive() {
			return errors.New("it lives")
		}
		return nil
	})
}

// bystander is a process that has nothing to do with berth and must live; what
// of attr is set applies.
func bystander(t *testing.T, env []string, attr *syscall.SysProcAttr) process {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := hold(t, cmd.Process.Pid)
	t.Cleanup(func() {
		if !p.alive() {
			t.Errorf("the bystander %d (%v %v) was ended", p.pid, env, attr)
		}
		_ = cmd.Process.Kill() // its own child
		_ = cmd.Wait()
	})
	return p
}

// leafOf is the cgroup directory of an instance.
func (h *Host) leafOf(id string, generation uint64) string {
	if slice := h.Slice(); slice != "" {
		if path := filepath.Join(slice, cgroupfs.ScopeName(id, generation)); isDir(path) {
			return path
		}
	}
	return filepath.Join(h.CgroupBase(), cgroupfs.LeafName(id, generation))
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// membersOf lists the processes in a cgroup directory and below; none when it
// is gone.
func membersOf(t *testing.T, dir string) []int {
	t.Helper()
	var pids []int
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return err
		}
		data, err := os.ReadFile(path)
		for _, f := range strings.Fields(string(data)) {
			pid, _ := strconv.Atoi(f)
			pids = append(pids, pid)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		t.Fatal(err)
	}
	return pids
}

// environ is the environment that a process was started with. In the middle of
// an exec it reads as empty, without an error. case T20
func environ(t *testing.T, pid int) []string {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // the poll's period
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 0 {
			return strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d has no environment", pid)
		}
	}
}

// descriptors counts a process's open descriptors.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
