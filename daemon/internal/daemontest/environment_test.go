package daemontest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEnvironment: a secret in the daemon's environment, and what a service
// manager leaves there, reaches no wrapper, agent or provider, by environment,
// command line or file; an agent has what it asked for and its markers.
// case H1, H2, H3, T53, T58
func TestEnvironment(t *testing.T) {
	t.Parallel()
	const canary = "canary-7b1d4c0e"
	h := New(t, Options{Config: quickTables(), Env: []string{
		"API_TOKEN=" + canary, "NOTIFY_SOCKET=/run/" + canary, "WATCHDOG_USEC=1000000", "WATCHDOG_PID=1",
		"LISTEN_FDS=3", "LISTEN_PID=1", "LISTEN_FDNAMES=" + canary, "CREDENTIALS_DIRECTORY=/run/" + canary,
		"LD_PRELOAD_" + canary + "=x",
	}})
	h.Start()
	spec := shell("exec sleep 1000")
	spec.Env = []string{"ASKED=yes", "PATH=/usr/bin:/bin"}
	s := h.mustStart(t, "s", spec)
	plugin := h.pluginOf(t)
	if !strings.Contains(strings.Join(environ(t, h.PID()), " "), canary) {
		t.Fatal("the daemon itself has no canary")
	}
	procs, err := h.Marked()
	if err != nil || !slices.Contains(procs, s.PID) || !slices.Contains(procs, s.AgentPID) || !slices.Contains(procs, plugin.pid) {
		t.Fatalf("marked %v, %v; want %d, %d and %d", procs, err, s.PID, s.AgentPID, plugin.pid)
	}
	for _, pid := range procs {
		checkClean(t, pid, canary)
	}
	for _, e := range environ(t, s.PID) {
		if !slices.Contains(append(h.markersOf(s), "GOMAXPROCS=1", "GOGC=20", "GOMEMLIMIT=16MiB"), e) {
			t.Errorf("the wrapper has %s", e)
		}
	}
	env := environ(t, s.AgentPID)
	for _, want := range append(h.markersOf(s), "ASKED=yes", "PATH=/usr/bin:/bin") {
		if !slices.Contains(env, want) {
			t.Errorf("the agent has no %s: %v", want, env)
		}
	}
	h.hasThreeDescriptors(t, s.AgentPID)
	e, err := h.Client.Explain(bounded(t), "s")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(e.Spec.Env, " "); got != "ASKED=<hidden> PATH=<hidden>" {
		t.Errorf("explain shows the environment %q", got)
	}
	h.Kill()
	for _, dir := range []string{h.State, h.Run} {
		if path := find(t, dir, canary); path != "" {
			t.Errorf("%s has the canary", path)
		}
	}
	if strings.Contains(h.Log(), canary) {
		t.Errorf("the log has the canary:\n%s", h.Log())
	}
	h.Start()
}

// checkClean looks for the canary, and for what a service manager leaves, in
// what a process was started with.
func checkClean(t *testing.T, pid int, canary string) {
	t.Helper()
	env := environ(t, pid)
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(env, " ") + string(line); strings.Contains(text, canary) {
		t.Errorf("process %d has the canary: %s", pid, text)
	}
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if slices.Contains([]string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"}, name) {
			t.Errorf("process %d has %s", pid, e)
		}
	}
}

// find returns a file below dir that contains text, "" when there is none.
func find(t *testing.T, dir, text string) string {
	t.Helper()
	found := ""
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(text)) {
			found = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestToken: the secret that proves a wrapper is in no environment, command
// line, log or file. case H2
func TestToken(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := running(t, "")
	s := h.mustStart(t, "s", shell("exec sleep 1000"))
	e, err := h.Client.Explain(bounded(t), "s")
	if err != nil {
		t.Fatal(err)
	}
	// Only the wrapper knows it; what it shows of itself is what anybody could know.
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.PID))
	if err != nil || strings.Count(string(data), "\x00") != 1 {
		t.Errorf("the wrapper's command line is %q, %v", data, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("%s/sessions/s/g%d/status.json", h.State, s.Generation))
	if err != nil || bytes.Contains(status, []byte("token")) {
		t.Errorf("status.json: %s, %v", status, err)
	}
	if text := fmt.Sprintf("%+v", e); strings.Contains(text, "token") {
		t.Errorf("explain tells of a token: %s", text)
	}
}
