package notify

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// manager is a socket that stands for PID 1's; the real one is in the tests of
// package systemd.
func manager(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return c
}

func next(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// TestMessages: each call is one datagram in the protocol's words.
func TestMessages(t *testing.T) {
	c := manager(t)
	e, err := Take()
	if err != nil {
		t.Fatal(err)
	}
	m := e.Manager
	for _, step := range []struct {
		send func() error
		want string
	}{
		{func() error { return m.Ready("up") }, "READY=1\nSTATUS=up"},
		{func() error { return m.Status("busy") }, "STATUS=busy"},
		{m.Stopping, "STOPPING=1"},
		{m.Alive, "WATCHDOG=1"},
		{func() error { return m.Extend(1500 * time.Millisecond) }, "EXTEND_TIMEOUT_USEC=1500000"},
	} {
		if err := step.send(); err != nil {
			t.Fatal(err)
		}
		if got := next(t, c); got != step.want {
			t.Errorf("sent %q, want %q", got, step.want)
		}
	}
	if err := m.Reloading(); err != nil {
		t.Fatal(err)
	}
	at, ok := strings.CutPrefix(next(t, c), "RELOADING=1\nMONOTONIC_USEC=")
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	if usec, err := strconv.ParseInt(at, 10, 64); !ok || err != nil || usec > now.Nano()/1000 || usec < now.Nano()/1000-60e6 {
		t.Errorf("reloading at %q, now is %d ms", at, now.Nano()/1e6)
	}
}

// TestDeaf: a manager that does not read, or is gone, holds nothing up.
func TestDeaf(t *testing.T) {
	c := manager(t)
	e, err := Take()
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 { // the queue is shorter
		if err = e.Manager.Alive(); err != nil {
			break
		}
	}
	if err == nil {
		t.Error("a full queue was not noticed")
	}
	c.Close()
	if e.Manager.Alive() == nil {
		t.Error("a manager that is gone was not noticed")
	}
}

// TestNone: without a manager everything is empty and works.
func TestNone(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	e, err := Take()
	if err != nil || e.Manager.Present() || e.Watchdog != 0 || e.Credentials != "" {
		t.Errorf("got %+v, %v", e, err)
	}
	if err := e.Manager.Ready(""); err != nil {
		t.Error(err)
	}
	if l, err := e.Listener("operators"); l != nil || err != nil {
		t.Errorf("a socket %v, %v", l, err)
	}
}

// TestNothingStays: case T53, T58: no child sees what the manager has passed,
// and what was meant for another process is not taken.
func TestNothingStays(t *testing.T) {
	c := manager(t)
	for name, value := range map[string]string{
		"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": strconv.Itoa(os.Getpid()), "CREDENTIALS_DIRECTORY": "/run/credentials/x",
		"LISTEN_FDS": "1", "LISTEN_PID": "1", "LISTEN_FDNAMES": "operators",
	} {
		t.Setenv(name, value)
	}
	e, err := Take()
	if err != nil || e.Watchdog != 30*time.Second || e.Credentials != "/run/credentials/x" {
		t.Errorf("took %+v, %v", e, err)
	}
	if l, err := e.Listener("operators"); l != nil || err != nil {
		t.Errorf("took another process's socket: %v, %v", l, err)
	}
	env, err := exec.Command("env").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(env)) {
		name, _, _ := strings.Cut(line, "=")
		if slices.Contains([]string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "CREDENTIALS_DIRECTORY"}, name) {
			t.Errorf("a child has %s", line)
		}
	}
	if err := e.Manager.Status("still known"); err != nil || next(t, c) != "STATUS=still known" {
		t.Errorf("the manager does not hear: %v", err)
	}
}
