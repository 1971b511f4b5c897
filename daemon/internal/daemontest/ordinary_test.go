package daemontest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// ordinary makes a host whose daemon runs as an ordinary user of its own, who
// has no other process.
func ordinary(t *testing.T, uid int, stops string) *Host {
	t.Helper()
	h := New(t, Options{UID: uint32(uid), Config: ordinaryConfig(uid, stops)})
	h.Start()
	return h
}

func ordinaryConfig(uid int, stops string) string {
	return stops + fmt.Sprintf("[sessions]\nreserve_bytes = 0\nreserve_inodes = 0\ngrace = \"300ms\"\ndefault_owner = \"%d\"\n", uid)
}

// TestOrdinaryUser: without root and without cgroups sessions start, survive a
// kill of the daemon, take input, stop and are deleted; the evidence says that
// it is weak. case A1, J6
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	uid := ownUID(t)
	h := ordinary(t, uid, quickStops)
	status := h.status(t)
	if status.Cgroup != "none" || status.Evidence != "weak" {
		t.Skipf("an ordinary user has cgroups here: %s, %s", status.Cgroup, status.CgroupPath)
	}
	started := h.mustStart(t, "s", shell("while read line; do echo got $line; done; exit 9"))
	if uids := statusField(t, started.AgentPID, "Uid:"); uids != fmt.Sprintf("%d %[1]d %[1]d %[1]d", uid) {
		t.Errorf("the agent runs as %s", uids)
	}
	_, e := h.kindsOf(t, "s")
	if e.Verdict != "present" || e.Strength != "weak" {
		t.Errorf("explain says %s, %s", e.Verdict, e.Strength)
	}
	for i := range 3 {
		h.Kill()
		h.Start()
		h.untilAdopted(t, started)
		h.send(t, "s", rpc.SendRequest{Data: fmt.Appendf(nil, "line %d\n", i)})
		h.untilOutput(t, "s", fmt.Sprintf("got line %d\n", i))
	}
	h.send(t, "s", rpc.SendRequest{EOF: true})
	if s := h.untilVacant(t, "s"); s.Exit.Kind != "code" || s.Exit.Code != 9 {
		t.Errorf("exit %+v", s.Exit)
	}
	second := h.mustStart(t, "s", nil)
	if second.Generation != 2 {
		t.Errorf("%+v", second)
	}
	if s := h.mustStop(t, "s"); s.Exit.Kind != "signal" || s.Exit.Signal != 15 || s.Exit.Reason != "operator" {
		t.Errorf("exit %+v", s.Exit)
	}
	if tomb := h.mustDelete(t, "s"); tomb.Evidence == nil || tomb.Evidence.Verdict != "absent" || tomb.Evidence.Strength != "weak" {
		t.Errorf("tombstone %+v", tomb)
	}
	if left := processesOf(t, uid); len(left) != 2 { // the daemon and its provider
		t.Errorf("processes %v are left", left)
	}
	_, err := h.Client.Start(bounded(t), "roots", rpc.StartRequest{Owner: fmt.Sprint(otherUID), Spec: shell("exit 0")})
	refused(t, err, rpc.CodeForbidden)
}

// TestOrdinaryRunaways: also where no leaf holds them, an agent that detaches
// itself, hides its markers, stops itself or runs away is gone after the stop,
// with its daemon alive, with the daemon killed in between, and with the
// wrapper killed, as far as markers tell. case T21, T22, T34, T02
func TestOrdinaryRunaways(t *testing.T) {
	t.Parallel()
	uid := ownUID(t)
	h := ordinary(t, uid, quickStops)
	h.pluginOf(t)
	idle := len(processesOf(t, uid)) // the daemon and its provider
	marked := `trap '' TERM HUP INT; (setsid sh -c "trap '' TERM HUP; while :; do sleep 1000; done" &) ; echo ready; while :; do sleep 1000; done`
	for id, c := range map[string]struct {
		script string
		end    func(s rpc.StartReply)
	}{
		"detached": {runaways["detached"], func(rpc.StartReply) {}},
		"hopper":   {runaways["hopper"], func(rpc.StartReply) {}},
		"restart":  {runaways["detached"], func(rpc.StartReply) { h.Kill(); h.Start() }},
		"midstop": {runaways["detached"], func(s rpc.StartReply) {
			if _, err := h.Client.Stop(bounded(t), s.Session, rpc.StopRequest{}); err != nil {
				t.Fatal(err)
			}
			h.Kill()
			h.Start()
		}},
		"orphan": {marked, func(s rpc.StartReply) { hold(t, s.PID).signal(t, unix.SIGKILL) }},
		"downed": {marked, func(s rpc.StartReply) {
			h.Kill()
			hold(t, s.PID).signal(t, unix.SIGKILL)
			h.Start()
		}},
	} {
		started := h.mustStart(t, id, &rpc.SessionSpec{Command: []string{"prlimit", "--nproc=400", "sh", "-c", c.script}})
		h.untilOutput(t, id, "ready")
		c.end(started)
		h.mustStop(t, id)
		h.Until(id+": everything but the daemon and its provider is gone", patience, func() error {
			if left := processesOf(t, uid); len(left) > idle {
				return fmt.Errorf("processes %v are left, there were %d", left, idle)
			}
			return nil
		})
		h.mustDelete(t, id)
	}
}

// locker starts a process that will lock whatever file it is told of. The
// function tells it, returns when it waits for the lock, and the channel is
// closed once it has it.
func locker(t *testing.T, uid int) (p process, lock func(h *Host, path string) <-chan struct{}) {
	t.Helper()
	// F_OFD_SETLKW is 38, the packed struct flock that of 64-bit machines: fcntl_locking(2), <fcntl.h>.
	const script = `$p = <STDIN>; chomp $p; open(F, "+<", $p) or die; $l = pack("ssx4qqix4", 1, 0, 0, 0, 0); fcntl(F, 38, $l) or die; syswrite(STDOUT, "locked\n"); sleep 1000`
	cmd := exec.Command("perl", "-e", script)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("needs perl: %v", err)
	}
	p = hold(t, cmd.Process.Pid)
	locked := make(chan struct{})
	go func() { // ends with the process
		defer close(locked)
		if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "locked\n" {
			t.Errorf("the locker says %q, %v", line, err)
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // its own child
		<-locked
		_ = cmd.Wait()
	})
	return p, func(h *Host, path string) <-chan struct{} {
		t.Helper()
		if _, err := io.WriteString(stdin, path+"\n"); err != nil {
			t.Fatal(err)
		}
		h.untilWaited(t, path)
		return locked
	}
}

// untilWaited waits until somebody waits for a lock on the file.
func (h *Host) untilWaited(t *testing.T, path string) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	h.Until("the lock is waited for", patience, func() error {
		locks, err := os.ReadFile("/proc/locks") // proc_locks(5): a waiter has "->"
		for line := range strings.Lines(string(locks)) {
			if strings.Contains(line, "->") && strings.Contains(line, fmt.Sprintf(":%d 0 EOF", st.Ino)) {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("nobody waits for %d:\n%s", st.Ino, locks))
	})
}

// TestOrdinaryForgedEvidence: a process of the daemon's own user that is no
// part of the session holds its lock, and processes of other users carry its
// markers: the stop and the deletion are not blocked, and nobody else is
// signalled. case T19, B13
func TestOrdinaryForgedEvidence(t *testing.T) {
	t.Parallel()
	uid := ownUID(t)
	holder, lock := locker(t, uid) // older than the session, by more than a clock tick
	h := New(t, Options{UID: uint32(uid), Config: ordinaryConfig(uid, quickStops)})
	h.Start()
	victim := h.mustStart(t, "victim", shell("exec sleep 1000"))
	locked := lock(h, fmt.Sprintf("%s/sessions/victim/g%d/lock", h.State, victim.Generation))
	other := bystander(t, h.markersOf(victim), nil) // of root
	kinds, e := h.kindsOf(t, "victim")
	if e.Verdict != "present" || kinds[victim.AgentPID] != "member" || kinds[other.pid] == "member" || kinds[holder.pid] == "member" {
		t.Errorf("explain says %s, %v", e.Verdict, kinds)
	}
	h.mustStop(t, "victim")
	<-locked
	if tomb := h.mustDelete(t, "victim"); tomb.Evidence == nil || tomb.Evidence.Verdict != "absent" {
		t.Errorf("tombstone %+v", tomb)
	}
	if !holder.alive() || !other.alive() {
		t.Errorf("the holder lives: %v, root's process lives: %v", holder.alive(), other.alive())
	}
}

// TestOrdinaryDoubt: the holder of the lock is of the daemon's own user, as the
// agent is, and younger than the session: where no leaf tells, it may be the
// agent's child that has hidden its markers. It is not signalled; the session
// is quarantined, explain names the process, and the end of it, or the
// operator, settles the lease. case B13, C10, C2
func TestOrdinaryDoubt(t *testing.T) {
	t.Parallel()
	uid := ownUID(t)
	h := ordinary(t, uid, "[stop]\nattempts = 2\nattempt_deadline = \"1s\"\ndelays = [\"50ms\"]\n")
	for _, id := range []string{"abandoned", "settled"} {
		victim := h.mustStart(t, id, shell("exec sleep 1000"))
		holder, lock := locker(t, uid)
		locked := lock(h, fmt.Sprintf("%s/sessions/%s/g%d/lock", h.State, id, victim.Generation))
		daemon := hold(t, h.PID())
		h.halt(t, daemon) // it must not look before the lock has passed on
		hold(t, victim.PID).signal(t, unix.SIGKILL)
		hold(t, victim.AgentPID).signal(t, unix.SIGKILL)
		<-locked
		daemon.signal(t, unix.SIGCONT)
		if _, err := h.Client.Stop(bounded(t), id, rpc.StopRequest{}); err != nil {
			t.Fatal(err)
		}
		s := h.until(t, id, "is quarantined", func(s rpc.Session) bool { return s.State == "quarantined" })
		_, e := h.kindsOf(t, id)
		if !strings.Contains(strings.Join(e.Notes, "\n"), fmt.Sprint(holder.pid)) || e.Verdict != "unknown" {
			t.Errorf("%s: explain names nobody: %+v", id, e)
		}
		if !holder.alive() || s.Stop == nil || s.Stop.Attempts != 2 {
			t.Errorf("%s: %+v, stop %+v; the holder lives: %v", id, s, s.Stop, holder.alive())
		}
		if id == "abandoned" {
			_, err := h.Client.Resolve(bounded(t), id, rpc.ResolveRequest{Action: "abandon", Verified: true, Why: "it is the test's own"})
			if err != nil {
				t.Fatal(err)
			}
		} else {
			holder.signal(t, unix.SIGKILL)
			h.untilDead(t, holder)
			if _, err := h.Client.Stop(bounded(t), id, rpc.StopRequest{}); err != nil { // makes berth look again
				t.Fatal(err)
			}
		}
		h.untilVacant(t, id)
	}
}

// TestOrdinaryStrangers: a recorded pid that belongs to a stranger, where no
// leaf tells who is who: the stranger lives. case T14, T15
func TestOrdinaryStrangers(t *testing.T) {
	t.Parallel()
	uid := ownUID(t)
	h := ordinary(t, uid, quickStops)
	stranger := bystander(t, nil, nil)
	ids := []string{"recycled", "init", "gone"}
	for _, id := range ids {
		h.mustStart(t, id, shell("exit 0"))
		h.untilVacant(t, id)
	}
	h.Kill()
	for _, id := range ids {
		h.doctor(t, id, func(l *leaseRecord) {
			l.State, l.Instance, l.Generation = "active", l.Exit.Instance, l.Exit.Generation
			l.Exit, l.Debts = nil, nil
			switch id {
			case "recycled":
				l.Wrapper.PID = stranger.pid
			case "init":
				l.Wrapper.PID = 1
			}
		})
	}
	h.chownJournal(t, uid)
	h.Start()
	for _, id := range ids {
		if s := h.untilVacant(t, id); s.NextGeneration != 2 {
			t.Errorf("%s: %+v", id, s)
		}
		h.mustDelete(t, id)
	}
	if !stranger.alive() {
		t.Error("the stranger was ended")
	}
}

// chownJournal gives back to the daemon's user what the doctor, who is root,
// has made.
func (h *Host) chownJournal(t *testing.T, uid int) {
	t.Helper()
	entries, err := os.ReadDir(h.State + "/journal")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Chown(h.State+"/journal/"+e.Name(), uid, uid); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOrdinaryStartInterrupted: the daemon is killed before there was a wrapper.
// Without a leaf only the scan tells that nothing lives; the next daemon asks it,
// instead of waiting for the startup deadline. case A20, T09, C7
func TestOrdinaryStartInterrupted(t *testing.T) {
	t.Parallel()
	h := ordinary(t, ownUID(t), quickStops)
	plugin := h.pluginOf(t)
	h.halt(t, plugin)
	done := h.beginStart(t, "s")
	h.Kill()
	<-done
	h.Start()
	s := h.untilVacant(t, "s")
	if s.NextGeneration != 2 || s.Exit == nil || s.Exit.Kind != "unknown" {
		t.Errorf("%+v, exit %+v", s, s.Exit)
	}
	if again := h.mustStart(t, "s", nil); again.Generation != 2 {
		t.Errorf("%+v", again)
	}
}

// TestOrdinarySocket: the daemon of one user is out of reach of the others.
// case T76
func TestOrdinarySocket(t *testing.T) {
	t.Parallel()
	uid := ownUID(t)
	h := ordinary(t, uid, quickStops)
	as(t, strangerUID, strangerUID, nil, func() {
		if c, err := h.dial("berth.sock"); err == nil {
			c.Close()
			t.Error("another user could connect")
		} else if !strings.Contains(err.Error(), "permission denied") {
			t.Error(err)
		}
	})
	if status, _, reply := h.by(t, uid, "GET", "/v1/sessions", ""); status != 200 {
		t.Errorf("the daemon's user: %d %s", status, reply)
	}
}
