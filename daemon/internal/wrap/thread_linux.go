package wrap

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// withNoNewPrivs calls f on a thread that has no_new_privs, which a child
// inherits. It cannot be taken back, and need not be: the wrapper itself
// executes nothing that could gain any.
func withNoNewPrivs(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		panic("internal error: no_new_privs: " + err.Error()) // exists since 3.5 and cannot fail
	}
	f()
}

// oomScoreFile is this process's badness adjustment, see proc_pid_oom_score_adj(5).
const oomScoreFile = "/proc/self/oom_score_adj"

// agentOOMScore makes the agent an ordinary candidate of the OOM killer when
// the wrapper is a protected one: a child inherits the value, so it is raised
// for the fork and the wrapper's own is put back by the returned function.
func agentOOMScore(log *diary) (restore func()) {
	data, err := os.ReadFile(oomScoreFile)
	if err != nil {
		return func() {}
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || own >= 0 {
		return func() {}
	}
	setOOMScore(0, log)
	return func() { setOOMScore(own, log) }
}

func setOOMScore(score int, log *diary) {
	if err := os.WriteFile(oomScoreFile, []byte(strconv.Itoa(score)), 0); err != nil {
		log.logf("setting the OOM score: %v", err)
	}
}
