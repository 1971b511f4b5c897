package daemontest

import (
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// startHeld starts the daemon up to the moment before its exec, so that its pid
// is known while the journal is not open. The function lets it go on.
func (h *Host) startHeld(t *testing.T) (pid int, release func()) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `read go && exec "$0" "$@"`, h.bin+"/berthd", "--config", h.config)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(h.Dir+"/berthd.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log.Close()
	return cmd.Process.Pid, func() {
		t.Helper()
		if _, err := io.WriteString(stdin, "go\n"); err != nil {
			t.Fatal(err)
		}
		h.cmd, h.exited = cmd, make(chan error, 1)
		go func() { h.exited <- cmd.Wait() }() // ends with the daemon
		h.Until("the daemon answers", patience, func() error {
			_, err := h.Client.Status(bounded(t))
			return err
		})
	}
}

// identityOf is the whole identity of a process, as a lease would record it.
func identityOf(t *testing.T, pid int) sys.Identity {
	t.Helper()
	id, err := sys.IdentityOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func impersonate(l *leaseRecord, id sys.Identity) {
	l.Wrapper.PID, l.Wrapper.StartTicks = id.PID, id.StartTicks
	l.Wrapper.PidfdInode, l.Wrapper.BootID = id.PidfdInode, id.BootID
}

// forgedRecord is a lease record that names a process which is no wrapper.
type forgedRecord struct {
	alive  bool                 // the real wrapper lives on
	record func(l *leaseRecord) // nil: the daemon itself, from top to toe
}

func forgedRecords(t *testing.T, stranger process, other rpc.StartReply) map[string]forgedRecord {
	whole := identityOf(t, stranger.pid)
	return map[string]forgedRecord{
		"dead-recycled":  {false, func(l *leaseRecord) { l.Wrapper.PID = stranger.pid }},
		"alive-recycled": {true, func(l *leaseRecord) { l.Wrapper.PID = stranger.pid }},
		"dead-whole":     {false, func(l *leaseRecord) { impersonate(l, whole) }},
		"alive-whole":    {true, func(l *leaseRecord) { impersonate(l, whole) }},
		"dead-other":     {false, func(l *leaseRecord) { impersonate(l, identityOf(t, other.PID)) }},
		"alive-other":    {true, func(l *leaseRecord) { impersonate(l, identityOf(t, other.PID)) }},
		"dead-init":      {false, func(l *leaseRecord) { impersonate(l, identityOf(t, 1)) }},
		"dead-init-pid":  {false, func(l *leaseRecord) { l.Wrapper.PID = 1 }},
		"dead-parent":    {false, func(l *leaseRecord) { impersonate(l, identityOf(t, os.Getpid())) }},
		"dead-self":      {false, nil},
		"alive-self":     {true, nil},
		"dead-negative":  {false, func(l *leaseRecord) { l.Wrapper.PID = -1 }},
	}
}

// TestStrangers: whatever the record says of the wrapper's process, if a
// stranger has its pid, or the record names it from top to toe, or it names
// another session's wrapper, init, the daemon itself or its parent, then nothing
// but the session's own leaf is ever signalled, and the lease settles.
// case T14, T15, T16, A19, B6
func TestStrangers(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := running(t, "[wrapper]\nreconnect_window = \"3s\"\n")
	stranger := bystander(t, nil, nil) // any signal would end it
	other := h.mustStart(t, "other", shell("exec sleep 1000"))
	forged := forgedRecords(t, stranger, other)
	started := map[string]rpc.StartReply{}
	for id := range forged {
		started[id] = h.mustStart(t, id, shell("exec sleep 1000"))
	}
	h.Kill()
	self, release := h.startHeld(t)
	for id, f := range forged {
		wrapper := hold(t, started[id].PID)
		if !f.alive {
			wrapper.signal(t, unix.SIGKILL)
			hold(t, started[id].AgentPID).signal(t, unix.SIGKILL)
		}
		if f.record == nil {
			f.record = func(l *leaseRecord) { impersonate(l, identityOf(t, self)) }
		}
		h.doctor(t, id, f.record)
	}
	release()
	if h.PID() != self {
		t.Fatalf("the daemon is process %d, was to be %d", h.PID(), self)
	}
	for id := range forged {
		s := h.untilVacant(t, id)
		if s.Exit == nil || s.Exit.Kind == "code" || s.NextGeneration != 2 {
			t.Errorf("%s settled as %+v, exit %+v", id, s, s.Exit)
		}
		if again := h.mustStart(t, id, nil); again.Generation != 2 {
			t.Errorf("%s: the next generation is %d", id, again.Generation)
		}
	}
	h.untilAdopted(t, other)
	if !stranger.alive() || !h.Running() {
		t.Errorf("stranger alive: %v, daemon running: %v\n%s", stranger.alive(), h.Running(), h.Log())
	}
}
