package daemontest

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// TestStoppedWrappers: after a kill of the daemon every session is listed at
// once, every wrapper that can is adopted, with its pid and generation, and
// those that somebody has stopped hold up nobody: they are unknown and
// untouched within the reconnect window and unhealthy after it.
// case T48, T49, A1, A2, A16
func TestStoppedWrappers(t *testing.T) {
	t.Parallel()
	needFence(t)
	const n, stopped, window = 12, 3, 6 * time.Second
	h := running(t, fmt.Sprintf("[wrapper]\nreconnect_window = %q\n", window))
	var started []rpc.StartReply
	var wrappers, agents []process
	for i := range n {
		s := h.mustStart(t, fmt.Sprintf("s%d", i), &rpc.SessionSpec{Command: []string{"sleep", "1000"}})
		started = append(started, s)
		wrappers, agents = append(wrappers, hold(t, s.PID)), append(agents, hold(t, s.AgentPID))
	}
	for _, w := range wrappers[:stopped+1] {
		h.halt(t, w)
	}
	h.Kill()
	h.Start()
	list, err := h.Client.List(bounded(t))
	if err != nil || len(list.Sessions) != n {
		t.Fatalf("the first answer lists %d sessions of %d, %v", len(list.Sessions), n, err)
	}
	for _, s := range started[stopped+1:] {
		h.untilAdopted(t, s)
	}
	for i, s := range started[:stopped+1] {
		got := h.until(t, s.Session, "is unknown", func(s rpc.Session) bool { return s.Adoption == "unknown" })
		if got.State != "active" || got.PID != s.PID || got.Problem == "" || !wrappers[i].alive() || !agents[i].alive() {
			t.Errorf("%s was stopped and is %+v", s.Session, got)
		}
		_, err := h.Client.Start(bounded(t), s.Session, rpc.StartRequest{Spec: &rpc.SessionSpec{Command: []string{"sleep", "1000"}}})
		refused(t, err, rpc.CodeReconciling)
	}
	wrappers[stopped].signal(t, unix.SIGCONT) // one comes back in time
	h.untilAdopted(t, started[stopped])
	status, err := h.Client.Status(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range started[:stopped] {
		h.unhealthy(t, s, status.StartedAt.Add(window))
		h.untilDead(t, wrappers[i])
		h.untilDead(t, agents[i])
	}
	for i, s := range started[stopped:] {
		h.untilAdopted(t, s)
		if !wrappers[stopped+i].alive() || !agents[stopped+i].alive() {
			t.Errorf("%s is not what it was", s.Session)
		}
	}
}

// unhealthy waits until a session was stopped for its silence, not before the
// end of the window.
func (h *Host) unhealthy(t *testing.T, s rpc.StartReply, end time.Time) {
	t.Helper()
	got := h.untilVacant(t, s.Session)
	if got.Exit == nil || got.Exit.Reason != "unhealthy" || got.Exit.Generation != s.Generation || got.Exit.Kind == "code" {
		t.Errorf("%s ended as %+v", s.Session, got.Exit)
	}
	for _, e := range h.eventsOf(t, s.Session) {
		if e.Reason == "unhealthy" && e.At.Before(end) {
			t.Errorf("%s was stopped %s before the end of the window: %+v", s.Session, end.Sub(e.At), e)
		}
	}
}

// TestRestartWorks: after a restart the session does what it did before, to the
// end: input, output, exit code. case J6, A3, G6
func TestRestartWorks(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	started := h.mustStart(t, "s", shell(`while read line; do case $line in quit) exit 7;; *) echo "got $line";; esac; done`))
	for i := range 3 {
		data := fmt.Appendf(nil, "line %d\n", i)
		if _, err := h.Client.Send(bounded(t), "s", rpc.SendRequest{Message: strconv.Itoa(i), Data: data}); err != nil {
			t.Fatal(err)
		}
		h.untilOutput(t, "s", fmt.Sprintf("got line %d\n", i))
		h.Kill()
		h.Start()
		h.untilAdopted(t, started)
	}
	if _, err := h.Client.Send(bounded(t), "s", rpc.SendRequest{Data: []byte("quit\n")}); err != nil {
		t.Fatal(err)
	}
	if s := h.untilVacant(t, "s"); s.Exit.Kind != "code" || s.Exit.Code != 7 {
		t.Errorf("exit is %+v", s.Exit)
	}
	if out := h.output(t, "s", 0); out != "got line 0\ngot line 1\ngot line 2\n" {
		t.Errorf("output is %q", out)
	}
}

// TestStopLeavesWrappers: an ordinary end of the daemon ends no session.
// case A11, J4
func TestStopLeavesWrappers(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	started := h.mustStart(t, "s", shell("sleep 1000"))
	h.Stop()
	if !hold(t, started.PID).alive() || !hold(t, started.AgentPID).alive() {
		t.Error("the daemon's end took the session along")
	}
	h.Start()
	h.untilAdopted(t, started)
}

// TestRuntimeDirectoryWiped: the sockets' directory is gone, with the daemon
// down and with it up; wrappers are adopted all the same. case T47
func TestRuntimeDirectoryWiped(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	started := h.mustStart(t, "s", shell("sleep 1000"))
	h.Kill()
	if err := os.RemoveAll(h.Run); err != nil {
		t.Fatal(err)
	}
	h.Start()
	h.untilAdopted(t, started)
	if err := os.RemoveAll(h.Run); err != nil {
		t.Fatal(err)
	}
	h.Kill()
	h.Start()
	h.untilAdopted(t, started)
}

// TestRebootedLease: a lease of another boot is of dead processes. How an agent
// ended that was told to by the shutdown, or before, is in its exit record; of
// another nothing is known. case T47, C8
func TestRebootedLease(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	before := map[string]rpc.Session{}
	for _, id := range []string{"recorded", "lost"} {
		h.mustStart(t, id, shell("exit 7"))
		before[id] = h.untilVacant(t, id)
	}
	h.Kill()
	if err := os.Remove(h.State + "/sessions/lost/g1/exit.json"); err != nil {
		t.Fatal(err)
	}
	const boot = "00000000-1111-2222-3333-444444444444"
	for id := range before {
		h.doctor(t, id, func(l *leaseRecord) {
			l.State, l.Instance, l.Generation, l.Epoch = "active", l.Exit.Instance, l.Exit.Generation, boot+":1"
			l.Wrapper.PID, l.Wrapper.StartTicks, l.Wrapper.BootID, l.Wrapper.PidfdInode = os.Getpid(), 1, boot, 0
			l.Exit = nil
		})
	}
	h.doctorHost(t, func(host *hostRecord) { host.Epoch = boot + ":1" })
	h.Start()
	for id, was := range before {
		s := h.untilVacant(t, id)
		known := s.Exit != nil && s.Exit.Kind == "code" && s.Exit.Code == 7
		unknown := s.Exit != nil && s.Exit.Kind == "unknown" && s.Exit.Unknown == "host_restarted"
		if known != (id == "recorded") || unknown != (id == "lost") || s.NextGeneration < was.NextGeneration {
			t.Errorf("%s: %+v, exit %+v", id, s, s.Exit)
		}
		if again := h.mustStart(t, id, nil); again.Generation < was.NextGeneration {
			t.Errorf("%s: generation %d after %d", id, again.Generation, was.NextGeneration-1)
		}
	}
}

// TestSecondDaemon: a state directory has one daemon; the second is told which
// process has it, and changes nothing. case J4
func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	started := h.mustStart(t, "s", shell("sleep 1000"))
	for _, runDir := range []string{h.Run, h.Dir + "/run2"} {
		out := h.refusesToStart(t, "--run-dir", runDir)
		if !strings.Contains(out, "locked by another daemon") || !strings.Contains(out, strconv.Itoa(h.PID())) {
			t.Errorf("the second daemon says %q, want the pid %d", out, h.PID())
		}
	}
	h.untilAdopted(t, started)
}

// TestCopiedStateDirectory: a daemon on a copy of the state directory, on the
// same machine, would be a second owner of every session. It is refused, and
// the first one's sessions notice nothing. case J4, A12
func TestCopiedStateDirectory(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := running(t, "[wrapper]\nreconnect_window = \"2s\"\n")
	started := h.mustStart(t, "s", shell("exec sleep 1000"))
	if out, err := exec.Command("cp", "-a", h.State, h.Dir+"/copy").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out := h.refusesToStart(t, "--state-dir", h.Dir+"/copy", "--run-dir", h.Dir+"/run2")
	if !strings.Contains(out, "another daemon with the same host id") {
		t.Errorf("the second daemon says %q", out)
	}
	h.untilAdopted(t, started)
	h.Kill()
	h.Start()
	h.untilAdopted(t, started)
}

// TestForeignStateDirectory: a state directory of another machine is refused
// before anything in it is touched. case J4, SPEC 1
func TestForeignStateDirectory(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	h.mustStart(t, "s", shell("exit 0"))
	h.untilVacant(t, "s")
	h.Stop()
	path := h.State + "/host.json"
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var host map[string]any
	if err := json.Unmarshal(good, &host); err != nil {
		t.Fatal(err)
	}
	if host["machine_id"] == nil {
		t.Skip("this machine has no id: a copy of a state directory cannot be told from the original")
	}
	var id [16]byte
	rand.Read(id[:]) // never fails, by its documentation
	host["machine_id"] = hex.EncodeToString(id[:])
	forged, err := json.Marshal(host)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, forged, 0o600); err != nil {
		t.Fatal(err)
	}
	before := tree(t, h.State)
	if out := h.refusesToStart(t); !strings.Contains(out, "another machine") {
		t.Errorf("the daemon says %q", out)
	}
	sameTree(t, before, tree(t, h.State))
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestNewerJournal: a journal of a later release is refused by name, untouched.
// case A8, T06
func TestNewerJournal(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	h.mustStart(t, "s", shell("exit 0"))
	h.untilVacant(t, "s")
	h.Stop()
	logs, err := filepath.Glob(h.State + "/journal/*.log")
	if err != nil || len(logs) == 0 {
		t.Fatalf("%v, %v", logs, err)
	}
	good, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	newer := bytes.Clone(good)
	for _, at := range []int{0, 2048} { // FORMAT.md 2.1
		head := newer[at : at+64]
		binary.LittleEndian.PutUint32(head[8:], 99)
		table := crc32.MakeTable(crc32.Castagnoli)
		sum := crc32.Update(crc32.Update(0, table, head[:12]), table, head[16:])
		binary.LittleEndian.PutUint32(head[12:], sum)
	}
	if err := os.WriteFile(logs[0], newer, 0o600); err != nil {
		t.Fatal(err)
	}
	before := tree(t, h.State)
	if out := h.refusesToStart(t); !strings.Contains(out, "version 99") || !strings.Contains(out, filepath.Base(logs[0])) {
		t.Errorf("the daemon says %q", out)
	}
	sameTree(t, before, tree(t, h.State))
	if err := os.WriteFile(logs[0], good, 0o600); err != nil {
		t.Fatal(err)
	}
}

// tree is the content of every file below dir but the daemon's lock, which
// names the process that last had it.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == filepath.Join(dir, "lock") || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		files[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func sameTree(t *testing.T, before, after map[string]string) {
	t.Helper()
	for path, data := range before {
		if now, ok := after[path]; !ok || now != data {
			t.Errorf("%s was changed", path)
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			t.Errorf("%s was made", path)
		}
	}
}
