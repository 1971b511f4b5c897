package wrap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

func TestLaunchToExit(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "echo out; echo err >&2; exit 3").withDaemon().start()
	c := s.daemon.next()
	h := c.hello
	if h.Token != s.launch.Token || h.PID != s.cmd.Process.Pid || h.Session != "s1" || h.Generation != 1 || h.Status.AgentPID == 0 {
		t.Errorf("hello = %+v", h)
	}
	exited := c.await(wire.KindExited)
	if code := s.wait(); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
	f := s.exit()
	if f.Exit.Kind != wire.ExitCode || f.Exit.Code != 3 || f.AgentPID != h.Status.AgentPID || f.Draining {
		t.Errorf("exit.json = %+v", f)
	}
	if exited.Exit == nil || exited.Exit.Code != 3 || exited.Exit.LastSeq != f.Exit.LastSeq {
		t.Errorf("exited frame = %+v", exited.Exit)
	}
	if got := s.output(spool.Stdout); got != "out\n" {
		t.Errorf("stdout = %q", got)
	}
	if got := s.output(spool.Stderr); got != "err\n" {
		t.Errorf("stderr = %q", got)
	}
	if recs := s.records(); recs[len(recs)-1].Seq != f.Exit.LastSeq {
		t.Errorf("last record %d, exit says %d", recs[len(recs)-1].Seq, f.Exit.LastSeq)
	}
}

func TestAbandonedIsSilent(t *testing.T) {
	t.Parallel()
	s := newSession(t, "true").park()
	s.ready.Close()
	if code := s.wait(); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
	entries, err := os.ReadDir(s.launch.Dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left %v, %v", entries, err)
	}
	log, _ := os.ReadFile(filepath.Join(s.launch.Dir, "wrap.log"))
	if len(log) != 0 {
		t.Errorf("said %q", log)
	}
}

func TestSecondWrapperIsLockedOut(t *testing.T) {
	t.Parallel()
	s := newSession(t, "cat").withDaemon().start()
	c := s.daemon.next()
	second := newSession(t, "cat")
	second.launch.Dir, second.launch.Instance = s.launch.Dir, s.launch.Instance
	second.start()
	if code := second.wait(); code != ExitLocked {
		t.Errorf("second wrapper ended with %d", code)
	}
	log, _ := os.ReadFile(filepath.Join(s.launch.Dir, "wrap.log"))
	if !strings.Contains(string(log), "held by another wrapper") {
		t.Errorf("log = %q", log)
	}
	if e := c.input("still here\n"); e != "" {
		t.Errorf("first wrapper: %s", e)
	}
	c.send(wire.Frame{Kind: wire.KindInput, Input: &wire.Input{EOF: true}})
	s.wait()
	if got := s.output(spool.Stdout); got != "still here\n" {
		t.Errorf("stdout = %q", got)
	}
}

func TestPTY(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "stty size; tty; echo done")
	s.launch.Terminal, s.launch.Size = true, wire.Size{Rows: 33, Cols: 99}
	s.withDaemon().start()
	s.daemon.next().await(wire.KindExited)
	s.wait()
	got := s.output(spool.PTY)
	if !strings.HasPrefix(got, "33 99\r\n/dev/pts/") || !strings.HasSuffix(got, "done\r\n") {
		t.Errorf("terminal = %q", got)
	}
}
