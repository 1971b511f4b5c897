package discover

import "slices"

// kthreadd is the parent of all kernel threads, where there are some to be seen: not in a pid namespace of
// its own.
const (
	kthreadStat     = "2/stat\x00"
	kthreadChildren = "2/task/2/children\x00"
)

// listKthreads makes the list of kernel threads, with one read instead of one for each of them: a machine
// has some ten for each processor. Without the list, or for one that is too young to be on it, stat tells.
//
// The list is as old as the scan. Its pids cannot have passed to programs meanwhile: pids go round, and
// the kernel does not make 32,768 processes in the time of a scan.
func (r *reader) listKthreads() {
	r.kthreads = r.kthreads[:0]
	n, _, errno := slurp(r.root, []byte(kthreadStat), &r.small, len(r.small), false)
	if st, ok := parseStat(r.small[:n]); errno != 0 || !ok || st.flags&flagKthread == 0 {
		return
	}
	n, more, errno := slurp(r.root, []byte(kthreadChildren), &r.environ, maxEnviron, true)
	if errno != 0 || more {
		return
	}
	r.kthreads = appendPIDs(append(r.kthreads, 2), r.environ[:n])
	slices.Sort(r.kthreads)
}

// appendPIDs parses the content of a children file, proc_tid_children(5): numbers, a blank behind each.
func appendPIDs(pids []int, b []byte) []int {
	pid, some := 0, false
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9':
			pid, some = pid*10+int(c-'0'), true
		case some:
			pids, pid, some = append(pids, pid), 0, false
		}
	}
	return pids
}
