package wrap

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

// cases G17, T26: orphans become the wrapper's children, are reaped, and none
// of them takes the agent's status.
func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "i=0; while [ $i -lt 200 ]; do (sh -c 'exit 9' &); i=$((i+1)); done; echo made; read x; exit 6").withDaemon().start()
	c := s.daemon.next()
	s.awaitOutput(spool.Stdout, "made")
	eventually(t, "no zombies", func() bool {
		for _, child := range childrenOf(c.hello.PID) {
			if child != c.hello.Status.AgentPID {
				return false
			}
		}
		return true
	})
	c.input("\n")
	c.await(wire.KindExited)
	s.wait()
	if x := s.exit(); x.Exit.Code != 6 {
		t.Errorf("exit.json %+v", x.Exit)
	}
}

// The wrapper is the subreaper: what has forked twice still belongs to it.
func TestOrphansBelongToTheWrapper(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "(setsid sleep 1000 >/dev/null 2>&1 & echo $!); exit 0")
	s.launch.WorkCgroup = newCgroup(t)
	s.launch.DrainTimeout = time.Hour
	s.recipe.Argv[2] = "(setsid sleep 1000 & echo $!); read x"
	s.withDaemon().start()
	c := s.daemon.next()
	var pid int
	eventually(t, "the orphan is there", func() bool {
		pid, _ = strconv.Atoi(strings.TrimSpace(s.output(spool.Stdout)))
		if pid == 0 {
			return false
		}
		st, err := statOf(pid)
		return err == nil && st.PPID == c.hello.PID
	})
}

const stubborn = "trap '' TERM HUP; (setsid sh -c 'trap \"\" TERM HUP; echo $$; sleep 1000; sleep 1000' & ); sleep 0.2; echo up; sleep 1000; sleep 1000"

// Stop with Signal: children that fork twice, make their own session and ignore
// TERM are gone when the wrapper is.
func TestStopWithSignal(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", stubborn).withDaemon().start()
	c := s.daemon.next()
	s.awaitOutput(spool.Stdout, "up")
	if e := c.request(wire.Frame{Kind: wire.KindStop, Stop: &wire.Stop{Reason: "operator", By: "uid 0", Grace: 200 * time.Millisecond, Signal: true}}); e != "" {
		t.Error(e)
	}
	c.await(wire.KindExited)
	s.wait()
	if left := markedPIDs("BERTH_INSTANCE=" + s.launch.Instance); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if x := s.exit().Exit; x.Kind != wire.ExitSignal || x.Signal != int(unix.SIGKILL) || x.Reason != "operator" {
		t.Errorf("exit.json %+v", x)
	}
}

// A second stop with a shorter grace hastens the first.
func TestSecondStopHastens(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", stubborn).withDaemon().start()
	c := s.daemon.next()
	s.awaitOutput(spool.Stdout, "up")
	for _, grace := range []time.Duration{time.Hour, 0, time.Hour} {
		c.request(wire.Frame{Kind: wire.KindStop, Stop: &wire.Stop{Reason: "operator", Grace: grace, Signal: true}})
	}
	c.await(wire.KindExited)
	s.wait()
}

func TestStopWithSignalIsGentleFirst(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "trap 'echo bye; exit 12' TERM; echo up; while :; do sleep 0.02; done").withDaemon().start()
	c := s.daemon.next()
	s.awaitOutput(spool.Stdout, "up")
	c.request(wire.Frame{Kind: wire.KindStop, Stop: &wire.Stop{Reason: "operator", Grace: time.Hour, Signal: true}})
	c.await(wire.KindExited)
	s.wait()
	if x := s.exit().Exit; x.Code != 12 || s.output(spool.Stdout) != "up\nbye\n" {
		t.Errorf("exit.json %+v, output %q", x, s.output(spool.Stdout))
	}
}

// Without a cgroup nothing outlives the wrapper.
func TestLeftoversEndWithoutACgroup(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "(setsid sleep 1000 &) ; exit 0").withDaemon().start()
	s.daemon.next().await(wire.KindExited)
	s.wait()
	if left := markedPIDs("BERTH_INSTANCE=" + s.launch.Instance); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// With one they are left to the daemon.
func TestLeftoversStayInTheirCgroup(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "(setsid sleep 1000 >/dev/null 2>&1 &) ; exit 0")
	s.launch.WorkCgroup = newCgroup(t)
	s.withDaemon().start()
	s.daemon.next().await(wire.KindExited)
	s.wait()
	procs, err := os.ReadFile(s.launch.WorkCgroup + "/cgroup.procs")
	if err != nil || len(procs) == 0 {
		t.Errorf("cgroup holds %q, %v", procs, err)
	}
}

// A chain that forks and exits is caught, since each link becomes a child of
// the subreaper. It is bounded in length, and in width where root can do that.
func TestForkChainIsCaught(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "f() { [ $1 -gt 0 ] && { sleep 0.005; f $(($1-1)) & }; }; trap '' TERM; f 3000 & echo up; sleep 1000")
	if os.Geteuid() == 0 {
		s.recipe.SetIDs, s.recipe.UID, s.recipe.GID = true, 54331, 54331
		s.recipe.Rlimits = []sandbox.Rlimit{{Name: "nproc", Soft: 40, Hard: 40}}
	}
	s.withDaemon().start()
	c := s.daemon.next()
	s.awaitOutput(spool.Stdout, "up")
	c.request(wire.Frame{Kind: wire.KindStop, Stop: &wire.Stop{Reason: "operator", Signal: true}})
	c.await(wire.KindExited)
	s.wait()
	if left := markedPIDs("BERTH_INSTANCE=" + s.launch.Instance); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
