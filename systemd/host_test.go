package systemd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/client"
	"github.com/berthd/berth/systemd/systemdtest"
)

// patience bounds every wait of these tests.
const patience = 60 * time.Second

// settings is the configuration of the service under test.
const settings = `[sessions]
default_owner = "nobody"
reserve_bytes = 0
reserve_inodes = 0
grace = "300ms"
[stop]
delays = ["50ms", "100ms", "200ms"]
[capacity]
low_bytes = 16777216
low_percent = 0
low_inode_percent = 0
`

// host is berthd, installed in the box as a package does it, and running.
type host struct {
	*client.Client
	t     *testing.T
	since string // a cursor of the system's journal, from before the start
}

// installed are what a test finds in the box, and where from.
func installed(bin string) map[string]string {
	return map[string]string{
		"/usr/sbin/berthd": bin + "/berthd", "/usr/bin/berthctl": bin + "/berthctl",
		"/usr/libexec/berth/berth-wrap":                  bin + "/berth-wrap",
		"/usr/libexec/berth/berth-workspace":             bin + "/berth-workspace",
		"/usr/libexec/berth/berth-sandbox-process":       bin + "/berth-sandbox-process",
		"/usr/lib/systemd/system/berthd.service":         "berthd.service",
		"/usr/lib/systemd/system/berthd.socket":          "berthd.socket",
		"/usr/lib/systemd/system/berth.slice":            "berth.slice",
		"/usr/lib/sysusers.d/berth.conf":                 "berth.sysusers",
		"/usr/lib/tmpfiles.d/berth.conf":                 "berth.tmpfiles",
		"/usr/lib/systemd/system-preset/50-berth.preset": "50-berth.preset",
	}
}

// install installs the programs and units in the box, once.
func install(t *testing.T) {
	t.Helper()
	systemdtest.Inside(t)
	bin := os.Getenv("BERTH_TEST_BIN")
	if bin == "" {
		t.Skip("needs the programs in BERTH_TEST_BIN: make test-systemd")
	}
	for to, from := range installed(bin) {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, data) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if strings.HasPrefix(from, bin) {
			mode = 0o755
		}
		if err := os.WriteFile(to, data, mode); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "systemd-sysusers")
	run(t, "systemd-tmpfiles", "--create", "berth.conf")
	run(t, "systemctl", "daemon-reload")
}

// start installs berth and starts it with drop-in lines for the service, ""
// for none, and the usual settings. At the end of the test all of it is gone.
func start(t *testing.T, dropIn string) *host {
	t.Helper()
	return startWith(t, dropIn, "")
}

// startWith is start with further lines in front of the configuration.
func startWith(t *testing.T, dropIn, config string) *host {
	t.Helper()
	install(t)
	h := &host{Client: client.New("/run/berth/berth.sock"), t: t, since: cursor(t)}
	t.Cleanup(h.end)
	h.write("/etc/berth/berthd.toml", config+settings)
	h.write("/run/systemd/system/berthd.service.d/test.conf", "[Service]\nRestartSec=50ms\n"+dropIn)
	run(t, "systemctl", "daemon-reload")
	run(t, "systemctl", "start", "berthd.service")
	return h
}

func (h *host) write(path, text string) {
	h.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		h.t.Fatal(err)
	}
}

// end stops every session and the daemon, and proves that nothing is left.
func (h *host) end() {
	t := h.t
	h.until("the end of all sessions", func() error {
		list, err := h.List(context.Background())
		if err != nil {
			_ = exec.Command("systemctl", "reset-failed", "berthd.service").Run() // a test may have left it failed
			_ = exec.Command("systemctl", "start", "berthd.service").Run()        // tried again
			return err
		}
		for _, s := range list.Sessions {
			if s.State != "vacant" {
				err = errors.Join(err, fmt.Errorf("%s is %s: %s", s.Session, s.State, s.Problem))
				_, _ = h.Stop(context.Background(), s.Session, rpc.StopRequest{}) // looked at again
			}
		}
		return err
	})
	run(t, "systemctl", "stop", "berthd.socket", "berthd.service")
	if out, _ := exec.Command("pgrep", "-a", "berth").Output(); len(out) > 0 && !bytes.Contains(out, []byte("berth-box")) {
		t.Errorf("processes are left:\n%s", out)
	}
	if log := h.journal(); strings.Contains(log, "left-over process") || strings.Contains(log, "panic:") {
		t.Errorf("the journal says\n%s", log)
	}
	if t.Failed() {
		t.Logf("the journal of the test:\n%s", h.journal())
	}
	for _, path := range []string{"/var/lib/berth", "/etc/berth", "/run/systemd/system/berthd.service.d"} {
		if err := os.RemoveAll(path); err != nil {
			t.Error(err)
		}
	}
	_ = exec.Command("systemctl", "reset-failed").Run() // nothing may have failed
	run(t, "systemctl", "daemon-reload")
}

// run runs a program and returns what it prints.
func run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// show is a property of the service.
func show(t *testing.T, property string) string {
	t.Helper()
	return run(t, "systemctl", "show", "-P", property, "berthd.service")
}

// cursor is the newest entry of the system's journal.
func cursor(t *testing.T) string {
	t.Helper()
	run(t, "journalctl", "--sync")
	_, c, ok := strings.Cut(run(t, "journalctl", "-q", "-n1", "--show-cursor", "-o", "cat"), "-- cursor: ")
	if !ok {
		t.Fatal("the system's journal is empty")
	}
	return c
}

// journal is everything that was logged since the start, for people.
func (h *host) journal() string {
	run(h.t, "journalctl", "--sync")
	return run(h.t, "journalctl", "-q", "--after-cursor", h.since, "-o", "short-precise")
}

// until polls until f succeeds.
func (h *host) until(what string, f func() error) {
	h.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { // the poll's period
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("waiting for %s: %v\n%s", what, err, h.journal())
		}
	}
}

// sessions starts n sessions that run a script, and returns what was started.
func (h *host) sessions(n int, script string) []rpc.StartReply {
	h.t.Helper()
	var started []rpc.StartReply
	for i := range n {
		id := fmt.Sprintf("s%d", i)
		reply, err := h.Start(h.t.Context(), id, rpc.StartRequest{Spec: &rpc.SessionSpec{Command: []string{"sh", "-c", script}}})
		if err != nil {
			h.t.Fatalf("starting %s: %v\n%s", id, err, h.journal())
		}
		started = append(started, reply)
	}
	return started
}

// adopted waits until the daemon has every session again, and compares: the
// same wrapper, the same agent, the same generation.
func (h *host) adopted(started []rpc.StartReply) {
	h.t.Helper()
	for _, want := range started {
		h.until(want.Session+" to be adopted", func() error {
			got, err := h.Get(context.Background(), want.Session)
			switch {
			case err != nil:
				return err
			case got.PID != want.PID || got.AgentPID != want.AgentPID || got.Instance != want.Instance || got.Generation != want.Generation:
				h.t.Fatalf("%s was %+v and is %+v", want.Session, want, got)
			case got.State != "active" || got.Link != "up":
				return fmt.Errorf("it is %s, link %s", got.State, got.Link)
			}
			return nil
		})
	}
}

// environ is the environment of a process, as names and values.
func environ(t *testing.T, pid int) []string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == 0 })
}

// cgroupOf is a process's place in the unified tree.
func cgroupOf(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(path)
		}
	}
	return ""
}

// children are the processes whose parent is pid.
func children(t *testing.T, pid int) []int {
	t.Helper()
	out, err := exec.Command("pgrep", "-P", fmt.Sprint(pid)).Output()
	if err != nil {
		return nil
	}
	var pids []int
	for _, f := range strings.Fields(string(out)) {
		var n int
		if _, err := fmt.Sscan(f, &n); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}

// output is what a session's agent has printed.
func (h *host) output(id string) string {
	h.t.Helper()
	var b strings.Builder
	for r, err := range h.Logs(h.t.Context(), id, rpc.LogsQuery{}) {
		if err != nil && !errors.Is(err, io.EOF) {
			h.t.Fatal(err)
		}
		b.Write(r.Data)
	}
	return b.String()
}
