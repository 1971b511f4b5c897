package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/internal/rpctest"
)

// console is berthctl on a terminal of its own.
type console struct {
	t   *testing.T
	cmd *exec.Cmd
	pty *os.File
	svc *rpctest.Service
	srv *rpctest.Server

	mu   sync.Mutex
	text bytes.Buffer
}

// newConsole runs berthctl with args on a terminal of 24 rows and 80 columns.
// The session "s" has a terminal and runs.
func newConsole(t *testing.T, args ...string) *console {
	t.Helper()
	c := &console{t: t, svc: rpctest.New()}
	var err error
	if c.srv, err = rpctest.Serve(rpctest.SocketPath(t), rpc.Config{Service: c.svc}); err != nil {
		t.Fatal(err)
	}
	spec := &rpc.SessionSpec{Command: []string{"sh"}, Terminal: true}
	if _, err := c.svc.Start(t.Context(), rpc.Peer{}, "s", rpc.StartRequest{Spec: spec}); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd = &exec.Cmd{Path: self, Args: append([]string{"berthctl"}, args...)} // TestMain goes by the name
	c.cmd.Env = append(os.Environ(), "BERTH_SOCKET="+c.srv.Path, "GORACE=atexit_sleep_ms=0")
	if c.pty, err = pty.StartWithSize(c.cmd, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() { // ends with the terminal
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := c.pty.Read(buf)
			c.mu.Lock()
			c.text.Write(buf[:n])
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		c.cmd.Wait()
		c.pty.Close()
		<-read
		c.srv.Stop()
	})
	return c
}

func (c *console) shown() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// expect waits until text was shown.
func (c *console) expect(text string) {
	c.t.Helper()
	c.until("text "+text, func() bool { return strings.Contains(c.shown(), text) })
}

func (c *console) until(what string, ok func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(bound); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("waited %v for %s; shown: %q", bound, what, c.shown())
		}
	}
}

func (c *console) typeIn(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.pty, text); err != nil {
		c.t.Fatal(err)
	}
}

// raw tells whether the terminal is raw. The two ends share their settings.
func (c *console) raw() bool {
	c.t.Helper()
	tio, err := unix.IoctlGetTermios(int(c.pty.Fd()), unix.TCGETS)
	if err != nil {
		c.t.Fatal(err)
	}
	return tio.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) == 0
}

// ends waits for berthctl's end and checks its code and the terminal.
func (c *console) ends(code int) {
	c.t.Helper()
	// One that hangs shows where.
	hung := time.AfterFunc(bound, func() { c.cmd.Process.Signal(syscall.SIGABRT) })
	err := c.cmd.Wait()
	hung.Stop()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		c.t.Fatal(err)
	}
	if got := c.cmd.ProcessState.ExitCode(); got != code {
		c.t.Errorf("exit code %d, want %d; shown: %q", got, code, c.shown())
	}
	if c.raw() {
		c.t.Error("the terminal is still raw")
	}
}

// cases G1, G4: bytes go through, the size is there at open and follows.
func TestAttachAndExit(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "attach", "s")
	c.expect("hello 24x80 since 0\r\n")
	if !c.raw() {
		t.Error("the terminal is not raw")
	}
	c.typeIn("abc\x03") // an interrupt key is the agent's
	c.expect("ABC\x03")
	if err := pty.Setsize(c.pty, &pty.Winsize{Rows: 50, Cols: 132}); err != nil {
		t.Fatal(err)
	}
	c.expect("size 50x132")
	c.typeIn("exit 7\r")
	c.ends(7)
}

func TestDetach(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "attach", "s")
	c.expect("hello")
	c.typeIn("a\x10b") // the first key alone is passed on
	c.expect("A\x10B")
	c.typeIn("\x10")
	c.typeIn("\x11")
	c.ends(0)
	c.expect("detached; session s goes on")
	if s, err := c.svc.Get(t.Context(), rpc.Peer{}, "s"); err != nil || s.State != "active" {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestDetachKeysFlag(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "attach", "s", "--detach-keys", "~,.")
	c.expect("hello")
	c.typeIn("\x10\x11~~")
	c.expect("\x10\x11~")
	c.typeIn(".")
	c.ends(0)
}

func TestAttachSignals(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			c := newConsole(t, "attach", "s")
			c.expect("hello")
			c.cmd.Process.Signal(sig)
			c.ends(0)
		})
	}
}

func TestAttachFailure(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "attach", "s")
	c.expect("hello")
	c.typeIn("fail\r")
	c.ends(125)
	c.expect(`cannot attach to session "s": the wrapper does not answer; try: berthctl explain s`)
}

func TestAttachRefused(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "attach", "nothing")
	c.ends(125)
	c.expect("berthctl: cannot attach to session")
}

// case A23: a restart of the daemon is seen through; what was typed meanwhile
// arrives, and nothing is shown twice.
func TestAttachOverRestart(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "attach", "s")
	c.expect("hello 24x80 since 0")
	if err := c.srv.Stop(); err != nil {
		t.Fatal(err)
	}
	c.expect("the daemon is away; waiting for it")
	c.typeIn("typed meanwhile")
	var err error
	if c.srv, err = rpctest.Serve(c.srv.Path, rpc.Config{Service: c.svc}); err != nil {
		t.Fatal(err)
	}
	c.expect("since 2\r\n")
	c.expect("TYPED MEANWHILE")
	c.typeIn("exit 7\r")
	c.ends(7)
}

// The agent ends while the daemon is away.
func TestAttachEndsMeanwhile(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "attach", "s")
	c.expect("hello")
	if err := c.srv.Stop(); err != nil {
		t.Fatal(err)
	}
	c.svc.Exit("s", rpc.Exit{Kind: "signal", Signal: 9})
	var err error
	if c.srv, err = rpctest.Serve(c.srv.Path, rpc.Config{Service: c.svc}); err != nil {
		t.Fatal(err)
	}
	c.ends(137)
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "attach", "s", "--read-only")
	c.expect("hello")
	if c.raw() {
		t.Error("a watcher's terminal is raw")
	}
	c.typeIn("abc\n")
	c.typeIn("\x03") // its interrupt key is its own
	c.ends(0)
	if strings.Contains(c.shown(), "ABC") {
		t.Error("a watcher has written")
	}
}

func TestRunOnTerminal(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "run", "-t", "--session", "r", "--rm", "--", "sh")
	c.expect("hello 24x80 since 1")
	c.typeIn("exit 7\r")
	c.ends(7)
	if _, err := c.svc.Get(t.Context(), rpc.Peer{}, "r"); rpc.CodeOf(err) != rpc.CodeSessionDeleted {
		t.Errorf("--rm: %v", err)
	}
}

func TestDetacher(t *testing.T) {
	t.Parallel()
	tests := []struct {
		keys string
		in   []string
		out  string
		end  bool
	}{
		{"ctrl-p,ctrl-q", []string{"abc"}, "abc", false},
		{"ctrl-p,ctrl-q", []string{"a\x10\x11b"}, "a", true},
		{"ctrl-p,ctrl-q", []string{"a\x10", "\x11"}, "a", true},
		{"ctrl-p,ctrl-q", []string{"\x10\x10", "x"}, "\x10\x10x", false},
		{"a,a,b", []string{"aaab"}, "a", true},
		{"a,b,a,c", []string{"ababac"}, "ab", true},
		{"x", []string{"x"}, "", true},
		{"", []string{"\x10\x11"}, "\x10\x11", false},
		{"ctrl-\\", []string{"\x1c"}, "", true},
	}
	for _, tc := range tests {
		keys, err := parseKeys(tc.keys)
		if err != nil {
			t.Fatal(err)
		}
		d := detacher{keys: keys}
		var out []byte
		var end bool
		for _, in := range tc.in {
			o, e := d.feed([]byte(in))
			out, end = append(out, o...), end || e
		}
		if string(out) != tc.out || end != tc.end {
			t.Errorf("%q on %q: %q %v", tc.keys, tc.in, out, end)
		}
	}
	for _, bad := range []string{"ctrl-", "ctrl-pp", "ab", "a,,b", "ctrl-1"} {
		if keys, err := parseKeys(bad); err == nil {
			t.Errorf("%q is %q", bad, keys)
		}
	}
}

// Colours are for terminals, and for those who want them.
func TestColours(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "list")
	c.ends(0)
	c.expect("\x1b[32mactive\x1b[0m")
	c = newConsole(t, "list", "--no-color")
	c.ends(0)
	c.expect("active")
	if strings.Contains(c.shown(), "\x1b") {
		t.Errorf("%q", c.shown())
	}
}
