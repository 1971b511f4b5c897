package smoke

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
)

// bound is how long anything may take that is waited for.
const bound = 60 * time.Second

// sh runs a script, and fails the test if the script fails.
func sh(t *testing.T, script string) string {
	t.Helper()
	out, err := try(script)
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// try runs a script and returns everything that it printed.
func try(script string) (string, error) {
	cmd := exec.Command("sh", "-euc", script)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "PAGER=cat")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// wait polls until ok, and fails the test with what it says if that never is.
func wait(t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(bound); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		done, state := ok()
		if done {
			return
		}
		last = state
	}
	t.Fatalf("waiting for %s: %s", what, last)
}

// waitReady waits for a daemon that answers and has settled all sessions.
func waitReady(t *testing.T) {
	t.Helper()
	wait(t, "berthd", func() (bool, string) {
		out, err := try("berthctl status")
		return err == nil && strings.Contains(out, "ready\n"), out
	})
}

// sessions asks the daemon for all sessions.
func sessions(t *testing.T) map[string]rpc.Session {
	t.Helper()
	var reply rpc.ListReply
	if err := json.Unmarshal([]byte(sh(t, "berthctl list -o json")), &reply); err != nil {
		t.Fatal(err)
	}
	all := map[string]rpc.Session{}
	for _, s := range reply.Sessions {
		all[s.Session] = s
	}
	return all
}

// identity is what an upgrade must not change of a session.
func identity(s rpc.Session) string {
	return fmt.Sprintf("wrapper %d agent %d instance %s generation %d state %s", s.PID, s.AgentPID, s.Instance, s.Generation, s.State)
}

// daemonPID is berthd's, as systemd knows it.
func daemonPID(t *testing.T) string {
	t.Helper()
	pid := sh(t, "systemctl show -P MainPID berthd.service")
	if pid == "0" {
		t.Fatalf("berthd does not run\n%s", sh(t, "journalctl -b -u berthd --no-pager | tail -n 30"))
	}
	return pid
}

// lines are the numbers that a counting session has printed, checked to be
// 1, 2, 3 and so on without a gap.
func lines(t *testing.T, session string) int {
	t.Helper()
	n := 0
	for line := range strings.Lines(sh(t, "berthctl logs "+session)) {
		n++
		if got, err := strconv.Atoi(strings.TrimSpace(line)); err != nil || got != n {
			t.Fatalf("%s: line %d is %q", session, n, line)
		}
	}
	return n
}

// built finds the one package that matches, below the directory of the built ones.
func built(t *testing.T, pattern string) string {
	t.Helper()
	dir := os.Getenv("BERTH_TEST_BIN")
	if dir == "" {
		t.Skip("needs the built packages: make test-systemd")
	}
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found[0]
}
