package discover

import "time"

// Bounds of everything that this package does with other processes.
const (
	// maxEnviron is how much of one environment is searched. execve(2) allows 6 MiB at the very most and
	// 2 MiB under the usual stack limit, but PR_SET_MM lets a process point at its whole address space.
	maxEnviron = 2 << 20
	// firstEnviron is the size the buffer starts with; environments of agents take 1 to 8 KiB.
	firstEnviron = 32 << 10
	// maxCmdline is how much of an argument vector is searched for operators' flags.
	maxCmdline = 256 << 10
	// emptyTries is how often an environment that reads as empty is asked again. A process that does
	// nothing but exec reads as empty 7 times in 100.
	emptyTries = 16
	// emptyPause lies between two tries after the first few, so that an exec which waits for the disk is
	// not asked sixteen times within its first millisecond.
	emptyPause = 200 * time.Microsecond
	// emptyRounds is how often, at the end of a scan, those are asked again that were empty in all tries,
	// and emptyRoundPause lies before each round. Tearing down a large address space takes this long.
	emptyRounds     = 3
	emptyRoundPause = 10 * time.Millisecond
	// maxThreads is how many threads of a process whose first thread has exited are asked.
	maxThreads = 64
	// maxLanes is on how many processors a scan runs. Two halve the time that others have to outrun it; the
	// kernel's part does not get faster with many.
	maxLanes = 2
	// stallAfter is how long one process may hold up the scan before it is left behind.
	stallAfter = 2 * time.Second
	// maxStalled is how many readers may be left behind in the kernel at a time, a thread each.
	maxStalled = 8
	// cancelGrace is how long a cancelled scan waits for its reader to notice.
	cancelGrace = 50 * time.Millisecond
	// selfTestBound limits the start of the self-test's child.
	selfTestBound = 10 * time.Second
)
