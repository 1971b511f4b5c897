package keep

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/systemd/notify"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// manager is a socket that stands for PID 1's; the real one is in the tests of
// package systemd.
func manager(t *testing.T) (*notify.Manager, *net.UnixConn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	e, err := notify.Take()
	if err != nil {
		t.Fatal(err)
	}
	return e.Manager, c
}

// next is the next message, and the descriptor that came with it.
func next(t *testing.T, c *net.UnixConn) (text string, fd int) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, rn, _, _, err := c.ReadMsgUnix(buf, rights)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rn])
	if err != nil || len(messages) == 0 {
		return string(buf[:n]), -1
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n]), fds[0]
}

// process is a child with a pidfd of its own.
func process(t *testing.T) (*exec.Cmd, sys.Identity, int) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	id, err := sys.IdentityOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := sys.OpenVerified(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return cmd, id, fd
}

// A wrapper's descriptor is sent once under its session and generation, comes
// back to the next daemon, answers for its process only, and is removed when the
// instance is gone.
func TestKeep(t *testing.T) {
	m, c := manager(t)
	cmd, id, pidfd := process(t)
	_, other, _ := process(t)
	ctx, cancel := context.WithCancel(context.Background())
	k := New(m, nil, hclog.NewNullLogger())
	done := make(chan struct{})
	go func() { // ended by cancel
		defer close(done)
		k.Run(ctx)
	}()
	k.Keep("a-g1", 7, pidfd)
	k.Keep("a-g1", 7, pidfd)
	text, fd := next(t, c)
	if want := "FDSTORE=1\nFDPOLL=0\nFDNAME=wrapper-a-g1-g7"; text != want || fd < 0 {
		t.Fatalf("sent %q with descriptor %d, want %q", text, fd, want)
	}
	k.Forget("a-g1", 6)
	k.Forget("a-g1", 7)
	if text, _ := next(t, c); text != "FDSTOREREMOVE=1\nFDNAME=wrapper-a-g1-g7" {
		t.Errorf("sent %q", text)
	}
	cancel()
	<-done

	again := func() *Keeper {
		dup, err := dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		return New(m, map[string]*os.File{"wrapper-a-g1-g7": os.NewFile(uintptr(dup), "")}, hclog.NewNullLogger())
	}
	k = again()
	if p, ok := k.Observe("a-g1", 7, id); !ok || p != sys.Alive {
		t.Errorf("the process is %v, %v", p, ok)
	}
	if got, ok := k.Open("a-g1", 7, id); !ok {
		t.Error("there is nothing to hold the process by")
	} else {
		unix.Close(got)
	}
	if used, removed := k.Sweep(func(string, uint64) bool { return true }); used != 1 || removed != 0 || k.Kept() != 1 {
		t.Errorf("%d used, %d removed, %d kept", used, removed, k.Kept())
	}
	k = again()
	if p, ok := k.Observe("a-g1", 7, other); ok || k.Kept() != 0 {
		t.Errorf("it answers %v for another process, and %d are kept", p, k.Kept())
	}
	k = again()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if p, ok := k.Observe("a-g1", 7, id); ok != sys.HasPidfs() || ok && p != sys.Absent {
		t.Errorf("of a process that is gone it says %v, %v", p, ok)
	}
	if used, removed := k.Sweep(func(string, uint64) bool { return false }); removed > 1 || used > 1 || k.Kept() != 0 {
		t.Errorf("%d used, %d removed, %d kept", used, removed, k.Kept())
	}
	unix.Close(fd)
}

// The names never get too long for the environment of the next daemon.
func TestNames(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"wrapper-a-g1": true, "wrapper-a-g1-g18446744073709551615": true, "wrapper-a": false, "wrapper--g1": false,
		"wrapper-a-g01": false, "wrapper-a-g-1": false, "stored": false, "wrapper-a-g18446744073709551616": false,
	} {
		if _, _, got := parse(name); got != ok {
			t.Errorf("parse(%q) says %v", name, got)
		}
	}
	unit, err := os.ReadFile("../../../systemd/berthd.service")
	if err != nil {
		t.Fatal(err)
	}
	if line := fmt.Sprintf("\nFileDescriptorStoreMax=%d\n", storeMax); !strings.Contains(string(unit), line) || storeMax > 900 {
		t.Errorf("the unit has no line %q, or that is more than a service can be passed", line)
	}
	k := New(new(notify.Manager), nil, hclog.NewNullLogger())
	long := strings.Repeat("x", 128)
	for i := range uint64(2 * storeMax) {
		k.noteLocked(nameOf(long, i))
	}
	if k.names > namesMax || k.Kept() != storeMax {
		t.Errorf("%d names have %d bytes", k.Kept(), k.names)
	}
}
