package daemontest

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// markersOf is what a wrapper of the session and its agent carry.
func (h *Host) markersOf(s rpc.StartReply) []string {
	return []string{
		"BERTH_HOST=" + h.ID(), "BERTH_SESSION=" + s.Session,
		"BERTH_INSTANCE=" + s.Instance, fmt.Sprintf("BERTH_GENERATION=%d", s.Generation),
	}
}

// lockWaiter makes a process of that uid the holder of a session's generation
// lock as soon as the wrapper lets go of it. The channel is closed then.
func (h *Host) lockWaiter(t *testing.T, s rpc.StartReply, uid uint32) (holder process, got <-chan struct{}) {
	t.Helper()
	f, err := os.OpenFile(fmt.Sprintf("%s/sessions/%s/g%d/lock", h.State, s.Session, s.Generation), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.ExtraFiles = []*os.File{f} // the same open file description, so the lock is the child's too
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	holder = hold(t, cmd.Process.Pid)
	granted := make(chan struct{})
	go func() { // ends when the wrapper does
		defer close(granted)
		defer f.Close()
		lock := unix.Flock_t{Type: unix.F_WRLCK}
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &lock); err != nil {
			t.Errorf("locking %s: %v", f.Name(), err)
		}
	}()
	t.Cleanup(func() {
		if !holder.alive() {
			t.Errorf("the lock's holder %d was ended", holder.pid)
		}
		_ = cmd.Process.Kill() // its own child
		_ = cmd.Wait()
		<-granted
	})
	return holder, granted
}

// kindsOf is what explain says each process is to the session.
func (h *Host) kindsOf(t *testing.T, id string) (map[int]string, rpc.ExplainReply) {
	t.Helper()
	e, err := h.Client.Explain(bounded(t), id)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[int]string{}
	for _, p := range e.Processes {
		kinds[p.PID] = p.Kind
	}
	return kinds, e
}

// TestForgedEvidence: other processes claim to be the victim: one of another
// user outside, one of the same user outside, one inside another session's
// leaf; another holds its lock. They are reported for what they are; the
// victim's stop and deletion finish, and nobody else is signalled.
// case T19, T22, G15, B13
func TestForgedEvidence(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := running(t, "")
	victim := h.mustStart(t, "victim", shell("exec sleep 1000"))
	markers := h.markersOf(victim)
	outside := bystander(t, markers, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(strangerUID), Gid: uint32(strangerUID)}})
	root := bystander(t, markers[:2], nil) // of the daemon's own user, without an instance
	escaped := sameUser(t, markers)
	other, inside := h.forger(t, markers)
	_, granted := h.lockWaiter(t, victim, 0)
	kinds, e := h.kindsOf(t, "victim")
	if e.Verdict != "present" || kinds[outside.pid] != "forged" || kinds[inside.pid] != "forged" ||
		kinds[escaped.pid] != "escaped" || kinds[root.pid] != "legacy" || kinds[victim.AgentPID] != "member" {
		t.Errorf("explain says %s, %v", e.Verdict, kinds)
	}
	scan, err := h.Client.Scan(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range scan.Processes {
		if p.PID == victim.PID && p.Kind != "wrapper" || p.PID == victim.AgentPID && p.Kind != "member" {
			t.Errorf("scan says %+v", p)
		}
	}

	stopped := h.mustStop(t, "victim")
	<-granted
	if stopped.Exit == nil || stopped.Exit.Kind != "signal" || stopped.Exit.Signal != int(unix.SIGTERM) {
		t.Errorf("exit %+v", stopped.Exit)
	}
	if _, e := h.kindsOf(t, "victim"); e.Verdict == "present" {
		t.Errorf("a stopped session is present: %+v", e)
	}
	tomb := h.mustDelete(t, "victim")
	if tomb.Evidence == nil || tomb.Evidence.Verdict != "absent" {
		t.Errorf("tombstone %+v", tomb)
	}
	if !inside.alive() {
		t.Error("a process of the other session was ended")
	}
	h.untilAdopted(t, other)
	if _, err := os.Stat(h.State + "/sessions/victim"); !os.IsNotExist(err) {
		t.Errorf("the victim's directory: %v", err)
	}
}

// sameUser starts a process of the sessions' own user outside of all leaves; by
// its markers it may be the session's, so it may be ended with it.
func sameUser(t *testing.T, markers []string) process {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.Env = markers
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: Nobody, Gid: Nobody}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // its own child
		_ = cmd.Wait()
	})
	return hold(t, cmd.Process.Pid)
}

// forger starts a session one of whose processes carries another's markers.
func (h *Host) forger(t *testing.T, markers []string) (rpc.StartReply, process) {
	t.Helper()
	s := h.mustStart(t, "other", shell("env "+strings.Join(markers, " ")+" sleep 1000 & echo pid $!; wait"))
	var pid int
	h.Until("the other session forges", patience, func() error {
		_, err := fmt.Sscanf(h.output(t, "other", 0), "pid %d", &pid)
		return err
	})
	h.Until("the forger carries the markers", patience, func() error {
		if env := environ(t, pid); !slices.Contains(env, markers[1]) {
			return fmt.Errorf("it has %v", env)
		}
		return nil
	})
	return s, hold(t, pid)
}

// TestForgedHello: a process that knows everything but the token is no wrapper,
// and other users do not reach the wrappers' socket at all.
func TestForgedHello(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := running(t, "")
	victim := h.mustStart(t, "victim", shell("exec sleep 1000"))
	for _, token := range []string{"", strings.Repeat("0", 32)} {
		c, err := h.dial("wrap.sock")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, `{"kind":"hello","hello":{"version":1,"host":%q,"session":"victim","instance":%q,"generation":%d,"token":%q,"pid":%d,"status":{"phase":"running"}}}`+"\n",
			h.ID(), victim.Instance, victim.Generation, token, victim.PID)
		line, err := c.r.ReadString('\n')
		if err != nil || !strings.Contains(line, `"reject"`) {
			t.Errorf("token %q: answered %q, %v", token, line, err)
		}
		c.Close()
	}
	h.untilAdopted(t, victim)
	as(t, Nobody, Nobody, nil, func() {
		if c, err := h.dial("wrap.sock"); err == nil {
			t.Error("another user could connect to the wrappers' socket")
			c.Close()
		}
	})
}

// TestLegacyWrapper: a process of older software carries the session's name and
// no instance. It is listed, never adopted, and a stop of the session ends it.
func TestLegacyWrapper(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := running(t, "")
	h.mustStart(t, "old", shell("exec sleep 1000"))
	h.mustStop(t, "old")
	cmd := exec.Command("sleep", "1000")
	cmd.Env = []string{"BERTH_SESSION=old"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: Nobody, Gid: Nobody}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	legacy := hold(t, cmd.Process.Pid)
	defer func() {
		_ = cmd.Process.Kill() // its own child
		_ = cmd.Wait()
	}()
	h.Stop()
	h.Start() // it looks for such processes at its start
	h.Until("it is listed", patience, func() error {
		scan, err := h.Client.Scan(bounded(t))
		if err != nil {
			return err
		}
		for _, p := range scan.Processes {
			if p.PID == legacy.pid && p.Kind == "legacy" {
				return nil
			}
		}
		return fmt.Errorf("not among %+v", scan.Processes)
	})
	h.Until("a stop ends it", patience, func() error {
		h.mustStop(t, "old")
		if legacy.alive() {
			return fmt.Errorf("process %d lives", legacy.pid)
		}
		return nil
	})
}
