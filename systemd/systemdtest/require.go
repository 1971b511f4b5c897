package systemdtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// boxEnv is set in the environment of what berth-box runs in a box.
const boxEnv = "BERTH_BOX"

// Require reports everything that this machine lacks for a box.
func Require() error {
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	if os.Getenv(boxEnv) != "" {
		missing = append(missing, "a machine that is no box itself")
	}
	if _, err := cgroupMount(); err != nil {
		missing = append(missing, "cgroup v2")
	}
	if _, err := os.Stat(systemdPath); err != nil {
		missing = append(missing, systemdPath+" (Debian: systemd)")
	}
	for program, pkg := range map[string]string{"systemctl": "systemd", "journalctl": "systemd", "dbus-daemon": "dbus"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program+" (Debian: "+pkg+")")
		}
	}
	if data, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(data), "\toverlay\n") {
		missing = append(missing, "overlayfs")
	}
	if len(missing) > 0 {
		return errors.New("a booted systemd for tests needs what is missing here: " + strings.Join(missing, ", "))
	}
	return nil
}

// Inside skips a test that is not run in a box.
func Inside(t testing.TB) {
	t.Helper()
	if os.Getenv(boxEnv) == "" {
		t.Skip("needs a booted systemd: make test-systemd")
	}
}

// Environ is this process's environment for a program in a box.
func Environ() []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "INVOCATION_ID", "JOURNAL_STREAM", "TMPDIR":
		default:
			env = append(env, v)
		}
	}
	return append(env, fmt.Sprintf("%s=%d", boxEnv, os.Getpid()))
}
