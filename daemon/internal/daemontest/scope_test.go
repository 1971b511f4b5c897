package daemontest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/cgroupfs"
	"github.com/berthd/berth/systemd/systemdtest"
	"golang.org/x/sys/unix"
)

// These tests run inside a booted systemd, see make test-systemd; none is
// parallel, since there is one slice.

// scoped makes a host whose sessions get scopes; its daemon runs.
func scoped(t *testing.T, leaves string) *Host {
	t.Helper()
	systemdtest.Inside(t)
	h := New(t, Options{Leaves: leaves, Config: quickTables()})
	t.Cleanup(func() { // before the host's end, which needs a daemon
		if !h.Running() {
			h.Start()
		}
		h.StopAll()
		h.Until("no scope is left", patience, func() error {
			if units := loaded(t); units != "" {
				return fmt.Errorf("units are %s", units)
			}
			return nil
		})
	})
	h.Start()
	return h
}

// loaded lists what systemd knows of scopes of ours.
func loaded(t *testing.T) string {
	t.Helper()
	return systemctl(t, "list-units", "--all", "--plain", "--no-legend", "berth-*.scope")
}

// systemctl runs it and returns what it prints.
func systemctl(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemctl", append([]string{"--no-pager"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// property is one of a unit's.
func property(t *testing.T, unit, name string) string {
	t.Helper()
	return systemctl(t, "show", unit, "--value", "-p", name)
}

// cgroupOf is the version 2 cgroup of a process.
func cgroupOf(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	path, _, err := cgroupfs.ParseProcCgroup(data)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// inScope checks that a session is in the scope of its generation.
func (h *Host) inScope(t *testing.T, s rpc.StartReply) string {
	t.Helper()
	unit := cgroupfs.ScopeName(s.Session, s.Generation)
	path := "/berth.slice/" + unit
	for pid, want := range map[int]string{s.PID: path + "/wrap", s.AgentPID: path + "/work"} {
		if at := cgroupOf(t, pid); at != want {
			t.Errorf("process %d of %s is in %s, not in %s", pid, s.Session, at, want)
		}
	}
	for name, want := range map[string]string{
		"ActiveState": "active", "Slice": "berth.slice", "ControlGroup": path, "Delegate": "yes", "Transient": "yes",
		"Description": fmt.Sprintf("berth session %s, generation %d", s.Session, s.Generation),
	} {
		if got := property(t, unit, name); got != want {
			t.Errorf("%s of %s is %q, not %q", name, unit, got, want)
		}
	}
	return unit
}

// statusOf is what berthctl shows of leaves.
func (h *Host) leaves(t *testing.T) (kind, reason string) {
	t.Helper()
	s, err := h.Client.Status(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	return s.Leaves, s.LeavesReason
}

// TestScope: a session has a scope of its own, which is gone with it, and one
// of another name the next time. case T52
func TestScope(t *testing.T) {
	h := scoped(t, "scope")
	defer h.sample(t)()
	if kind, reason := h.leaves(t); kind != "scope" || reason != "" {
		t.Fatalf("leaves are %s: %s", kind, reason)
	}
	for generation := range uint64(3) {
		s := h.mustStart(t, "web-1", shell("sleep 1000 & wait"))
		if s.Generation != generation+1 {
			t.Errorf("generation %d follows %d", s.Generation, generation)
		}
		unit := h.inScope(t, s)
		if status := systemctl(t, "status", unit); !strings.Contains(status, "sleep 1000") {
			t.Errorf("systemctl status shows\n%s", status)
		}
		h.mustStop(t, "web-1")
		h.Until("the scope is gone", patience, func() error {
			if units := loaded(t); units != "" {
				return fmt.Errorf("units are %s", units)
			}
			return nil
		})
		if _, err := os.Stat(filepath.Join(h.Slice(), unit)); !os.IsNotExist(err) {
			t.Errorf("its directory: %v", err)
		}
	}
	if code, out := h.ctl(t, "status"); code != 0 || !strings.Contains(out, "scope") {
		t.Errorf("berthctl status: %d\n%s", code, out)
	}
}

// TestScopeNames: whatever a session may be called, systemd takes for a unit.
func TestScopeNames(t *testing.T) {
	h := scoped(t, "scope")
	for _, id := range []string{
		"a", "9", "A.b_c-d", "x-g3", "a.scope", "b.service", "c.slice-g1.scope", "d--e..f__", "e-", strings.Repeat("n", 128),
	} {
		h.inScope(t, h.mustStart(t, id, shell("exec sleep 1000")))
		h.mustStop(t, id)
		h.mustDelete(t, id)
	}
}

// TestScopeEnds: a session that ends by itself takes its scope along.
func TestScopeEnds(t *testing.T) {
	h := scoped(t, "scope")
	for range 10 {
		h.mustStart(t, "s", shell("sleep 0.05; exit 3"))
		if s := h.untilVacant(t, "s"); s.Exit == nil || s.Exit.Kind != "code" || s.Exit.Code != 3 {
			t.Errorf("it has ended as %+v", s.Exit)
		}
	}
}

// TestScopeOutlivesDaemon: neither the daemon's end nor what systemd does to
// itself touches a session. case T52, J3, J5, A3, A11
func TestScopeOutlivesDaemon(t *testing.T) {
	h := scoped(t, "scope")
	s := h.mustStart(t, "s", shell("while read l; do echo got $l; done"))
	unit := h.inScope(t, s)
	for what, do := range map[string]func(){
		"killed":        func() { h.Kill(); h.Start() },
		"stopped":       func() { h.Stop(); h.Start() },
		"daemon-reload": func() { systemctl(t, "daemon-reload") },
		"daemon-reexec": func() { systemctl(t, "daemon-reexec") },
	} {
		do()
		h.untilAdopted(t, s)
		if again := h.inScope(t, s); again != unit {
			t.Errorf("%s: the scope was %s and is %s", what, unit, again)
		}
		// What PID 1 has ended is made again for the next scope.
		other := h.mustStart(t, "other", shell("exec sleep 1000"))
		h.inScope(t, other)
		h.mustStop(t, "other")
	}
	h.send(t, "s", rpc.SendRequest{Data: []byte("hello\n")}) // case J6
	h.untilOutput(t, "s", "got hello")
}

// TestScopeStoppedByOperator: an operator's systemctl ends a session, and berth
// says how it ended.
func TestScopeStoppedByOperator(t *testing.T) {
	for _, c := range []struct {
		name, script string
		do           func(t *testing.T, unit string)
		kind         string
		signal       unix.Signal
	}{
		{"stop", "exec sleep 1000", func(t *testing.T, unit string) { systemctl(t, "stop", unit) }, "signal", unix.SIGTERM},
		{"kill", "exec sleep 1000", func(t *testing.T, unit string) { systemctl(t, "kill", unit) }, "signal", unix.SIGTERM},
		{"kill -s KILL", "exec sleep 1000", func(t *testing.T, unit string) { systemctl(t, "kill", "-s", "KILL", unit) }, "unknown", 0},
		{"stop, stubborn", stubborn, func(t *testing.T, unit string) { systemctl(t, "stop", unit) }, "unknown", 0},
		{"stop of the slice", "exec sleep 1000", func(t *testing.T, _ string) { systemctl(t, "stop", "berth.slice") }, "signal", unix.SIGTERM},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := scoped(t, "auto")
			unit := h.inScope(t, h.mustStart(t, "s", shell(c.script)))
			c.do(t, unit)
			s := h.untilVacant(t, "s")
			if s.Exit == nil || s.Exit.Kind != c.kind || s.Exit.Signal != int(c.signal) {
				t.Errorf("it has ended as %+v", s.Exit)
			}
			h.untilScopes(t)
			h.inScope(t, h.mustStart(t, "s", shell(c.script)))
			h.mustStop(t, "s")
			h.mustDelete(t, "s")
		})
	}
}

// untilScopes waits until scopes are to be had.
func (h *Host) untilScopes(t *testing.T) {
	t.Helper()
	h.Until("there are scopes", patience, func() error {
		if kind, reason := h.leaves(t); kind != "scope" {
			return fmt.Errorf("leaves are %s: %s", kind, reason)
		}
		return nil
	})
}

// TestScopeStoppedMeanwhile: the same while no daemon runs.
func TestScopeStoppedMeanwhile(t *testing.T) {
	h := scoped(t, "auto")
	unit := h.inScope(t, h.mustStart(t, "one", shell("exec sleep 1000")))
	h.inScope(t, h.mustStart(t, "two", shell("exec sleep 1000")))
	h.Kill()
	systemctl(t, "stop", unit)
	systemctl(t, "stop", "berth.slice")
	h.Start()
	for _, id := range []string{"one", "two"} {
		if s := h.untilVacant(t, id); s.Exit == nil || s.Exit.Kind != "signal" || s.Exit.Signal != int(unix.SIGTERM) {
			t.Errorf("%s has ended as %+v", id, s.Exit)
		}
		h.inScope(t, h.mustStart(t, id, shell("exec sleep 1000")))
	}
}

// TestScopeFrozen: a scope that an operator has frozen can be
// stopped.
func TestScopeFrozen(t *testing.T) {
	h := scoped(t, "scope")
	unit := h.inScope(t, h.mustStart(t, "s", shell("exec sleep 1000")))
	systemctl(t, "freeze", unit)
	h.mustStop(t, "s")
}

// TestScopeProperties: limits of the session are properties of its scope, a
// drop-in for all scopes counts, and so does what an operator sets later; the
// session goes on.
func TestScopeProperties(t *testing.T) {
	h := scoped(t, "scope")
	spec := shell("sleep 1000 & wait")
	spec.Limits = rpc.Limits{Processes: 200, MemoryBytes: 1 << 30, CPUPercent: 150}
	if _, err := h.Client.Start(bounded(t), "limited", rpc.StartRequest{Spec: spec}); err == nil {
		unit := h.inScope(t, rpc.StartReply{Session: "limited", Generation: 1, PID: h.mustGet(t, "limited").PID, AgentPID: h.mustGet(t, "limited").AgentPID})
		for name, want := range map[string]string{"TasksMax": "264", "MemoryMax": fmt.Sprint(1<<30 + 64<<20), "CPUQuotaPerSecUSec": "1.500000s"} {
			if got := property(t, unit, name); got != want {
				t.Errorf("%s is %s, not %s", name, got, want)
			}
		}
	} else {
		refused(t, err, rpc.CodeCapability) // this host has no such controllers
	}

	const dropIn = "/etc/systemd/system/berth-.scope.d/50-test.conf"
	if err := os.MkdirAll(filepath.Dir(dropIn), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dropIn, []byte("[Scope]\nTasksMax=77\nMemoryHigh=300M\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		os.RemoveAll(filepath.Dir(dropIn))
		systemctl(t, "daemon-reload")
	})
	systemctl(t, "daemon-reload")
	s := h.mustStart(t, "web-1", shell("sleep 1000 & wait"))
	unit := h.inScope(t, s)
	if tasks, memory := property(t, unit, "TasksMax"), property(t, unit, "MemoryHigh"); tasks != "77" || memory != fmt.Sprint(300<<20) {
		t.Errorf("with a drop-in TasksMax is %s, MemoryHigh %s", tasks, memory)
	}
	systemctl(t, "set-property", "--runtime", unit, "TasksMax=55", "CPUWeight=50")
	if tasks, weight := property(t, unit, "TasksMax"), property(t, unit, "CPUWeight"); tasks != "55" || weight != "50" {
		t.Errorf("after set-property TasksMax is %s, CPUWeight %s", tasks, weight)
	}
	h.untilAdopted(t, s)
	h.inScope(t, s)
	top, err := exec.Command("systemd-cgtop", "--batch", "--iterations=1", "--depth=5", "berth.slice").CombinedOutput()
	if err != nil || !strings.Contains(string(top), unit) {
		t.Errorf("systemd-cgtop: %v\n%s", err, top)
	}
	h.mustStop(t, "web-1")
}
