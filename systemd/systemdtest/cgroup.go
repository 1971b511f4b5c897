package systemdtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// prefix begins the names of a box's cgroup and directory. Then come pid and
// start time of the process that the box belongs to, and a number.
const prefix = "berth-box-"

// self is this process in a form that no other one ever has on this boot.
func self() string {
	pid := os.Getpid()
	return fmt.Sprintf("%d-%s", pid, startTicks(pid))
}

// startTicks is field 22 of proc(5)'s stat; "" for what is gone or a zombie.
func startTicks(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}

// cgroupMount is where the machine has cgroup v2.
func cgroupMount() (string, error) {
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1], nil
		}
	}
	return "", errors.New("no cgroup v2 file system is mounted")
}

// sweep removes what boxes of processes that were killed have left.
func sweep(mount string) {
	for _, parent := range []string{mount, os.TempDir()} {
		left, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
		for _, path := range left {
			id := strings.Split(strings.TrimPrefix(filepath.Base(path), prefix), "-")
			pid, err := strconv.Atoi(id[0])
			if err != nil || len(id) != 3 || startTicks(pid) == id[1] {
				continue
			}
			// Somebody else's failure, so not ours to report.
			if parent == mount {
				_ = removeCgroup(path)
			} else {
				_ = os.RemoveAll(path)
			}
		}
	}
}

// emptyCgroup removes what is below a cgroup, whose processes have been killed
// with their PID 1.
func emptyCgroup(path string) error {
	for end := time.Now().Add(endBound); ; time.Sleep(pollPeriod) {
		var dirs []string
		err := filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && name != path {
				dirs = append(dirs, name)
			}
			return nil // gone meanwhile is as good
		})
		if err != nil || len(dirs) == 0 {
			return err
		}
		for i := len(dirs) - 1; i >= 0; i-- {
			_ = os.Remove(dirs[i]) // busy until its processes have ended
		}
		if time.Now().After(end) {
			return fmt.Errorf("cgroups %q do not empty", dirs)
		}
	}
}

// removeCgroup removes a box's cgroup. The kill is for what had not got as far
// as into the box; it comes last because a cgroup that has been killed once
// kills all that is cloned into it later (seen with Linux 6.18).
func removeCgroup(path string) error {
	if err := os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("killing cgroup %q: %w", path, err)
	}
	if err := emptyCgroup(path); err != nil {
		return err
	}
	for end := time.Now().Add(endBound); ; time.Sleep(pollPeriod) {
		err := os.Remove(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("removing a box's cgroup: %w", err)
		}
	}
}
