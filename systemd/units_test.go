package systemd

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berthd/berth/systemd/systemdtest"
)

// run runs a program and returns what it prints.
func run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

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
