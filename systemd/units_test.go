package systemd

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berthd/berth/systemd/systemdtest"
)

// TestInside: these tests see a systemd that has booted well.
func TestInside(t *testing.T) {
	systemdtest.Inside(t)
	if comm, err := os.ReadFile("/proc/1/comm"); err != nil || string(comm) != "systemd\n" {
		t.Errorf("PID 1 is %q, %v", comm, err)
	}
	if state := run(t, "systemctl", "is-system-running"); state != "running" {
		t.Errorf("the system is %s\n%s", state, run(t, "systemctl", "--failed", "--no-pager"))
	}
}

// TestVerify: systemd finds nothing to say about the units.
func TestVerify(t *testing.T) {
	install(t)
	if _, err := exec.LookPath("man"); err != nil {
		t.Log("man is missing: Documentation= is not looked at")
	}
	out := run(t, "systemd-analyze", "verify", "--man=no", "berthd.service", "berthd.socket", "berth.slice")
	if out != "" {
		t.Errorf("systemd-analyze verify says:\n%s", out)
	}
	for _, unit := range []string{"berthd.service", "berthd.socket", "berth.slice"} {
		if state := run(t, "systemctl", "show", "-P", "LoadState", unit); state != "loaded" {
			t.Errorf("%s is %s", unit, state)
		}
	}
}

// TestSecurity records what "systemd-analyze security" thinks of the daemon.
// What is left open is what agents need, see the unit; a change is a decision.
func TestSecurity(t *testing.T) {
	install(t)
	const recorded = "→ Overall exposure level for berthd.service: 8.6 EXPOSED"
	out := run(t, "systemd-analyze", "security", "--no-pager", "berthd.service")
	lines := strings.Split(out, "\n")
	got := strings.TrimSpace(strings.TrimRight(lines[len(lines)-1], "🙁🙂😀😐😨😃 "))
	if version, _, _ := strings.Cut(run(t, "systemctl", "--version"), " ("); version != "systemd 252" {
		t.Skipf("the level is recorded for systemd 252, %s says %q", version, got)
	}
	if got != recorded {
		t.Errorf("got %q, recorded is %q\n%s", got, recorded, out)
	}
}

// TestPreset: a package's preset switches both units on, and the group exists.
func TestPreset(t *testing.T) {
	install(t)
	run(t, "systemctl", "preset", "berthd.service", "berthd.socket")
	defer run(t, "systemctl", "disable", "-q", "berthd.service", "berthd.socket")
	for _, unit := range []string{"berthd.service", "berthd.socket"} {
		if state := run(t, "systemctl", "is-enabled", unit); state != "enabled" {
			t.Errorf("%s is %s", unit, state)
		}
	}
	if group := run(t, "getent", "group", "berth"); !strings.HasPrefix(group, "berth:") {
		t.Errorf("the group is %q", group)
	}
}
