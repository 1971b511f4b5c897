package daemontest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// goroutines makes the daemon print its goroutines, which ends it, and counts
// them.
func (h *Host) goroutines(t *testing.T) (n int, dump string) {
	t.Helper()
	before, err := os.ReadFile(h.Dir + "/berthd.log")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Process.Signal(unix.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	_ = h.wait() // it ends badly, by intent
	after, err := os.ReadFile(h.Dir + "/berthd.log")
	if err != nil {
		t.Fatal(err)
	}
	after = after[len(before):]
	n = bytes.Count(after, []byte("\ngoroutine "))
	if n == 0 {
		t.Fatalf("the daemon prints no goroutines: %s", after)
	}
	return n, string(after)
}

// hostileRequest is one request and the code that it must be refused with.
type hostileRequest struct {
	name, verb, path, body string
	code                   rpc.Code
}

// hostileRequests are requests that are wrong, with the code that says so.
func hostileRequests() []hostileRequest {
	const good = `{"spec":{"command":["sleep","1000"]}}`
	start := "/v1/sessions/x/start"
	return []hostileRequest{
		{"a 300-character id", "POST", "/v1/sessions/" + strings.Repeat("a", 300) + "/start", good, rpc.CodeInvalidRequest},
		{"an id with a slash", "POST", "/v1/sessions/..%2f..%2fetc/start", good, rpc.CodeInvalidRequest},
		{"an id with a NUL", "POST", "/v1/sessions/a%00b/start", good, rpc.CodeInvalidRequest},
		{"an id of dots", "GET", "/v1/sessions/%2e%2e", "", rpc.CodeInvalidRequest},
		{"an empty id", "GET", "/v1/sessions/", "", rpc.CodeInvalidRequest},
		{"an unknown field", "POST", start, `{"spec":{"command":["sleep","1000"],"colour":"red"}}`, rpc.CodeInvalidRequest},
		{"a field in another case", "POST", start, `{"Spec":{"command":["sleep","1000"]}}`, rpc.CodeInvalidRequest},
		{"a key twice", "POST", start, `{"spec":{"command":["sleep","1000"],"command":["true"]}}`, rpc.CodeInvalidRequest},
		{"another type", "POST", start, `{"spec":{"command":"sleep 1000"}}`, rpc.CodeInvalidRequest},
		{"something behind it", "POST", start, good + "{}", rpc.CodeInvalidRequest},
		{"half of it", "POST", start, good[:20], rpc.CodeInvalidRequest},
		{"no JSON", "POST", start, "\x00\x01\x02", rpc.CodeInvalidRequest},
		{"invalid UTF-8", "POST", start, "{\"spec\":{\"command\":[\"\xff\xfe\"]}}", rpc.CodeInvalidRequest},
		{"deep nesting", "POST", start, strings.Repeat(`{"spec":`, 100_000), rpc.CodeInvalidRequest},
		{"nothing", "POST", start, "", rpc.CodeNotFound},
		{"no command", "POST", start, `{"spec":{"command":[]}}`, rpc.CodeInvalidRequest},
		{"a NUL in the command", "POST", start, `{"spec":{"command":["a\u0000b"]}}`, rpc.CodeInvalidRequest},
		{"our own names", "POST", start, `{"spec":{"command":["sleep"],"env":["BERTH_SESSION=y"]}}`, rpc.CodeInvalidRequest},
		{"a negative grace", "POST", start, `{"spec":{"command":["sleep"],"grace_seconds":-1}}`, rpc.CodeInvalidRequest},
		{"a huge number", "POST", start, `{"spec":{"command":["sleep"],"reserve_bytes":1e400}}`, rpc.CodeInvalidRequest},
		{"a long key", "POST", start, `{"key":"` + strings.Repeat("k", 10_000) + `","spec":{"command":["sleep","1000"]}}`, rpc.CodeInvalidRequest},
		{"a workspace of somebody else", "POST", start, `{"spec":{"command":["sleep"],"workspace":"/"}}`, rpc.CodeWorkspaceMissing},
		{"a provider that is not there", "POST", start, `{"spec":{"command":["sleep"],"provider":"magic"}}`, rpc.CodeProvider},
		{"root as owner", "POST", start, `{"owner":"root","spec":{"command":["sleep"]}}`, rpc.CodeInvalidRequest},
		{"an unknown owner", "POST", start, `{"owner":"no such user","spec":{"command":["sleep"]}}`, rpc.CodeInvalidRequest},
		{"an unknown method", "DELETE", "/v1/sessions/x", "", rpc.CodeUnknownMethod},
		{"an unknown path", "GET", "/v2/sessions", "", rpc.CodeUnknownMethod},
		{"an unknown query", "GET", "/v1/events?colour=red", "", rpc.CodeInvalidRequest},
		{"a bad number", "GET", "/v1/events?after=-1", "", rpc.CodeInvalidRequest},
		{"a session that is not there", "POST", "/v1/sessions/nobody/stop", `{}`, rpc.CodeNotFound},
		{"nothing to resolve", "POST", "/v1/sessions/canary/resolve", `{"action":"adopt","verified":true,"why":"x"}`, rpc.CodeInvalidRequest},
		{"input for one that is not there", "POST", "/v1/sessions/nobody/send", `{"data":"eA=="}`, rpc.CodeNotFound},
	}
}

// TestHostileClients: whatever clients send, they get a typed error, nothing
// changes, and nothing of them is left in the daemon.
func TestHostileClients(t *testing.T) {
	t.Parallel()
	h := New(t, Options{Config: quickTables(), Env: []string{"GOTRACEBACK=all"}})
	h.Start()
	h.pluginOf(t)
	canary := h.mustStart(t, "canary", shell("exec sleep 1000"))
	before := h.status(t)
	beforeFDs := descriptors(t, h.PID())
	for _, r := range hostileRequests() {
		c, err := h.dial("berth.sock")
		if err != nil {
			t.Fatal(err)
		}
		status, refusal, reply, err := c.call(r.verb, r.path, r.body)
		if err != nil || status == 200 || refusal.Code != r.code || refusal.Message == "" {
			t.Errorf("%s: %d %.300s, %v; want %s", r.name, status, reply, err, r.code)
		}
		c.Close()
	}
	h.tooLarge(t)
	h.nonsense(t)
	h.leavers(t)
	after := h.status(t)
	if after.Journal.LastSeq != before.Journal.LastSeq || !reflect.DeepEqual(after.Sessions, before.Sessions) {
		t.Errorf("something has changed: %+v, was %+v", after, before)
	}
	h.Until("all connections are given up", patience, func() error {
		h.Client.Close()
		if n := descriptors(t, h.PID()); n > beforeFDs {
			return fmt.Errorf("%d descriptors, %d before", n, beforeFDs)
		}
		return nil
	})
	h.untilAdopted(t, canary)
	left, dump := h.goroutines(t)
	h.Start()
	h.pluginOf(t)
	h.untilAdopted(t, canary)
	h.Client.Close()
	fresh, _ := h.goroutines(t)
	if left > fresh+4 { // of one connection that is just ending
		t.Errorf("%d goroutines are left, a fresh daemon has %d:\n%s", left, fresh, dump)
	}
}

// status is the daemon's account of itself.
func (h *Host) status(t *testing.T) rpc.StatusReply {
	t.Helper()
	s, err := h.Client.Status(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tooLarge sends 1 GiB of body, once announced and once not.
func (h *Host) tooLarge(t *testing.T) {
	t.Helper()
	const giga = 1 << 30
	chunk := bytes.Repeat([]byte{' '}, 64<<10)
	for _, chunked := range []bool{false, true} {
		c, err := h.dial("berth.sock")
		if err != nil {
			t.Fatal(err)
		}
		how := fmt.Sprintf("Content-Length: %d", giga)
		if chunked {
			how = "Transfer-Encoding: chunked"
		}
		fmt.Fprintf(c, "POST /v1/sessions/x/start HTTP/1.1\r\nHost: berth\r\nContent-Type: application/json\r\n%s\r\n\r\n", how)
		sent := make(chan int, 1)
		go func() { // ends when the daemon has had enough
			n := 0
			for err := error(nil); err == nil && n < giga; n += len(chunk) {
				if chunked {
					_, err = fmt.Fprintf(c, "%x\r\n%s\r\n", len(chunk), chunk)
				} else {
					_, err = c.Write(chunk)
				}
			}
			sent <- n
		}()
		status, refusal, reply, err := c.answer()
		if err != nil || status != 413 || refusal.Code != rpc.CodeTooLarge {
			t.Errorf("chunked %v: %d %s, %v", chunked, status, reply, err)
		}
		c.Close()
		if n := <-sent; n > 16<<20 {
			t.Errorf("chunked %v: the daemon has taken %d bytes", chunked, n)
		}
	}
}

// nonsense sends what is no request at all, and halves of requests.
func (h *Host) nonsense(t *testing.T) {
	t.Helper()
	for _, text := range []string{
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "GET", "\r\n\r\n\r\n", strings.Repeat("A", 64<<10),
		"GET /v1/status HTTP/1.1\r\n", "GET /v1/status HTTP/9.9\r\nHost: b\r\n\r\n",
		"POST /v1/sessions/x/start HTTP/1.1\r\nHost: b\r\nContent-Length: 100\r\n\r\n{\"spec\":",
		"GET /v1/status HTTP/1.1\r\nHost: b\r\n" + strings.Repeat("X: y\r\n", 20_000) + "\r\n",
		"POST /v1/sessions/x/start HTTP/1.1\r\nHost: b\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
		"GET /v1/sessions/canary/attach HTTP/1.1\r\nHost: b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	} {
		c, err := h.dial("berth.sock")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, text) // it may be cut off
		if u, ok := c.Conn.(interface{ CloseWrite() error }); ok {
			_ = u.CloseWrite()
		}
		reply, _ := io.ReadAll(c) // until the daemon has had enough
		if bytes.Contains(reply, []byte(" 200 ")) {
			t.Errorf("%.60q was answered %q", text, reply)
		}
		c.Close()
	}
}

// leavers come in numbers and leave in the middle of what they have asked for.
func (h *Host) leavers(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
			defer cancel()
			switch i % 4 {
			case 0:
				for range h.Client.Events(ctx, rpc.EventsQuery{Follow: true}) {
				}
			case 1:
				for range h.Client.Logs(ctx, "canary", rpc.LogsQuery{Follow: true}) {
				}
			case 2:
				_, _ = h.Client.Wait(ctx, "canary")
			case 3:
				c, err := h.dial("berth.sock")
				if err == nil {
					fmt.Fprint(c, "GET /v1/events?follow=true HTTP/1.1\r\nHost: b\r\n\r\n")
					<-ctx.Done()
					c.Close()
				}
			}
		})
	}
	wg.Wait()
}

// TestClientLeavesDuringStart: the client goes away, what it asked for goes on,
// and its key finds it. case A22
func TestClientLeavesDuringStart(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	plugin := h.pluginOf(t)
	h.halt(t, plugin)
	c, err := h.dial("berth.sock")
	if err != nil {
		t.Fatal(err)
	}
	body := `{"key":"k","spec":{"command":["sleep","1000"]}}`
	fmt.Fprintf(c, "POST /v1/sessions/s/start HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	h.until(t, "s", "is starting", func(s rpc.Session) bool { return s.State == "starting" })
	c.Close()
	plugin.signal(t, unix.SIGCONT)
	s := h.until(t, "s", "is active", func(s rpc.Session) bool { return s.State == "active" })
	again, err := h.Client.Start(bounded(t), "s", rpc.StartRequest{Key: "k", Spec: &rpc.SessionSpec{Command: []string{"sleep", "1000"}}})
	if err != nil || again.PID != s.PID || again.Generation != 1 {
		t.Errorf("%+v, %v; the session is %+v", again, err, s)
	}
}

// TestManyConnections: an agent that starts while the daemon has many
// connections open has its own three descriptors and nothing else; nor has the
// wrapper anything of the daemon's. case T66, T58
func TestManyConnections(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	for range 300 {
		c, err := h.dial("berth.sock")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	h.Until("the connections are there", patience, func() error {
		if n := descriptors(t, h.PID()); n < 300 {
			return fmt.Errorf("%d descriptors", n)
		}
		return nil
	})
	for i, terminal := range []bool{false, true} {
		spec := shell("exec sleep 1000")
		spec.Terminal = terminal
		s := h.mustStart(t, fmt.Sprintf("s%d", i), spec)
		h.hasThreeDescriptors(t, s.AgentPID)
		for fd, to := range fdTargets(t, s.PID) {
			if strings.HasPrefix(to, h.Run) || strings.Contains(to, "/journal/") || strings.HasSuffix(to, "/state/lock") {
				t.Errorf("the wrapper has %s → %s", fd, to)
			}
		}
		if n := descriptors(t, s.PID); n > 25 {
			t.Errorf("the wrapper has %d descriptors: %v", n, fdTargets(t, s.PID))
		}
	}
}

// fdTargets is what a process's descriptors lead to.
func fdTargets(t *testing.T, pid int) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	to := map[string]string{}
	for _, e := range entries {
		to[e.Name()], _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())) // it may be closed meanwhile
	}
	return to
}

// hasThreeDescriptors waits until a process has its standard descriptors and no
// other: what a program opens while it starts it closes again.
func (h *Host) hasThreeDescriptors(t *testing.T, pid int) {
	t.Helper()
	h.Until("the agent has three descriptors", patience, func() error {
		to := fdTargets(t, pid)
		if len(to) != 3 || to["0"] == "" || to["1"] == "" || to["2"] == "" {
			return fmt.Errorf("it has %v", to)
		}
		return nil
	})
}
