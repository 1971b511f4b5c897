package metrics

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process adds what the daemon itself uses. What cannot be read is left out:
// unknown is not zero.
func (s *Sources) process(p *page) {
	p.gauge("berth_kept_descriptors", "Descriptors of wrappers that the service manager keeps, as far as it was told.")
	p.add(float64(s.Kept()))
	if n, err := s.Leaves(); err == nil {
		p.gauge("berth_cgroups", "Leaves in the daemon's cgroup tree.")
		p.add(float64(n))
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		p.gauge("berth_mounts", "Mounts that the daemon sees.")
		p.add(float64(bytes.Count(mounts, []byte{'\n'})))
	}
	if n, ok := zombies(); ok {
		p.gauge("berth_zombies", "Children of the daemon that have ended and were not waited for.")
		p.add(float64(n))
	}
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		p.gauge("process_open_fds", "Open descriptors of the daemon.")
		p.add(float64(len(fds) - 1)) // without the one that lists them
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		p.gauge("process_max_fds", "Descriptors that the daemon may have open.")
		p.add(float64(limit.Cur))
	}
	if pages, ok := residentPages(); ok {
		p.gauge("process_resident_memory_bytes", "Memory of the daemon that is in RAM.")
		p.add(float64(pages) * float64(os.Getpagesize()))
	}
	p.gauge("process_start_time_seconds", "When the daemon started, in seconds since 1970.")
	p.add(float64(s.Started.UnixMilli()) / 1000)
	p.gauge("go_goroutines", "Goroutines of the daemon.")
	p.add(float64(runtime.NumGoroutine()))
}

// residentPages is the second number of proc_pid_statm(5).
func residentPages() (uint64, bool) {
	data, err := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(data))
	if err != nil || len(fields) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseUint(fields[1], 10, 64)
	return pages, err == nil
}

// zombies counts the daemon's children in state Z, proc_pid_stat(5). Children
// are listed by the thread that made them.
func zombies() (n int, ok bool) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0, false
	}
	for _, t := range threads {
		children, err := os.ReadFile("/proc/self/task/" + t.Name() + "/children")
		if err != nil {
			continue // the thread has ended, or the kernel has no such lists
		}
		ok = true
		for _, pid := range strings.Fields(string(children)) {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			if i := bytes.LastIndexByte(stat, ')'); err == nil && i > 0 && bytes.HasPrefix(stat[i:], []byte(") Z")) {
				n++
			}
		}
	}
	return n, ok
}
