package daemontest

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// intruder is a process in a leaf that no lease tells of, as an earlier daemon
// that has lost its memory would leave it. The leaf is the host's, so the
// process is berth's to end.
func (h *Host) intruder(t *testing.T, session string, generation uint64) process {
	t.Helper()
	leaf := h.leafOf(session, generation)
	if err := os.MkdirAll(leaf+"/work", 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `echo $$ > "$0/cgroup.procs" && exec sleep 1000`, leaf+"/work")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := hold(t, cmd.Process.Pid)
	go cmd.Wait() // reaps it, whoever ends it
	t.Cleanup(func() { _ = unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0) })
	h.Until("the intruder is in its leaf", patience, func() error {
		if !slices.Contains(membersOf(t, leaf), p.pid) {
			return fmt.Errorf("it has %v", membersOf(t, leaf))
		}
		return nil
	})
	return p
}

// TestStrayLeaves: a restart finds leaves that no lease tells of. One of a
// session that it knows is ended with all of that session; one of a session
// that nobody knows fences that id until it is empty, and no generation that it
// shows is used again. case A12, A14, A5, T31, T07
func TestStrayLeaves(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := running(t, "")
	known := h.mustStart(t, "known", shell("exec sleep 1000"))
	other := h.mustStart(t, "other", shell("exec sleep 1000"))
	h.Kill()
	twin := h.intruder(t, "known", 7)
	ghost := h.intruder(t, "ghost", 3)
	h.Start()
	s := h.untilVacant(t, "known")
	if twin.alive() || s.NextGeneration < 8 || s.Exit == nil || s.Exit.Generation != known.Generation || s.Exit.Reason != "unexpected_wrapper" {
		t.Errorf("the twin lives: %v; %+v, exit %+v", twin.alive(), s, s.Exit)
	}
	if again := h.mustStart(t, "known", nil); again.Generation < 8 {
		t.Errorf("%+v", again)
	}
	h.untilAdopted(t, other)

	g := h.until(t, "ghost", "is quarantined", func(s rpc.Session) bool { return s.State == "quarantined" })
	if g.Problem == "" || g.NextGeneration < 4 || !ghost.alive() {
		t.Errorf("the ghost lives: %v; %+v", ghost.alive(), g)
	}
	_, err := h.Client.Start(bounded(t), "ghost", rpc.StartRequest{Spec: shell("exec sleep 1000")})
	refused(t, err, rpc.CodeCleanupPending)
	ghost.signal(t, unix.SIGKILL)
	h.untilDead(t, ghost)
	h.Until("the ghost's id is free", patience, func() error {
		_, err := h.Client.Stop(bounded(t), "ghost", rpc.StopRequest{}) // makes berth look
		if err != nil {
			return err
		}
		if s := h.mustGet(t, "ghost"); s.State != "vacant" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	h.mustDelete(t, "ghost")
}

// TestPlanted: an empty directory, an empty leaf and a workspace under the name
// of a session that is new do not wedge its id: it starts, or it is said what
// is in the way. case T10
func TestPlanted(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := running(t, "")
	for id, plant := range map[string]func(id string) string{
		"directory": func(id string) string { return h.State + "/sessions/" + id },
		"instance":  func(id string) string { return h.State + "/sessions/" + id + "/g1" },
		"leaf":      func(id string) string { return h.leafOf(id, 1) },
		"workspace": func(id string) string { return h.State + "/workspaces/" + id },
	} {
		path := plant(id)
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		var told bool
		h.Until(id+" starts", patience, func() error {
			_, err := h.Client.Start(bounded(t), id, rpc.StartRequest{Spec: shell("exec sleep 1000")})
			if err == nil {
				return nil
			}
			e := refused(t, err, rpc.CodeStartFailed, rpc.CodeCleanupPending, rpc.CodeWorkspaceInUse)
			if e.Code != rpc.CodeCleanupPending && !strings.Contains(e.Message, id) {
				t.Errorf("%s: the refusal names nothing: %v", id, e)
			}
			if !told {
				told = true
				t.Logf("%s: %v", id, e)
			}
			if id == "workspace" { // never taken for its own: it may be somebody's work
				return os.Remove(path)
			}
			return err
		})
		h.mustStop(t, id)
		h.mustDelete(t, id)
	}
}
