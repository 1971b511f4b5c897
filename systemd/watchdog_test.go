package systemd

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
)

// impatient is a watchdog that a test can wait for.
const impatient = "WatchdogSec=3s\nTimeoutAbortSec=1s\n"

// bitten waits until systemd has ended a hung daemon and started another.
func (h *host) bitten(old int) {
	h.t.Helper()
	h.until("the watchdog to end the daemon", func() error {
		if pid := mainPID(h.t); pid == 0 || pid == old {
			return fmt.Errorf("the daemon is process %d, was %d", pid, old)
		}
		return nil
	})
	if log := h.journal(); !strings.Contains(log, "Watchdog timeout") {
		h.t.Errorf("the daemon has ended, but not by the watchdog:\n%s", log)
	}
}

// TestWatchdog: case T54: a daemon that does not run is ended and started
// again, sessions go on; one that runs is left alone.
func TestWatchdog(t *testing.T) {
	h := start(t, impatient)
	started, pid := h.sessions(2, "sleep 1000"), mainPID(t)
	answers := map[string]bool{} // each moves the time stamp
	h.until("more answers than fit into an interval", func() error {
		if answers[show(t, "WatchdogTimestampMonotonic")] = true; len(answers) < 5 || mainPID(t) != pid {
			return fmt.Errorf("there were %d, process %d was %d", len(answers), mainPID(t), pid)
		}
		return nil
	})
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h.bitten(pid)
	h.adopted(started)
}

// TestWatchdogJournal: case T54: the daemon runs and answers reads, but its
// journal hangs in the kernel: the answers stop, and systemd acts.
func TestWatchdogJournal(t *testing.T) {
	dir := t.TempDir()
	image, mount := filepath.Join(dir, "image"), filepath.Join(dir, "mount")
	install(t)
	run(t, "mkdir", mount)
	run(t, "truncate", "-s", "256M", image)
	if out, err := exec.Command("mkfs.ext4", "-q", image).CombinedOutput(); err != nil {
		t.Skipf("needs mkfs.ext4: %v %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", image, mount).CombinedOutput(); err != nil {
		t.Skipf("needs loop devices: %v %s", err, out)
	}
	t.Cleanup(func() { run(t, "umount", mount) })
	run(t, "chmod", "-R", "a+x", filepath.Dir(dir), dir, mount) // agents pass through
	h := startWith(t, impatient, fmt.Sprintf("state_dir = %q\n", mount+"/state"))
	started, pid := h.sessions(1, "sleep 1000"), mainPID(t)

	run(t, "fsfreeze", "--freeze", mount)
	thaw := func() { _ = exec.Command("fsfreeze", "--unfreeze", mount).Run() } // fails when it is not frozen
	defer thaw()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := make(chan error, 1)
	go func() { // ends with ctx
		_, err := h.Start(ctx, "late", rpc.StartRequest{Spec: &rpc.SessionSpec{Command: []string{"true"}}})
		asked <- err
	}()
	h.until("the watchdog", func() error {
		if log := h.journal(); !strings.Contains(log, "Watchdog timeout") {
			return fmt.Errorf("it has not bitten")
		}
		return nil
	})
	if log := h.journal(); !strings.Contains(log, "not answering the watchdog") {
		t.Errorf("the daemon does not say why:\n%s", log)
	}
	select {
	case err := <-asked:
		if err == nil {
			t.Error("a start was acknowledged while the journal hung")
		}
	case <-time.After(0):
	}
	thaw() // until then the kernel holds the daemon, even a killed one
	h.bitten(pid)
	h.adopted(started)
}
