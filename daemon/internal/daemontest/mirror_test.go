package daemontest

import (
	"bytes"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/systemd/systemdtest"
)

// copyOf returns what journald has of a session's output: lines, by number, and
// how many an entry says to be missing.
func (h *Host) copyOf(t *testing.T, session string) (lines map[int]map[string]any, told int) {
	t.Helper()
	lines = map[int]map[string]any{}
	for _, e := range journalOf(t, "SYSLOG_IDENTIFIER=berth-agent", "BERTH_SESSION="+session, "BERTH_HOST="+h.ID()) {
		if n, err := strconv.Atoi(fmt.Sprint(e["BERTH_LINE"])); err == nil {
			lines[n] = e
		} else if n, err := strconv.Atoi(fmt.Sprint(e["BERTH_DROPPED"])); err == nil {
			told += n
		}
	}
	return lines, told
}

// The agent's output is in journald, from the wrapper, also while no daemon runs.
func TestOutputInJournald(t *testing.T) {
	systemdtest.Inside(t)
	h := running(t, toJournald)
	h.mustStart(t, "talker", shell("echo one; echo bad >&2; read x; echo three"))
	h.untilOutput(t, "talker", "bad")
	h.Kill()
	h.Until("both lines are in journald", patience, func() error {
		if lines, _ := h.copyOf(t, "talker"); len(lines) != 2 {
			return fmt.Errorf("it has %v", lines)
		}
		return nil
	})
	lines, _ := h.copyOf(t, "talker")
	for _, e := range lines {
		priority := map[any]string{"one": "6", "bad": "5"}[e["MESSAGE"]]
		if e["PRIORITY"] != priority || e["_COMM"] != "berth-wrap" || e["BERTH_GENERATION"] != "1" || e["BERTH_PROVIDER"] != "process" {
			t.Errorf("an entry is %v", e)
		}
		seq, err := strconv.ParseUint(fmt.Sprint(e["BERTH_SPOOL_SEQ"]), 10, 64)
		if err != nil || seq == 0 {
			t.Errorf("an entry's place in the spool is %v", e["BERTH_SPOOL_SEQ"])
		}
	}
	h.Start()
	h.mustStop(t, "talker")

	// Another daemon, and no copy.
	quiet := running(t, "[log]\nformat = \"journald\"\nagent = \"off\"\n")
	quiet.mustStart(t, "quiet", shell("echo secret"))
	quiet.untilVacant(t, "quiet")
	quiet.untilAudited(t, "quiet")
	if lines, _ := quiet.copyOf(t, "quiet"); len(lines) > 0 {
		t.Errorf("journald has %v", lines)
	}
}

// case J1, T61: journald stopped for as long as a session prints. Nothing waits,
// the spool has all, and journald's hole has exactly the size that is told.
func TestStoppedJournald(t *testing.T) {
	systemdtest.Inside(t)
	h := running(t, toJournald+"agent_rate = 0\n")
	out, err := exec.Command("systemctl", "show", "-P", "MainPID", "systemd-journald").Output()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(out)))
	if err != nil || pid < 2 {
		t.Fatalf("journald's pid is %q", out)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGCONT) // again is harmless
	const n = 60_000
	h.mustStart(t, "flood", shell(fmt.Sprintf("seq %d; read x; echo last", n)))
	h.untilOutput(t, "flood", fmt.Sprintf("\n%d\n", n))
	if got := strings.Count(h.output(t, "flood", 0), "\n"); got != n {
		t.Errorf("the spool has %d lines of %d", got, n)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	h.Until("journald has the rest", 2*patience, func() error {
		lines, told := h.copyOf(t, "flood")
		if told == 0 || len(lines)+told != n {
			return fmt.Errorf("%d lines and %d told to be missing", len(lines), told)
		}
		highest := 0
		for i := range lines {
			highest = max(highest, i)
			if m := lines[i]["MESSAGE"]; m != strconv.Itoa(i) {
				t.Fatalf("line %d is %v", i, m)
			}
		}
		t.Logf("%d lines, up to number %d, %d told to be missing", len(lines), highest, told)
		return nil
	})
	h.mustStop(t, "flood")
	h.untilAudited(t, "flood")
}
