package daemontest

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// pipesOf are the pipes that a process has open, by their inode.
func pipesOf(t *testing.T, pid int) []string {
	t.Helper()
	var pipes []string
	for _, to := range fdTargets(t, pid) {
		if strings.HasPrefix(to, "pipe:") {
			pipes = append(pipes, to)
		}
	}
	return pipes
}

// TestSurvivorsHoldNoPipe: no process that outlives the daemon has a pipe that
// the daemon reads, so that none dies of its next line; and a stop by the next
// daemon empties the leaf of a wrapper that talks all the while. The reader of
// the first daemon's log is gone too, which ends nothing. case T01, A18
func TestSurvivorsHoldNoPipe(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := New(t, Options{Config: quickTables()})
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	h.startLogging(write)
	write.Close()
	h.untilAnswers()
	s := h.mustStart(t, "s", shell("trap '' PIPE; while :; do echo talks || exit 9; sleep 0.02; done"))
	daemons := pipesOf(t, h.PID())
	for _, pid := range []int{s.PID, s.AgentPID} {
		for _, pipe := range pipesOf(t, pid) {
			if slices.Contains(daemons, pipe) {
				t.Errorf("process %d and the daemon share %s", pid, pipe)
			}
		}
	}
	plugin := h.pluginOf(t)
	read.Close() // from now on each line of the daemon's log fails
	plugin.signal(t, unix.SIGKILL)
	h.Until("the next provider is ready", patience, func() error { // both is logged
		r, err := h.Client.Providers(bounded(t))
		if err == nil && (r.Providers[0].State != "ready" || r.Providers[0].PID == plugin.pid) {
			err = fmt.Errorf("%+v", r.Providers[0])
		}
		return err
	})
	h.mustStart(t, "t", shell("exec sleep 1000"))
	h.mustStop(t, "t")
	before := len(h.output(t, "s", 0))
	h.Kill()
	h.Start()
	h.untilAdopted(t, s)
	h.Until("the agent still talks", patience, func() error {
		if now := len(h.output(t, "s", 0)); now <= before {
			return fmt.Errorf("%d bytes, %d before", now, before)
		}
		return nil
	})
	leaf := h.leafOf("s", 1)
	h.mustStop(t, "s")
	if _, err := os.Stat(leaf); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its leaf: %v", err)
	}
	h.mustDelete(t, "t")
}

// TestCleanupDelaysNobody: while one session's end takes its time, others
// start, work and end. case A4
func TestCleanupDelaysNobody(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := New(t, Options{Config: "[stop]\nattempt_deadline = \"1h\"\n" + Sessions() + "grace = \"30m\"\n"})
	h.Start()
	h.mustStart(t, "slow", shell("trap '' TERM; echo ready; while :; do sleep 1000; done"))
	h.untilOutput(t, "slow", "ready")
	if _, err := h.Client.Stop(bounded(t), "slow", rpc.StopRequest{}); err != nil {
		t.Fatal(err)
	}
	h.until(t, "slow", "is stopping", func(s rpc.Session) bool { return s.State == "stopping" })
	for i := range 5 {
		id := fmt.Sprintf("s%d", i)
		h.mustStart(t, id, shell("exit 3"))
		if s := h.untilVacant(t, id); s.Exit.Code != 3 {
			t.Errorf("%s: exit %+v", id, s.Exit)
		}
		h.mustDelete(t, id)
	}
	if s := h.mustGet(t, "slow"); s.State != "stopping" || s.Stop == nil || s.Stop.Attempts != 1 {
		t.Errorf("the slow stop is over: %+v, %+v", s, s.Stop)
	}
	if err := os.WriteFile(h.leafOf("slow", 1)+"/work/cgroup.kill", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	h.untilVacant(t, "slow")
}
