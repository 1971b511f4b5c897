package wrap

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

// case G8: an exit is what wait said.
func TestAgentKilledBySignal(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sleep", "1000").withDaemon().start()
	c := s.daemon.next()
	if e := c.request(wire.Frame{Kind: wire.KindStop, Stop: &wire.Stop{Reason: "user_interrupt", By: "uid 7"}}); e != "" {
		t.Errorf("stop: %s", e)
	}
	if e := c.request(wire.Frame{Kind: wire.KindSignal, Signal: int(unix.SIGUSR2)}); e != "" {
		t.Errorf("signal: %s", e)
	}
	f := c.await(wire.KindExited)
	s.wait()
	x := s.exit().Exit
	if x.Kind != wire.ExitSignal || x.Signal != int(unix.SIGUSR2) || x.Reason != "user_interrupt" || x.By != "uid 7" {
		t.Errorf("exit.json %+v", x)
	}
	if *f.Exit != x {
		t.Errorf("exited frame %+v, file %+v", f.Exit, x)
	}
}

// case T63: a background child that holds the pipes delays the end by the
// drain time-out and no more, and what was written is kept.
func TestBackgroundChildHoldsThePipes(t *testing.T) {
	t.Parallel()
	for _, terminal := range []bool{false, true} {
		s := newSession(t, "sh", "-c", "trap '' HUP; sleep 1000 & echo ok")
		s.launch.Terminal = terminal
		s.launch.WorkCgroup = newCgroup(t) // so that leftovers are the daemon's business
		s.withDaemon().start()
		c := s.daemon.next()
		begin := time.Now()
		c.await(wire.KindExited)
		s.wait()
		if took := time.Since(begin); took > s.launch.DrainTimeout+5*time.Second {
			t.Errorf("took %v", took)
		}
		got := s.output(spool.Stdout) + s.output(spool.PTY)
		if strings.TrimSpace(got) != "ok" {
			t.Errorf("output %q", got)
		}
		if x := s.exit(); x.Exit.Kind != wire.ExitCode || x.Draining {
			t.Errorf("exit.json %+v", x)
		}
	}
}

// While the drain goes on the end is already on disk.
func TestExitRecordDoesNotWaitForTheDrain(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "trap '' HUP; sleep 1000 & exit 4")
	s.launch.WorkCgroup = newCgroup(t)
	s.launch.DrainTimeout = time.Hour
	s.withDaemon().start()
	s.daemon.next()
	eventually(t, "exit.json is there", func() bool { return exists(filepath.Join(s.launch.Dir, wire.ExitName)) })
	if x := s.exit(); !x.Draining || x.Exit.Code != 4 {
		t.Errorf("exit.json %+v", x)
	}
}

// case T02: the wrapper is killed: the agent lives on, nothing claims an exit,
// and the lock is free.
func TestWrapperKilled(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sleep", "1000").withDaemon().start()
	agent := s.daemon.next().hello.Status.AgentPID
	s.cmd.Process.Kill()
	<-s.done
	if err := unix.Kill(agent, 0); err != nil {
		t.Errorf("the agent: %v", err)
	}
	if exists(filepath.Join(s.launch.Dir, wire.ExitName)) {
		t.Error("an exit record was made up")
	}
	lock, err := takeLock(filepath.Join(s.launch.Dir, wire.LockName))
	if err != nil {
		t.Fatalf("the lock: %v", err)
	}
	lock.Close()
}

func TestWrapperIsDeafToSignals(t *testing.T) {
	t.Parallel()
	s := newSession(t, "cat").withDaemon().start()
	c := s.daemon.next()
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGPIPE, unix.SIGUSR2, unix.SIGALRM} {
		if err := s.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	if e := c.input("alive\n"); e != "" {
		t.Error(e)
	}
	c.send(wire.Frame{Kind: wire.KindInput, Input: &wire.Input{EOF: true}})
	c.await(wire.KindExited)
	if s.wait() != ExitOK || s.output(spool.Stdout) != "alive\n" {
		t.Errorf("output %q", s.output(spool.Stdout))
	}
}

func TestOOMCount(t *testing.T) {
	t.Parallel()
	if n, ok := parseOOMKills([]byte("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n")); !ok || n != 2 {
		t.Errorf("got %d, %v", n, ok)
	}
	for _, bad := range []string{"", "oom 3\n", "oom_kill x\n", "oom_kill \n"} {
		if _, ok := parseOOMKills([]byte(bad)); ok {
			t.Errorf("%q counts", bad)
		}
	}
}

// case T60: on a full disk the agent runs to its end, what is lost is counted
// and marked, and the exit record is written in the room set aside for it.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("needs to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, 0) })
	go1 := filepath.Join(t.TempDir(), "go")
	s := newSession(t, "sh", "-c", "head -c 3000000 /dev/zero; while [ ! -e "+go1+" ]; do sleep 0.01; done; sleep 0.5; echo after; exit 9")
	s.launch.Dir = filepath.Join(dir, "g1")
	if err := os.Mkdir(s.launch.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.withDaemon().start()
	c := s.daemon.next()
	var st wire.Status
	eventually(t, "everything was read", func() bool {
		st = *c.await(wire.KindStatus).Status
		return st.DroppedBytes > 2_700_000
	})
	// Room again, and the agent goes on.
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=2m"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(go1, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.await(wire.KindExited)
	s.wait()
	if x := s.exit(); x.Exit.Code != 9 {
		t.Errorf("exit.json %+v", x)
	}
	var kept, gap uint64
	var after bool
	for _, r := range s.records() {
		switch {
		case r.Gap != nil:
			gap += r.Gap.Bytes["stdout"]
		case r.Stream == spool.Stdout:
			kept += uint64(len(r.Data))
			after = after || strings.Contains(string(r.Data), "after")
		}
	}
	if kept+gap != 3_000_000+6 || !after || gap == 0 {
		t.Errorf("kept %d, gap %d, after %v", kept, gap, after)
	}
}

func TestExitRecordOnAFullDisk(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("needs to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, 0) })
	s := newSession(t, "sh", "-c", "read x; exit 9")
	s.launch.Dir = filepath.Join(dir, "g1")
	if err := os.Mkdir(s.launch.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.withDaemon().start()
	c := s.daemon.next()
	eventually(t, "the reserve is there", func() bool { return exists(filepath.Join(s.launch.Dir, reserveName)) })
	fill := exec.Command("sh", "-c", "cat /dev/zero >"+dir+"/fill")
	if err := fill.Run(); err == nil {
		t.Fatal("the disk did not fill")
	}
	c.input("go\n")
	c.await(wire.KindExited)
	s.wait()
	if x := s.exit(); x.Exit.Code != 9 {
		t.Errorf("exit.json %+v", x)
	}
}
