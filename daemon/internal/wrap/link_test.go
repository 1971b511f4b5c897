package wrap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

// The daemon is away for the agent's whole life.
func TestDaemonNeverThere(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "echo alone; exit 5").start()
	if code := s.wait(); code != ExitOK {
		t.Errorf("wrapper ended with %d", code)
	}
	if x := s.exit(); x.Exit.Code != 5 {
		t.Errorf("exit.json %+v", x)
	}
	if got := s.output(spool.Stdout); got != "alone\n" {
		t.Errorf("stdout %q", got)
	}
}

// A daemon that comes late is found within a second, one that pokes at once.
func TestReconnects(t *testing.T) {
	t.Parallel()
	s := newSession(t, "cat").start()
	eventually(t, "the agent runs", func() bool { return s.statusFile().Phase == wire.PhaseRunning })
	s.withDaemon()
	begin := time.Now()
	c := s.daemon.next()
	if took := time.Since(begin); took > reconnectMax+2*time.Second {
		t.Errorf("took %v", took)
	}
	c.conn.Close()
	c = s.daemon.next()
	if e := c.input("x\n"); e != "" {
		t.Error(e)
	}
	// Welcomed: a poke shows life and keeps the connection.
	s.cmd.Process.Signal(unix.SIGUSR1)
	c.await(wire.KindStatus)
}

// A daemon that is down, not restarting, is asked for less often.
func TestPatience(t *testing.T) {
	for away, want := range map[time.Duration]time.Duration{
		0: reconnectMax, patientAfter: reconnectMax, patientAfter + 1: patientMax, 24 * time.Hour: patientMax,
	} {
		if got := longestPause(away); got != want {
			t.Errorf("away for %v: at most %v, want %v", away, got, want)
		}
	}
}

// A storm: the daemon drops every connection directly after the hello.
func TestReconnectStorm(t *testing.T) {
	t.Parallel()
	s := newSession(t, "cat").withDaemon().start()
	for range 30 {
		s.daemon.next().conn.Close()
		s.cmd.Process.Signal(unix.SIGUSR1)
	}
	c := s.daemon.next()
	if e := c.input("survived\n"); e != "" {
		t.Error(e)
	}
	c.send(wire.Frame{Kind: wire.KindInput, Input: &wire.Input{EOF: true}})
	s.wait()
	if got := s.output(spool.Stdout); got != "survived\n" {
		t.Errorf("stdout %q", got)
	}
	log, _ := os.ReadFile(filepath.Join(s.launch.Dir, "wrap.log"))
	if n := strings.Count(string(log), "\n"); n > 2 {
		t.Errorf("%d lines in the log:\n%s", n, log)
	}
}

func TestRejectedKeepsTrying(t *testing.T) {
	t.Parallel()
	s := newSession(t, "cat").withDaemon()
	s.daemon.reject = true
	s.start()
	s.daemon.next()
	s.daemon.next()
}

// Requests before the welcome are refused.
func TestNothingBeforeTheWelcome(t *testing.T) {
	t.Parallel()
	s := newSession(t, "cat").withDaemon()
	s.daemon.mute = true
	s.start()
	c := s.daemon.next()
	if e := c.input("too early\n"); e == "" {
		t.Error("input was taken")
	}
}

func TestUnknownFrames(t *testing.T) {
	t.Parallel()
	s := newSession(t, "cat").withDaemon().start()
	c := s.daemon.next()
	c.conn.Write([]byte("this is no frame\n{\"kind\":\"later\",\"new_field\":{}}\n\n"))
	c.conn.Write([]byte(`{"kind":"input","input":{"data":"` + strings.Repeat("A", wire.MaxFrame) + "\"}}\n"))
	if e := c.request(wire.Frame{Kind: "later"}); !strings.Contains(e, "unknown") {
		t.Errorf("unknown kind: %q", e)
	}
	if e := c.request(wire.Frame{Kind: wire.KindInput}); !strings.Contains(e, "incomplete") {
		t.Errorf("input without input: %q", e)
	}
	if e := c.request(wire.Frame{Kind: wire.KindResize, Resize: &wire.Size{Rows: 1, Cols: 1}}); !strings.Contains(e, "no terminal") {
		t.Errorf("resize: %q", e)
	}
	if e := c.input("fine\n"); e != "" {
		t.Error(e)
	}
}

// case T60: an agent that writes 100 MB is not held up by a daemon that hangs.
func TestChattyAgentAndHangingDaemon(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "head -c 104857600 /dev/zero; echo end >&2")
	s.launch.SpoolFileBytes, s.launch.SpoolFiles = 1<<20, 3
	s.launch.HeartbeatEvery = time.Millisecond // fills the socket that nobody reads
	s.withDaemon()
	s.daemon.hang = true
	s.start()
	s.daemon.next()
	eventually(t, "the agent ended", func() bool { return exists(filepath.Join(s.launch.Dir, wire.ExitName)) })
	s.wait()
	u, err := spool.Stat(filepath.Join(s.launch.Dir, wire.SpoolName))
	if err != nil || u.Files > 3 || u.Bytes > 4<<20 {
		t.Errorf("spool %+v, %v", u, err)
	}
	recs := s.records()
	if recs[0].Gap == nil || recs[0].Gap.Cause != spool.CauseRotated || recs[0].Gap.FromSeq != 1 {
		t.Errorf("first record %+v", recs[0])
	}
	if got := s.output(spool.Stderr); got != "end\n" {
		t.Errorf("stderr %q", got)
	}
	var end uint64
	for _, r := range recs {
		if r.Stream == spool.Stdout {
			end = r.Offset + uint64(len(r.Data))
		}
	}
	if end != 104857600 {
		t.Errorf("output ends at byte %d", end)
	}
}

func TestWatchCoalesces(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "read x; i=0; while [ $i -lt 500 ]; do echo $i; i=$((i+1)); done; read x").withDaemon().start()
	c := s.daemon.next()
	c.send(wire.Frame{Kind: wire.KindWatch, Watch: true})
	if f := c.await(wire.KindSpool); f.LastSeq > 1 {
		t.Errorf("first notice %d", f.LastSeq)
	}
	c.input("go\n")
	r, err := spool.Open(filepath.Join(s.launch.Dir, wire.SpoolName))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var out strings.Builder
	for !strings.HasSuffix(out.String(), "499\n") {
		c.await(wire.KindSpool)
		for rec, err := r.Next(); err == nil; rec, err = r.Next() {
			if rec.Stream == spool.Stdout {
				out.Write(rec.Data)
			}
		}
	}
	c.send(wire.Frame{Kind: wire.KindWatch})
	c.input("end\n")
	c.await(wire.KindExited)
}

// case T77: a socket path that does not fit into an address.
func TestLongSocketPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	short := t.TempDir()
	s := newSession(t, "true")
	s.daemon = newDaemon(t, filepath.Join(short, "w"))
	if err := os.Rename(filepath.Join(short, "w"), filepath.Join(dir, "w")); err != nil {
		t.Fatal(err)
	}
	s.launch.Socket = filepath.Join(dir, "w")
	s.start()
	s.daemon.next().await(wire.KindExited)
}

func TestStatusFile(t *testing.T) {
	t.Parallel()
	s := newSession(t, "cat").withDaemon().start()
	h := s.daemon.next().hello
	eventually(t, "status says running", func() bool { return s.statusFile().Phase == wire.PhaseRunning })
	f := s.statusFile()
	if f.PID != h.PID || f.AgentPID != h.Status.AgentPID || f.StartTicks == 0 || f.AgentStartTicks < f.StartTicks ||
		f.Instance != s.launch.Instance || f.Generation != 1 || !strings.Contains(f.Epoch, ":") {
		t.Errorf("status.json %+v", f)
	}
	data, _ := os.ReadFile(filepath.Join(s.launch.Dir, wire.StatusName))
	if strings.Contains(string(data), s.launch.Token) {
		t.Error("status.json holds the token")
	}
}
