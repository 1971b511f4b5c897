package wrap

import (
	"strings"
	"testing"

	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

func newTerminal(t *testing.T, script string) *session {
	t.Helper()
	s := newSession(t, "sh", "-c", script)
	s.launch.Terminal = true
	return s
}

func (s *session) awaitOutput(stream spool.Stream, want string) {
	s.t.Helper()
	eventually(s.t, "output "+want, func() bool { return strings.Contains(s.output(stream), want) })
}

// case G4: a size at open, and SIGWINCH with the new one.
func TestTerminalResize(t *testing.T) {
	t.Parallel()
	s := newTerminal(t, "trap 'stty size' WINCH; stty size; echo ready; while :; do sleep 0.05; done")
	s.withDaemon().start()
	c := s.daemon.next()
	s.awaitOutput(spool.PTY, "24 80\r\nready")
	if e := c.request(wire.Frame{Kind: wire.KindResize, Resize: &wire.Size{Rows: 50, Cols: 132}}); e != "" {
		t.Error(e)
	}
	s.awaitOutput(spool.PTY, "50 132\r\n")
}

// Job control: the terminal is the agent's controlling one, ^C reaches the
// foreground job and not the shell.
func TestTerminalJobControl(t *testing.T) {
	t.Parallel()
	s := newTerminal(t, "trap 'echo caught' INT; set -m; sh -c 'echo job; exec sleep 1000'; echo status $?; sleep 1000 & jobs; kill %1; read x; echo got $x")
	s.withDaemon().start()
	c := s.daemon.next()
	s.awaitOutput(spool.PTY, "job")
	c.input("\x03")
	s.awaitOutput(spool.PTY, "status 130")
	if e := c.request(wire.Frame{Kind: wire.KindInput, Input: &wire.Input{EOF: true}}); !strings.Contains(e, "terminal") {
		t.Errorf("end of input: %q", e)
	}
	c.input("line\r")
	s.awaitOutput(spool.PTY, "got line")
	c.await(wire.KindExited)
	s.wait()
}

// Everything that was written before the end is kept, though the end hangs the
// terminal up.
func TestTerminalKeepsTheTail(t *testing.T) {
	t.Parallel()
	s := newTerminal(t, "stty -opost; i=0; while [ $i -lt 2000 ]; do printf '%0100d' $i; i=$((i+1)); done; printf END")
	s.withDaemon().start()
	s.daemon.next().await(wire.KindExited)
	s.wait()
	if got := s.output(spool.PTY); len(got) != 200003 || !strings.HasSuffix(got, "1999END") {
		t.Errorf("%d bytes, end %q", len(got), got[max(0, len(got)-20):])
	}
}

// A program that closes all its descriptors of the terminal for a moment does
// not end it.
func TestTerminalSurvivesClosedDescriptors(t *testing.T) {
	t.Parallel()
	s := newTerminal(t, "exec 3>/dev/null <&- >&- 2>&-; sleep 0.3; exec >/dev/tty; echo back")
	s.withDaemon().start()
	s.daemon.next().await(wire.KindExited)
	s.wait()
	if got := s.output(spool.PTY); got != "back\r\n" {
		t.Errorf("terminal %q", got)
	}
}

// cases G1, G2: bytes stay bytes, wherever the chunk ends.
func TestSplitCharacters(t *testing.T) {
	t.Parallel()
	const text = "a\U0001F600é\xff"
	var script strings.Builder
	for _, b := range []byte(text) {
		script.WriteString("printf '\\" + strings.TrimPrefix(octal(b), "0") + "'; sleep 0.02; ")
	}
	s := newSession(t, "sh", "-c", script.String()).withDaemon().start()
	s.daemon.next().await(wire.KindExited)
	s.wait()
	var dec spool.Text
	view, chunks := "", 0
	for _, r := range s.records() {
		if r.Stream == spool.Stdout {
			view += dec.Decode(r.Data)
			chunks++
		}
	}
	view += dec.Flush()
	if got := s.output(spool.Stdout); got != text || view != "a\U0001F600é\uFFFD" || chunks < 2 {
		t.Errorf("bytes %q, text %q, %d chunks", got, view, chunks)
	}
}

func octal(b byte) string {
	return string([]byte{'0', '0' + b>>6, '0' + b>>3&7, '0' + b&7})
}
