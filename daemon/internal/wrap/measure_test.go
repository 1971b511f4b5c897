package wrap

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pssKiB reads a process's proportional set size.
func pssKiB(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		t.Skipf("needs smaps_rollup: %v", err)
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "Pss:"); ok {
			n, _ := strconv.Atoi(strings.Fields(v)[0])
			return n
		}
	}
	t.Skip("needs Pss in smaps_rollup")
	return 0
}

// The cost of one idle wrapper among others, and the time from the go to the
// hello, of the binary as it is shipped.
func TestFootprint(t *testing.T) {
	binary := realBinary(t)
	const n = 10
	var sessions []*session
	var conns []*fakeConn
	var hello []time.Duration
	for range n {
		s := newSession(t, "cat")
		s.binary = binary
		s.env = []string{"GOMAXPROCS=1"} // as the daemon starts it
		s.launch.HeartbeatEvery = time.Millisecond
		s.withDaemon().park()
		eventually(t, "it is parked", func() bool { return procState(s.cmd.Process.Pid) == 'S' })
		time.Sleep(20 * time.Millisecond) // settled: the figure is from the go on
		begin := time.Now()
		s.goOn()
		conns = append(conns, s.daemon.next())
		hello = append(hello, time.Since(begin))
		sessions = append(sessions, s)
	}
	// Some hours of heartbeats.
	for _, c := range conns {
		eventually(t, "3000 heartbeats", func() bool { return c.beats.Load() >= 3000 })
	}
	var pss []int
	threads := 0
	for _, s := range sessions {
		pss = append(pss, pssKiB(t, s.cmd.Process.Pid))
		tasks, _ := os.ReadDir("/proc/" + strconv.Itoa(s.cmd.Process.Pid) + "/task")
		threads = max(threads, len(tasks))
	}
	slices.Sort(pss)
	slices.Sort(hello)
	t.Logf("pss of %d: median %d KiB, most %d KiB; threads ≤ %d; go to hello: least %v, median %v", n, pss[n/2], pss[n-1], threads, hello[0], hello[n/2])
	if pss[n/2] > 1228 {
		t.Errorf("an idle wrapper costs %d KiB, at most 1228 are promised", pss[n/2])
	}
}

func procState(pid int) byte {
	st, err := statOf(pid)
	if err != nil {
		return 0
	}
	return st.State
}
