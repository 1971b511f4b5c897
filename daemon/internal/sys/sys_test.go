package sys

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestEpoch(t *testing.T) {
	t.Parallel()
	e, err := Epoch()
	if err != nil {
		t.Fatal(err)
	}
	boot, ns, ok := strings.Cut(e, ":")
	if id, err := BootID(); !ok || err != nil || boot != id || ns == "" || ns == "0" {
		t.Fatalf("epoch %q, boot id %q, %v", e, id, err)
	}
}

func TestReadBootIDRefusesRubbish(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n", "zzzzzzzz-zzzz-zzzz-zzzz-zzzzzzzzzzzz\n", "2b5a"} {
		p := t.TempDir() + "/boot_id"
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if id, err := readBootID(p); err == nil {
			t.Errorf("%q was read as %q", text, id)
		}
	}
}

func TestNowRises(t *testing.T) {
	t.Parallel()
	a := Now()
	if b := Now(); a <= 0 || b < a || b-a > time.Minute {
		t.Fatalf("%v then %v", a, b)
	}
}

func TestSelfIdentity(t *testing.T) {
	t.Parallel()
	id, err := SelfIdentity()
	if err != nil {
		t.Fatal(err)
	}
	if id.PID != os.Getpid() || id.StartTicks == 0 || (id.PidfdInode != 0) != HasPidfs() {
		t.Fatalf("%+v", id)
	}
}

// case T15
func TestOpenVerifiedNeverTouchesSelfParentInit(t *testing.T) {
	t.Parallel()
	boot, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{-1, 0, 1, os.Getpid(), os.Getppid()} {
		id := Identity{PID: pid, StartTicks: 1, BootID: boot}
		if real, err := IdentityOf(pid); err == nil {
			id = real
		}
		if fd, err := OpenVerified(id); !errors.Is(err, ErrForbidden) {
			t.Errorf("pid %d: opened %d, %v", pid, fd, err)
		}
		if err := SignalVerified(id, 0); !errors.Is(err, ErrForbidden) { // 0: a test that fails must not kill
			t.Errorf("pid %d: %v", pid, err)
		}
	}
}

// start runs a sleeper that the test ends and reaps.
func start(t *testing.T) *exec.Cmd {
	t.Helper()
	c := exec.Command("sleep", "600")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

func TestSignalVerified(t *testing.T) {
	t.Parallel()
	c := start(t)
	id, err := IdentityOf(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if p, _, err := Observe(id); p != Alive || err != nil {
		t.Fatalf("%v %v", p, err)
	}
	if err := SignalVerified(id, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Fatal(err)
	}
	if err := SignalVerified(id, unix.SIGTERM); !errors.Is(err, ErrGone) {
		t.Fatalf("after the end: %v", err)
	}
	if p, _, err := Observe(id); p != Absent || err != nil {
		t.Fatalf("%v %v", p, err)
	}
}
