package systemd

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// low is the low mark of the workspaces' root, a setting that can be seen.
func (h *host) low() uint64 {
	h.t.Helper()
	reply, err := h.Capacity(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return reply.Roots[0].LowBytes
}

// TestReload: a good configuration is taken over without disturbing anything,
// and what cannot change while the daemon runs is refused by name.
func TestReload(t *testing.T) {
	h := start(t, "")
	started, pid := h.sessions(1, "sleep 1000"), mainPID(t)
	if h.low() != 16777216 {
		t.Fatalf("the low mark is %d", h.low())
	}
	h.write("/etc/berth/berthd.toml", "state_dir = \"/elsewhere\"\n"+strings.Replace(settings, "16777216", "33554432", 1)+"[log]\nlevel = \"debug\"\n")
	run(t, "systemctl", "reload", "berthd.service")
	h.until("the new low mark", func() error {
		if low := h.low(); low != 33554432 {
			return fmt.Errorf("it is %d", low)
		}
		return nil
	})
	h.until("the status line", func() error {
		if line := show(t, "StatusText"); line != "needs a restart: state_dir; sessions: 1 active" {
			return fmt.Errorf("it is %q", line)
		}
		return nil
	})
	if show(t, "ActiveState") != "active" || mainPID(t) != pid {
		t.Errorf("after the reload the service is %s, process %d, was %d", show(t, "ActiveState"), mainPID(t), pid)
	}
	h.adopted(started)
	h.write("/etc/berth/berthd.toml", settings)
	run(t, "systemctl", "reload", "berthd.service")
	h.until("the old low mark", func() error {
		if low, line := h.low(), show(t, "StatusText"); low != 16777216 || line != "sessions: 1 active" {
			return fmt.Errorf("it is %d, %q", low, line)
		}
		return nil
	})
}

// TestBadReload: a mistake fails the operator's command and is named with its
// line; the daemon goes on with what it has, also when it is asked directly.
func TestBadReload(t *testing.T) {
	h := start(t, "")
	started, pid := h.sessions(1, "sleep 1000"), mainPID(t)
	bad := strings.Replace(settings, "grace = \"300ms\"", "grcae = \"300ms\"", 1)
	h.write("/etc/berth/berthd.toml", strings.Replace(bad, "16777216", "33554432", 1))
	const mistake = `line 5: unknown key "sessions.grcae"`
	if out, err := exec.Command("systemctl", "reload", "berthd.service").CombinedOutput(); err == nil {
		t.Errorf("the reload succeeds: %s", out)
	}
	if log := h.journal(); !strings.Contains(log, mistake) {
		t.Errorf("the journal does not have %q:\n%s", mistake, log)
	}
	if line := show(t, "StatusText"); strings.Contains(line, "reloaded") { // not disturbed
		t.Errorf("the status line is %q", line)
	}
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	h.until("the status line", func() error {
		if line := show(t, "StatusText"); !strings.HasPrefix(line, "not reloaded: ") || !strings.Contains(line, mistake) {
			return fmt.Errorf("it is %q", line)
		}
		return nil
	})
	if h.low() != 16777216 {
		t.Errorf("the low mark is %d: a part of the bad configuration counts", h.low())
	}
	h.adopted(started)
	if mainPID(t) != pid {
		t.Errorf("the daemon is process %d, was %d", mainPID(t), pid)
	}
	h.write("/etc/berth/berthd.toml", settings)
}

// TestBadStart: a mistake at the start is not tried again and again.
func TestBadStart(t *testing.T) {
	h := start(t, "")
	run(t, "systemctl", "stop", "berthd.socket", "berthd.service")
	h.write("/etc/berth/berthd.toml", "nonsense = 1\n")
	if err := exec.Command("systemctl", "start", "berthd.service").Run(); err == nil {
		t.Error("the start succeeds")
	}
	if got := show(t, "ExecMainStatus") + " " + show(t, "NRestarts"); got != "78 0" {
		t.Errorf("exit status and restarts are %s, want 78 0", got)
	}
	h.write("/etc/berth/berthd.toml", settings)
}
