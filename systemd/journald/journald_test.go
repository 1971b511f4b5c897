package journald

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthd/berth/systemd/journald/catalog"
	"github.com/berthd/berth/systemd/journald/native"
	"github.com/berthd/berth/systemd/systemdtest"
)

// patience bounds every wait for journald.
const patienceBound = 30 * time.Second

// unique is a session's id that no earlier run of the test has used.
func unique(t *testing.T) string { return fmt.Sprintf("%s-%d", t.Name(), time.Now().UnixNano()) }

// run runs a program.
func run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).Output()
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return string(out)
}

// entries are those that journald has with a match, oldest first.
func entries(t *testing.T, matches ...string) []map[string]any {
	t.Helper()
	run(t, "journalctl", "--sync")
	out := run(t, append([]string{"journalctl", "-o", "json", "--all", "--no-pager", "-q"}, matches...)...)
	var all []map[string]any
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var e map[string]any
		if err := d.Decode(&e); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
}

// eventually polls until f succeeds.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	for end := time.Now().Add(patienceBound); ; {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // the poll's period
	}
}

// queue makes a queue that the test closes.
func queue(t *testing.T) *Queue {
	t.Helper()
	q := NewQueue(native.SocketPath(""))
	t.Cleanup(func() {
		if err := q.Close(patienceBound); err != nil {
			t.Error(err)
		}
	})
	return q
}

func expect(t *testing.T, e map[string]any, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got := fmt.Sprint(e[name]); got != value {
			t.Errorf("%s is %.200q, want %.200q", name, got, value)
		}
	}
}

// Levels, fields, message ids and places in the source arrive as they should.
func TestFields(t *testing.T) {
	systemdtest.Inside(t)
	q, id := queue(t), unique(t)
	log := New("berthd", hclog.Trace, q, native.Host, "h1").Named("engine").With("session", id)
	log.Error("it is bad", "generation", 7, "error", errors.New("no = go"), "state", "odd")
	log.Warn("the session is deleted", "event", "deleted", "state", "vacant", "reason", "explicit", "owner", 12, "seq", uint64(9), "exit", "code 1", "instance", "i", "operation", "k")
	log.Debug("two\nlines", "bytes", "\x00\xff")
	log.Trace("odd", "lonely")
	var got []map[string]any
	eventually(t, func() error {
		if got = entries(t, "BERTH_SESSION="+id); len(got) < 4 {
			return fmt.Errorf("%d entries", len(got))
		}
		return nil
	})
	expect(t, got[0], map[string]string{
		"PRIORITY": "3", "MESSAGE": "it is bad: session=" + id + ` generation=7 error="no = go" state=odd`, "BERTH_GENERATION": "7",
		"BERTH_HOST": "h1", "BERTH_SUBSYSTEM": "engine", "SYSLOG_IDENTIFIER": "berthd", "BERTH_STATE": "<nil>", "MESSAGE_ID": "<nil>",
		"CODE_FUNC": "github.com/berthd/berth/systemd/journald.TestFields", "_TRANSPORT": "journal", "_PID": strconv.Itoa(os.Getpid()),
	})
	if file, line := fmt.Sprint(got[0]["CODE_FILE"]), fmt.Sprint(got[0]["CODE_LINE"]); !strings.HasSuffix(file, "/journald_test.go") || line < "1" {
		t.Errorf("it comes from %s:%s", file, line)
	}
	deleted, _ := catalog.Of("deleted")
	expect(t, got[1], map[string]string{
		"PRIORITY": "4", "MESSAGE": "the session is deleted: session=" + id + ` state=vacant reason=explicit exit="code 1"`,
		"MESSAGE_ID": deleted.ID, "BERTH_EVENT": "deleted", "BERTH_STATE": "vacant", "BERTH_REASON": "explicit", "BERTH_OWNER": "12",
		"BERTH_SEQ": "9", "BERTH_EXIT": "code 1", "BERTH_INSTANCE": "i", "BERTH_OPERATION": "k",
	})
	if text := run(t, "journalctl", "MESSAGE_ID="+deleted.ID, "BERTH_SESSION="+id, "-o", "cat"); !strings.Contains(text, "is deleted") {
		t.Errorf("by its message id there is %q", text)
	}
	expect(t, got[2], map[string]string{"PRIORITY": "7"})
	expect(t, got[3], map[string]string{"PRIORITY": "7", "MESSAGE": "odd: session=" + id + " EXTRA_VALUE_AT_END=lonely"})
}

// An entry that no datagram holds goes as a memfd.
func TestLarge(t *testing.T) {
	systemdtest.Inside(t)
	log, id := New("berthd", hclog.Info, queue(t)), unique(t)
	large := strings.Repeat("0123456789abcdef", 50_000) // below journald's own bound for queue and field
	log.Info(large, "session", id)
	eventually(t, func() error {
		got := entries(t, "BERTH_SESSION="+id)
		if len(got) != 1 {
			return fmt.Errorf("%d entries", len(got))
		}
		expect(t, got[0], map[string]string{"MESSAGE": large + ": session=" + id})
		return nil
	})
}

// journald is process 1's child; tests here own the machine.
func journaldPID(t *testing.T) int {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(run(t, "systemctl", "show", "-P", "MainPID", "systemd-journald")))
	if err != nil || pid < 2 {
		t.Fatalf("journald has the pid %d, %v", pid, err)
	}
	return pid
}

// case T61: journald stopped. Nobody waits, what does not fit is counted, and
// an entry says so where it is missing.
func TestStopped(t *testing.T) {
	systemdtest.Inside(t)
	q, id := queue(t), unique(t)
	log := New("berthd", hclog.Info, q)
	pid := journaldPID(t)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGCONT) // again is harmless
	text := strings.Repeat("x", 1000)
	const n = 5000
	var worst time.Duration
	for i := range n {
		begin := time.Now()
		log.Info(text, "session", id, "generation", i+1)
		worst = max(worst, time.Since(begin))
	}
	if worst > time.Second { // of a sleep there would be no end
		t.Errorf("an entry took %v", worst)
	}
	if dropped := q.Dropped(); dropped == 0 || dropped > n {
		t.Fatalf("%d of %d entries were dropped", dropped, n)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	log.Info("after", "session", id, "generation", n+1)
	checkHole(t, q, id, n+1)
}

// checkHole expects the entries 1 to last of a session in order, but
// for dropped ones, which an entry of their own stands for.
func checkHole(t *testing.T, q *Queue, session string, last int) {
	t.Helper()
	hole, _ := catalog.Of("log_dropped")
	matches := []string{"BERTH_SESSION=" + session, "+", "MESSAGE_ID=" + hole.ID, "_PID=" + strconv.Itoa(os.Getpid())}
	var got []map[string]any
	eventually(t, func() error {
		got = entries(t, matches...)
		if n := len(got); n == 0 || fmt.Sprint(got[n-1]["BERTH_GENERATION"]) != strconv.Itoa(last) && got[n-1]["MESSAGE_ID"] == nil {
			return fmt.Errorf("%d entries, the last is %.300v", n, got)
		}
		if !q.Idle() {
			return errors.New("entries still wait")
		}
		return nil
	})
	next, missing := 1, uint64(0)
	for _, e := range got {
		if e["MESSAGE_ID"] == hole.ID {
			n, err := strconv.ParseUint(fmt.Sprint(e["BERTH_DROPPED"]), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			missing, next = missing+n, next+int(n)
			continue
		}
		if fmt.Sprint(e["BERTH_GENERATION"]) != strconv.Itoa(next) {
			t.Fatalf("entry %v is where %d should be", e["BERTH_GENERATION"], next)
		}
		next++
	}
	if dropped := q.Dropped(); missing != dropped || next != last+1 {
		t.Errorf("%d are told of and %d dropped; the last is %d of %d", missing, dropped, next-1, last)
	}
	t.Logf("%d entries arrived, %d are told to be missing", len(got), missing)
}

// case T61: journald killed and restarted under load. Its socket is held by
// process 1, so that nothing is lost.
func TestRestarted(t *testing.T) {
	systemdtest.Inside(t)
	q, id := queue(t), unique(t)
	log := New("berthd", hclog.Info, q)
	const n = 3000
	for i := range n {
		switch i {
		case n / 3:
			if err := syscall.Kill(journaldPID(t), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		case 2 * n / 3:
			run(t, "systemctl", "restart", "systemd-journald")
		}
		log.Info("under load", "session", id, "generation", i+1)
	}
	eventually(t, func() error {
		if !q.Idle() {
			return errors.New("entries still wait")
		}
		return nil
	})
	var seen int
	eventually(t, func() error {
		if seen = len(entries(t, "BERTH_SESSION="+id)); seen < n-int(q.Dropped())-killed {
			return fmt.Errorf("%d of %d entries, %d dropped", seen, n, q.Dropped())
		}
		return nil
	})
	t.Logf("%d of %d entries arrived, %d were dropped here", seen, n, q.Dropped())
}

// killed is how many entries a killed journald may have taken and not written.
const killed = 64

// case T61: journald's socket closed and made anew.
func TestSocketMadeAnew(t *testing.T) {
	systemdtest.Inside(t)
	q, id := queue(t), unique(t)
	log := New("berthd", hclog.Info, q)
	log.Info("before", "session", id)
	eventually(t, func() error {
		if !q.Idle() {
			return errors.New("it waits")
		}
		return nil
	})
	run(t, "systemctl", "stop", "systemd-journald.socket", "systemd-journald-dev-log.socket", "systemd-journald.service")
	log.Info("between", "session", id)
	run(t, "systemctl", "start", "systemd-journald.socket", "systemd-journald.service")
	log.Info("after", "session", id)
	eventually(t, func() error {
		text := run(t, "journalctl", "-o", "cat", "BERTH_SESSION="+id)
		if want := fmt.Sprintf("before: session=%[1]s\nbetween: session=%[1]s\nafter: session=%[1]s\n", id); text != want {
			return fmt.Errorf("it has %q", text)
		}
		return nil
	})
}

// Connected tells a stream to journald from any other standard error, also one
// that has inherited the variable of somebody else's.
func TestConnected(t *testing.T) {
	systemdtest.Inside(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ask := "if [ \"$1\" ]; then exec 2>/dev/null; fi; BERTH_ASK=1 exec " + self + " -test.run TestAskConnected"
	for _, c := range []struct {
		how  string
		want string
	}{{"", "true"}, {"elsewhere", "false"}} {
		out, err := exec.Command("systemd-run", "--wait", "--collect", "-q", "-p", "StandardOutput=file:/tmp/connected", "-p", "StandardError=journal",
			"sh", "-c", ask, "sh", c.how).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		data, err := os.ReadFile("/tmp/connected")
		if err != nil || !bytes.Contains(data, []byte("connected: "+c.want)) {
			t.Errorf("with standard error %q: %s, %v", c.how, data, err)
		}
	}
	if Connected() {
		t.Error("the test itself is")
	}
}

// TestAskConnected is what TestConnected runs as a service.
func TestAskConnected(t *testing.T) {
	if os.Getenv("BERTH_ASK") == "" {
		t.Skip("runs below TestConnected")
	}
	fmt.Println("connected:", Connected())
}
