package daemontest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/berthd/berth/rpc"
)

// scrape reads all metrics.
func (h *Host) scrape(t *testing.T) string {
	t.Helper()
	p, err := h.dial("berth.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	status, _, body, err := p.call("GET", "/metrics", "")
	if err != nil || status != 200 {
		t.Fatalf("scraping: %d, %v", status, err)
	}
	return string(body)
}

// lint expects a text that promlint likes, with lines that begin like this.
func lint(t *testing.T, text string, want ...string) {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	for _, w := range want {
		if !strings.Contains(text, "\n"+w) {
			t.Errorf("%q is missing", w)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// The metrics are clean to promlint's eyes, and follow what the daemon does.
func TestMetrics(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	h.mustStart(t, "counted", shell("sleep 1000"))
	text := h.scrape(t)
	lint(t, text,
		`berth_leases{state="active",provider="process"} 1`, `berth_provider_ready{provider="process"} 1`,
		`berth_starts_total{result="verified"} 1`, `berth_starts_total{result="failed"} 0`,
		`berth_start_duration_seconds_bucket{le="+Inf"} 1`, `berth_stops_total{reason="operator"} 0`,
		`berth_quarantines_total{reason="operator"} 0`, `berth_room_known{root="workspaces"} 1`, `berth_room_free_bytes{root="state"} `,
		`berth_room_low{root="state"} 0`, "berth_reserved_bytes{device=", "berth_settled 1", "berth_draining 0",
		"berth_journal_failed 0", "berth_log_dropped_total 0", "berth_zombies 0", "berth_scan_duration_seconds_count ",
		`berth_journal_fsync_duration_seconds_bucket{le="+Inf"} `, "berth_output_lost_bytes 0")
	for _, name := range []string{
		"process_open_fds", "process_max_fds", "process_resident_memory_bytes", "process_start_time_seconds", "go_goroutines",
		"berth_mounts", "berth_journal_records_total", "berth_journal_commits_total",
	} {
		if !regexp.MustCompile(`(?m)^` + name + ` [1-9]`).MatchString(text) {
			t.Errorf("%s has no value above 0", name)
		}
	}
	if base := h.CgroupBase(); base != "" && !strings.Contains(text, "\nberth_cgroups 1\n") {
		t.Error("there is one leaf, and berth_cgroups does not say so")
	}
	h.mustStop(t, "counted")
	lint(t, h.scrape(t), `berth_leases{state="vacant",provider="process"} 1`, `berth_stops_total{reason="operator"} 1`,
		`berth_stop_duration_seconds_bucket{le="+Inf"} 1`, `berth_exits_total{kind="signal"} 1`)
}

// A start that fails, and one whose agent ends by itself, count as what they are.
func TestMetricsOfEnds(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	missing := &rpc.SessionSpec{Command: []string{"/no/such/program"}}
	if _, err := h.Client.Start(bounded(t), "missing", rpc.StartRequest{Spec: missing}); err == nil {
		t.Fatal("a program that is not there has started")
	}
	h.untilVacant(t, "missing")
	h.mustStart(t, "short", shell("exit 3"))
	h.untilVacant(t, "short")
	h.Until("both ends are counted", patience, func() error {
		text := h.scrape(t)
		for _, want := range []string{
			`berth_starts_total{result="failed"} 1`, `berth_starts_total{result="verified"} 1`,
			`berth_stops_total{reason="startup_failed"} 1`, `berth_exits_total{kind="code"} 1`,
		} {
			if !strings.Contains(text, want+"\n") {
				return fmt.Errorf("%q is missing in\n%s", want, text)
			}
		}
		return nil
	})
}

// The metrics' own address gives them to everybody who reaches it, and nothing
// else; who may not read on the operators' socket gets none there.
func TestMetricsAddress(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	h := running(t, "[metrics]\nlisten = \""+address+"\"\n")
	get := func(path string) (int, string) {
		reply, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer reply.Body.Close()
		body, err := io.ReadAll(reply.Body)
		if err != nil {
			t.Fatal(err)
		}
		return reply.StatusCode, string(body)
	}
	var text string
	h.Until("the metrics say that it is settled", patience, func() error {
		var status int
		if status, text = get("/metrics"); status != 200 || !strings.Contains(text, "\nberth_settled 1") {
			return fmt.Errorf("GET /metrics answers %d %s", status, text)
		}
		return nil
	})
	lint(t, text)
	for _, path := range []string{"/", "/v1/status", "/v1/sessions"} {
		if status, body := get(path); status != 404 {
			t.Errorf("GET %s answers %d: %s", path, status, body)
		}
	}
	h.Stop()
	if c, err := net.Dial("tcp", address); err == nil {
		c.Close()
		t.Error("the address is open after the daemon's end")
	}
}

// freeAddress is a loopback address on which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Metrics name no session: whoever may ask for the daemon's status may read
// them, and who has no role may not.
func TestMetricsNeedARole(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := running(t, fmt.Sprintf("[socket]\nmode = 0o666\nreader_users = [\"%d\"]\n", readerUID))
	h.forbidden(t, Nobody, "GET", "/metrics", "", rpc.CodeForbidden)
	h.mustStart(t, "unnamed-here", shell("exec sleep 1000"))
	for _, uid := range []int{readerUID, userUID} {
		status, _, text := h.by(t, uid, "GET", "/metrics", "")
		if status != 200 || !strings.Contains(string(text), "berth_settled ") || strings.Contains(string(text), "unnamed") {
			t.Errorf("uid %d gets %d %s", uid, status, text)
		}
	}
}
