package daemontest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// insideEnv is set in a test binary that is the init of a pid namespace.
const insideEnv = "BERTH_TEST_INSIDE"

// inNamespace runs the calling test again as the init of a pid namespace of its
// own, where pids can be chosen, and reports whether this is that run. The
// namespace takes every process along when it ends.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideEnv) != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			t.Fatal(err)
		}
		return true
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), insideEnv+"=1", BinEnv+"="+Programs(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("in a pid namespace: %v\n%s", err, out)
	}
	return false
}

// usurp starts a process under a pid that is free, or that the init of the
// namespace has only to reap; it must live.
func usurp(t *testing.T, pid, uid int) process {
	t.Helper()
	for range 1000 {
		reapSession(t, pid)
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil { // pid_namespaces(7)
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "1000")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		end := func() {
			_ = cmd.Process.Kill() // its own child
			_ = cmd.Wait()
		}
		if cmd.Process.Pid != pid { // somebody else has forked
			end()
			continue
		}
		p := hold(t, pid)
		t.Cleanup(func() {
			if !p.alive() {
				t.Errorf("the stranger with the pid %d was ended", pid)
			}
			end()
		})
		return p
	}
	t.Fatalf("no process gets the pid %d", pid)
	return process{}
}

// reapSession reaps, as the init of the namespace, what has ended in the
// kernel's session sid: a pid is not free before the last zombie is gone that has
// it for itself or for its session. They become init's as their parents end.
func reapSession(t *testing.T, sid int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if of, err := unix.Getsid(pid); err == nil && (pid == sid || of == sid) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // not ours, or not yet
		}
	}
}

// endAndReplace kills a session's processes while no daemon runs, and gives
// their pids to strangers.
func endAndReplace(t *testing.T, s rpc.StartReply, uid int) {
	t.Helper()
	for _, pid := range []int{s.PID, s.AgentPID} {
		hold(t, pid).signal(t, unix.SIGKILL)
	}
	usurp(t, s.PID, uid)
	usurp(t, s.AgentPID, uid)
}

// TestReusedPids: a wrapper's and an agent's pid go to strangers while the
// daemon is down, while a stop waits for their end, and between two stops. The
// strangers live, and the sessions settle. case T14, T15, T16, T17, A19
func TestReusedPids(t *testing.T) {
	needFence(t)
	if !inNamespace(t) {
		return
	}
	h := New(t, Options{Config: quickStops + Sessions() + "grace = \"2s\"\n"})
	h.Start()
	down := h.mustStart(t, "down", shell("exec sleep 1000"))
	h.Kill()
	endAndReplace(t, down, 0)
	h.Start()
	h.settled(t, "down")

	stopping := h.mustStart(t, "stopping", shell(`trap '' TERM HUP INT
		setsid sh -c "trap '' TERM HUP INT; echo away; while :; do sleep 1000; done" & while :; do sleep 1000; done`))
	h.untilOutput(t, "stopping", "away")
	if _, err := h.Client.Stop(bounded(t), "stopping", rpc.StopRequest{}); err != nil {
		t.Fatal(err)
	}
	h.until(t, "stopping", "is stopping", func(s rpc.Session) bool { return s.State == "stopping" })
	h.endAllOfSessions(t, h.leafOf("stopping", 1), stopping.PID, stopping.AgentPID)
	h.Until("the daemon has reaped the wrapper", patience, func() error {
		if err := unix.Kill(stopping.PID, 0); !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("pid %d: %v", stopping.PID, err)
		}
		return nil
	})
	usurp(t, stopping.PID, 0)
	if s := h.mustGet(t, "stopping"); s.State != "stopping" {
		t.Logf("the stop was over before the pid was taken: %+v", s)
	}
	h.settled(t, "stopping")
	usurp(t, stopping.AgentPID, 0)
	for range 2 {
		h.mustStop(t, "stopping")
	}
	h.mustDelete(t, "stopping")
}

// endAllOfSessions kills the members of a leaf that are in one of the kernel's
// sessions: others keep a pid as long as they have it for their session's id.
func (h *Host) endAllOfSessions(t *testing.T, leaf string, sids ...int) {
	t.Helper()
	for _, pid := range membersOf(t, leaf) {
		if sid, err := unix.Getsid(pid); err != nil || !slices.Contains(sids, sid) {
			continue
		}
		p := hold(t, pid)
		p.signal(t, unix.SIGKILL)
		h.untilDead(t, p)
	}
}

// settled expects that a session has ended and can be started anew.
func (h *Host) settled(t *testing.T, id string) {
	t.Helper()
	if s := h.untilVacant(t, id); s.Exit == nil || s.Exit.Kind == "code" || s.Exit.Generation != 1 {
		t.Errorf("%s: %+v, exit %+v", id, s, s.Exit)
	}
	if again := h.mustStart(t, id, nil); again.Generation != 2 {
		t.Errorf("%s: generation %d", id, again.Generation)
	}
	h.mustStop(t, id)
}

// TestOrdinaryReusedPids: the same where no leaf tells who is who, with
// strangers of the daemon's own user. case T14, T16, A19
func TestOrdinaryReusedPids(t *testing.T) {
	needRoot(t)
	if !inNamespace(t) {
		return
	}
	uid := ownUID(t)
	h := ordinary(t, uid, quickStops)
	s := h.mustStart(t, "s", shell("exec sleep 1000"))
	h.Kill()
	endAndReplace(t, s, uid)
	h.Start()
	h.settled(t, "s")
	h.mustDelete(t, "s")
}
