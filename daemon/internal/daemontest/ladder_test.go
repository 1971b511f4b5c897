package daemontest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// runaways are agents that do all they can to outlive their stop.
var runaways = map[string]string{
	// A daemon of its own session whose parents are gone, one without any
	// marker in its environment, and one that is stopped.
	"detached": `trap '' TERM HUP INT
		(setsid sh -c "trap '' TERM HUP INT; while :; do sleep 1000; done" &)
		env -i PATH="$PATH" setsid sh -c "trap '' TERM; while :; do sleep 1000; done" &
		sh -c 'kill -STOP $$' &
		echo ready; while :; do sleep 1000; done`,
	// A chain in which each process forks the next and exits.
	"hopper": `trap '' TERM HUP INT; hop() { hop & exit; }; (hop) & echo ready; while :; do sleep 1000; done`,
	// As many processes as may be, each of which forks again. A shell would give
	// up where it cannot.
	"storm": `trap '' TERM HUP INT; echo ready; exec perl -e '$SIG{CHLD} = "IGNORE"; $first = $$; while (1) {
		$p = fork; exit if $$ != $first && rand() < 0.3; select(undef, undef, undef, 0.001) unless defined $p }'`,
}

// TestRunaways: whatever the agent does, after the stop nothing of it is left,
// and its leaf is gone. case T21, T22, T34, G14, C6, I1
func TestRunaways(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := running(t, "")
	for id, script := range runaways {
		uid := ownUID(t)
		bound := "--nproc=50"
		if id == "hopper" { // one process, but who is not yet reaped counts
			bound = "--nproc=400"
		}
		started := h.mustStartAs(t, id, rpc.StartRequest{Owner: strconv.Itoa(uid), Spec: &rpc.SessionSpec{
			Command: []string{"prlimit", bound, "sh", "-c", script},
		}})
		h.untilOutput(t, id, "ready")
		h.Until(id+" has run away", patience, func() error {
			if n := len(membersOf(t, h.leafOf(id, 1))); n < 4 { // wrapper, agent, sleep and at least one more
				return fmt.Errorf("there are %d processes", n)
			}
			return nil
		})
		s := h.mustStop(t, id)
		if left := processesOf(t, uid); len(left) > 0 {
			t.Errorf("%s: processes %v are left", id, left)
		}
		if _, err := os.Stat(h.leafOf(id, 1)); !os.IsNotExist(err) {
			t.Errorf("%s: its leaf: %v", id, err)
		}
		if s.Exit.Kind != "signal" || s.Exit.Signal != int(unix.SIGKILL) || s.Exit.Reason != "operator" || s.Exit.Generation != started.Generation {
			t.Errorf("%s: exit %+v", id, s.Exit)
		}
		if tomb := h.mustDelete(t, id); tomb.Evidence == nil || tomb.Evidence.Verdict != "absent" || tomb.Evidence.Strength != "strong" {
			t.Errorf("%s: tombstone %+v", id, tomb)
		}
	}
}

// TestWrapperKilled: the wrapper is killed and its agent ignores that. Clients
// ask for the session all the while; there are never two. case T02, T10, A12
func TestWrapperKilled(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := running(t, "")
	sampler := h.sample(t)
	first := h.mustStart(t, "s", shell(stubborn))
	agent := hold(t, first.AgentPID)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { // ended by stop
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = h.Client.Start(t.Context(), "s", rpc.StartRequest{}) // refused or answered, as it comes
				}
			}
		})
	}
	wg.Go(func() { // ended by stop
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond): // the sampling period
				a, b := len(membersOf(t, h.leafOf("s", 1))), len(membersOf(t, h.leafOf("s", 2)))
				if a > 0 && b > 0 {
					t.Errorf("generation 1 has %d processes and generation 2 has %d", a, b)
				}
			}
		}
	})
	hold(t, first.PID).signal(t, unix.SIGKILL)
	s := h.until(t, "s", "runs again", func(s rpc.Session) bool { return s.State == "active" && s.Generation == 2 })
	close(stop)
	wg.Wait()
	sampler()
	if agent.alive() {
		t.Errorf("the first agent lives beside %+v", s)
	}
	if s.Exit == nil || s.Exit.Generation != 1 || s.Exit.Kind != "unknown" {
		t.Errorf("exit of the first: %+v", s.Exit)
	}
}

// TestLeafKilled: somebody kills a leaf behind the daemon's back, or the
// wrapper, or the agent; each is settled without a request. case T31, T28, G8
func TestLeafKilled(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := running(t, "")
	for id, kill := range map[string]func(rpc.StartReply){
		"leaf": func(s rpc.StartReply) {
			if err := os.WriteFile(h.leafOf(s.Session, s.Generation)+"/cgroup.kill", []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
		},
		"work": func(s rpc.StartReply) {
			if err := os.WriteFile(h.leafOf(s.Session, s.Generation)+"/work/cgroup.kill", []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
		},
		"wrapper": func(s rpc.StartReply) { hold(t, s.PID).signal(t, unix.SIGKILL) },
		"agent":   func(s rpc.StartReply) { hold(t, s.AgentPID).signal(t, unix.SIGKILL) },
	} {
		started := h.mustStart(t, id, shell(stubborn))
		all := holdAll(t, membersOf(t, h.leafOf(id, 1)))
		kill(started)
		s := h.untilVacant(t, id)
		for _, p := range all {
			if p.alive() {
				t.Errorf("%s: process %d is left", id, p.pid)
			}
		}
		switch id {
		case "work", "agent":
			if s.Exit.Kind != "signal" || s.Exit.Signal != int(unix.SIGKILL) {
				t.Errorf("%s: exit %+v", id, s.Exit)
			}
		default:
			if s.Exit.Kind != "unknown" || s.Exit.Unknown == "" {
				t.Errorf("%s: exit %+v", id, s.Exit)
			}
		}
		if again := h.mustStart(t, id, nil); again.Generation != 2 {
			t.Errorf("%s: generation %d", id, again.Generation)
		}
	}
}

// TestEndsWhileDown: what ends while the daemon is down is found out, settled
// and reported; nothing is started that nobody asked for. case T28, T03, T04, D8
func TestEndsWhileDown(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	started := map[string]rpc.StartReply{}
	for id, script := range map[string]string{
		"exits": "while [ ! -e go ]; do sleep 0.02; done; echo bye; exit 7", "killed": "exec sleep 1000",
		"orphaned": stubborn, "lost": "exec sleep 1000", "stays": "exec sleep 1000",
	} {
		started[id] = h.mustStart(t, id, shell(script))
	}
	h.mustStart(t, "stopped", shell("exec sleep 1000"))
	h.mustStop(t, "stopped")
	wrappers := map[string]process{}
	agents := map[string]process{}
	for id, s := range started {
		wrappers[id], agents[id] = hold(t, s.PID), hold(t, s.AgentPID)
	}
	h.Kill()
	if err := os.WriteFile(started["exits"].Workspace+"/go", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	agents["killed"].signal(t, unix.SIGKILL)
	wrappers["orphaned"].signal(t, unix.SIGKILL)
	wrappers["lost"].signal(t, unix.SIGKILL)
	agents["lost"].signal(t, unix.SIGKILL)
	for _, id := range []string{"exits", "killed", "orphaned", "lost"} {
		h.untilDead(t, wrappers[id])
	}
	h.Start()
	h.endedAs(t, "exits", rpc.Exit{Kind: "code", Code: 7})
	h.endedAs(t, "killed", rpc.Exit{Kind: "signal", Signal: int(unix.SIGKILL)})
	h.endedAs(t, "orphaned", rpc.Exit{Kind: "unknown"})
	h.endedAs(t, "lost", rpc.Exit{Kind: "unknown"})
	if out := h.output(t, "exits", 0); out != "bye\n" {
		t.Errorf("output while the daemon was down: %q", out)
	}
	h.untilDead(t, agents["orphaned"])
	h.untilAdopted(t, started["stays"])
	if s := h.mustGet(t, "stopped"); s.State != "vacant" || s.NextGeneration != 2 {
		t.Errorf("a stopped session is %+v", s)
	}
}

// endedAs expects the first instance of a session to have ended so, and no
// second one to have been started.
func (h *Host) endedAs(t *testing.T, id string, want rpc.Exit) {
	t.Helper()
	s := h.untilVacant(t, id)
	if s.Exit.Kind != want.Kind || s.Exit.Signal != want.Signal || s.Exit.Code != want.Code || s.Exit.Generation != 1 {
		t.Errorf("%s: exit %+v, want %+v", id, s.Exit, want)
	}
	if s.Exit.Kind == "unknown" && s.Exit.Unknown == "" {
		t.Errorf("%s: unknown for no reason", id)
	}
	if s.NextGeneration != 2 {
		t.Errorf("%s was started again: %+v", id, s)
	}
}

// TestEndsAtOnce: an agent that ends before its start was answered has been
// started all the same, and its exit is its own. case T28, G8
func TestEndsAtOnce(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	for i := range 15 {
		id := fmt.Sprintf("s%d", i)
		h.mustStart(t, id, shell(fmt.Sprintf("echo done; exit %d", i)))
		if s := h.untilVacant(t, id); s.Exit == nil || s.Exit.Kind != "code" || s.Exit.Code != i {
			t.Errorf("%s: exit %+v", id, s.Exit)
		}
		if out := h.output(t, id, 0); out != "done\n" {
			t.Errorf("%s: output %q", id, out)
		}
	}
	_, err := h.Client.Start(bounded(t), "none", rpc.StartRequest{Spec: &rpc.SessionSpec{Command: []string{"/no/such/program"}}})
	if e := refused(t, err, rpc.CodeStartFailed); !strings.Contains(e.Message, "/no/such/program") {
		t.Errorf("%v", e)
	}
	if s := h.untilVacant(t, "none"); s.Exit == nil || s.Exit.Kind != "unknown" {
		t.Errorf("what never ran has ended as %+v", s.Exit)
	}
}

// TestFrozen: somebody has frozen the leaf, the daemon dies, and a stop ends it
// all the same; also with the wrapper in the freeze. case T35, T33
func TestFrozen(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := running(t, "")
	for _, part := range []string{"", "/work"} {
		id := "s" + strings.TrimPrefix(part, "/")
		h.mustStart(t, id, shell(stubborn))
		h.Until("the agent has its children", patience, func() error {
			if n := len(membersOf(t, h.leafOf(id, 1))); n < 4 {
				return fmt.Errorf("there are %d processes", n)
			}
			return nil
		})
		leaf := h.leafOf(id, 1) + part
		if err := os.WriteFile(leaf+"/cgroup.freeze", []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		h.Until("the leaf is frozen", patience, func() error {
			events, err := os.ReadFile(leaf + "/cgroup.events")
			if err == nil && !strings.Contains(string(events), "frozen 1") {
				err = errors.New(string(events))
			}
			return err
		})
	}
	h.Kill()
	h.Start()
	for _, id := range []string{"s", "swork"} {
		all := holdAll(t, membersOf(t, h.leafOf(id, 1)))
		if len(all) < 4 {
			t.Errorf("%s: there are %d processes", id, len(all))
		}
		h.mustStop(t, id)
		for _, p := range all {
			if p.alive() {
				t.Errorf("%s: process %d is left", id, p.pid)
			}
		}
	}
}
