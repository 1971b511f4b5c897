package rpc_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
)

// refused checks that body is a typed refusal.
func refused(t *testing.T, status int, body string, code rpc.Code, words ...string) *rpc.Error {
	t.Helper()
	e := new(rpc.Error)
	if err := json.Unmarshal([]byte(body), e); err != nil {
		t.Fatalf("not a refusal: %v: %q", err, body)
	}
	if e.Code != code || status != code.HTTPStatus() {
		t.Errorf("status %d, code %s, want %d %s: %s", status, e.Code, code.HTTPStatus(), code, e.Message)
	}
	for _, w := range words {
		if !strings.Contains(e.Message, w) {
			t.Errorf("message %q does not say %q", e.Message, w)
		}
	}
	return e
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	svc, srv := start(t, rpc.Config{})
	long := strings.Repeat("a", 300)
	tests := []struct {
		name, ask string
		code      rpc.Code
		words     []string
	}{
		{"path", get("/v1/nothing"), rpc.CodeUnknownMethod, []string{`"/v1/nothing"`, "openapi.json"}},
		{"root", get("/"), rpc.CodeUnknownMethod, nil},
		{"trailing slash", get("/v1/status/"), rpc.CodeUnknownMethod, nil},
		{"double slash", get("/v1//status"), rpc.CodeUnknownMethod, nil},
		{"dots", get("/v1/x/../status"), rpc.CodeUnknownMethod, nil},
		{"verb", post("/v1/status", ""), rpc.CodeUnknownMethod, []string{"takes GET"}},
		{"read by post", post("/v1/sessions/s", "{}"), rpc.CodeUnknownMethod, []string{"takes GET"}},
		{"act by get", get("/v1/sessions/s/stop"), rpc.CodeUnknownMethod, []string{"takes POST"}},
		{"metrics", get("/metrics"), rpc.CodeUnknownMethod, nil},
		{"long id", get("/v1/sessions/" + long), rpc.CodeInvalidRequest, []string{"300 bytes", "1 to 128 characters"}},
		{"empty id", get("/v1/sessions/"), rpc.CodeInvalidRequest, []string{rpc.SessionIDRule}},
		{"slash in id", get("/v1/sessions/a%2Fb"), rpc.CodeInvalidRequest, []string{`"a/b"`}},
		{"dot id", get("/v1/sessions/..%2f..%2fetc"), rpc.CodeInvalidRequest, nil},
		{"leading dot", get("/v1/sessions/.hidden"), rpc.CodeInvalidRequest, nil},
		{"NUL in id", get("/v1/sessions/a%00"), rpc.CodeInvalidRequest, nil},
		{"newline in id", get("/v1/sessions/a%0A"), rpc.CodeInvalidRequest, nil},
		{"body of a read", "GET /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", rpc.CodeInvalidRequest, []string{"takes no body"}},
		{"query of none", get("/v1/status?x=1"), rpc.CodeInvalidRequest, []string{`"x"`, "takes none"}},
		{"unknown query", get("/v1/events?afer=1"), rpc.CodeInvalidRequest, []string{`"afer"`, "after, session, follow"}},
		{"query twice", get("/v1/events?after=1&after=2"), rpc.CodeInvalidRequest, []string{`"after"`, "twice"}},
		{"query type", get("/v1/events?after=-1"), rpc.CodeInvalidRequest, []string{`"after"`, "whole number"}},
		{"query range", get("/v1/sessions/s/attach?rows=70000"), rpc.CodeInvalidRequest, []string{`"rows"`, "2^16-1"}},
		{"query bool", get("/v1/events?follow=maybe"), rpc.CodeInvalidRequest, []string{`"follow"`}},
		{"query session", get("/v1/events?session=%ff"), rpc.CodeInvalidRequest, []string{"session id"}},
		{"query semicolon", get("/v1/events?after=1;follow"), rpc.CodeInvalidRequest, []string{"malformed"}},
		{"unknown field", post("/v1/sessions/s/start", `{"spec":{"comand":["x"]}}`), rpc.CodeInvalidRequest, []string{`"spec.comand"`}},
		{"encoding", "POST /v1/sessions/s/stop HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", rpc.CodeInvalidRequest, []string{"gzip"}},
		{"no upgrade", get("/v1/sessions/s/attach"), rpc.CodeInvalidRequest, []string{"Upgrade: berth-terminal"}},
		{"missing session", get("/v1/sessions/s"), rpc.CodeNotFound, []string{`"s"`}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := dial(t, srv.Path)
			status, body := w.ask(t, tc.ask)
			refused(t, status, body, tc.code, tc.words...)
			// The connection is good for more: a refusal is not the end.
			if status, body := w.ask(t, get("/v1/version")); status != 200 {
				t.Errorf("the next request: %d %s", status, body)
			}
		})
	}
	t.Cleanup(func() {
		for _, call := range svc.Calls() { // bad input changes nothing
			if call != "version" && call != "get s" {
				t.Errorf("the service was called: %s", call)
			}
		}
	})
}

// 1 GiB is refused on its header, by length, or after 1 MiB, without one.
func TestBodyTooLarge(t *testing.T) {
	t.Parallel()
	_, srv := start(t, rpc.Config{})
	t.Run("length", func(t *testing.T) {
		t.Parallel()
		w := dial(t, srv.Path)
		status, body := w.ask(t, "POST /v1/sessions/s/send HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n")
		e := refused(t, status, body, rpc.CodeTooLarge, "1048576 bytes")
		if e.Details["limit_bytes"] != 1048576.0 {
			t.Errorf("details: %v", e.Details)
		}
		if !w.closed() {
			t.Error("the connection stays open")
		}
	})
	t.Run("chunks", func(t *testing.T) {
		t.Parallel()
		w := dial(t, srv.Path)
		io.WriteString(w, "POST /v1/sessions/s/send HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
		chunk := "10000\r\n" + strings.Repeat("x", 1<<16) + "\r\n"
		sent := 0
		for ; sent < 1<<30; sent += 1 << 16 {
			if _, err := io.WriteString(w, chunk); err != nil {
				break // closed under us, as it should be
			}
		}
		if sent > 16<<20 {
			t.Errorf("the server took %d bytes", sent)
		}
		status, body := w.reply(t)
		refused(t, status, body, rpc.CodeTooLarge)
	})
	t.Run("continue", func(t *testing.T) {
		t.Parallel()
		w := dial(t, srv.Path)
		status, body := w.ask(t, "POST /v1/sessions/s/send HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1073741824\r\n\r\n")
		refused(t, status, body, rpc.CodeTooLarge)
	})
	t.Run("header", func(t *testing.T) {
		t.Parallel()
		w := dial(t, srv.Path)
		status, _ := w.ask(t, "GET /v1/status HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("y", 64<<10)+"\r\n\r\n")
		if status != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("status %d", status)
		}
	})
}

func TestPanic(t *testing.T) {
	t.Parallel()
	var panics atomic.Int32
	svc := newBlocking()
	_, srv := start(t, rpc.Config{Service: svc, Panicked: func(method string, v any, stack []byte) {
		panics.Add(1)
		if !strings.Contains(fmt.Sprint(v), "fell over") || !strings.Contains(string(stack), "main_test.go") {
			t.Errorf("%s: %v\n%s", method, v, stack)
		}
	}})
	w := dial(t, srv.Path)
	status, body := w.ask(t, get("/v1/scan"))
	refused(t, status, body, rpc.CodeInternal, "scan")
	status, body = w.ask(t, get("/v1/events"))
	lines := strings.Split(strings.TrimSpace(body), "\n")
	if status != 200 || len(lines) != 2 || !strings.Contains(lines[0], `"kind":"one"`) || !strings.HasPrefix(lines[1], `{"error":{"code":"INTERNAL"`) {
		t.Errorf("status %d, body %q", status, body)
	}
	if status, _ := w.ask(t, get("/v1/version")); status != 200 || panics.Load() != 2 {
		t.Errorf("afterwards: status %d, %d panics", status, panics.Load())
	}
}

func TestClientGone(t *testing.T) {
	t.Parallel()
	svc := newBlocking()
	_, srv := start(t, rpc.Config{Service: svc})
	w := dial(t, srv.Path)
	io.WriteString(w, get("/v1/status"))
	<-svc.entered
	w.Close()
	if err := <-svc.left; !errors.Is(err, context.Canceled) {
		t.Errorf("the service's context: %v", err)
	}
}

// A reader that stops is cut off after WriteTimeout, and the Service is told.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	svc := newBlocking()
	_, srv := start(t, rpc.Config{Service: svc, Bounds: rpc.Bounds{WriteTimeout: 200 * time.Millisecond}})
	w := dial(t, srv.Path)
	began := time.Now()
	io.WriteString(w, get("/v1/sessions/s/logs?follow"))
	if err := <-svc.left; err == nil {
		t.Error("emit did not fail")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	// The stream has no proper end.
	resp, err := http.ReadResponse(w.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("reading the rest: %v", err)
	}
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	_, srv := start(t, rpc.Config{Bounds: rpc.Bounds{Heartbeat: 20 * time.Millisecond}})
	w := dial(t, srv.Path)
	io.WriteString(w, get("/v1/events?follow"))
	resp, err := http.ReadResponse(w.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() // before the body, which would otherwise be read to its end
	if ct := resp.Header.Get("Content-Type"); ct != "application/x-ndjson" {
		t.Errorf("content type %q", ct)
	}
	body := bufio.NewReader(resp.Body)
	for range 3 {
		if line, err := body.ReadString('\n'); err != nil || line != "\n" {
			t.Fatalf("read %q, %v", line, err)
		}
	}
}

// A reply's list is a list, and a map a map, also when it is empty.
func TestEmptyLists(t *testing.T) {
	t.Parallel()
	_, srv := start(t, rpc.Config{})
	w := dial(t, srv.Path)
	if _, body := w.ask(t, get("/v1/sessions")); !strings.Contains(body, `"sessions":[]`) {
		t.Error(body)
	}
	if _, body := w.ask(t, get("/v1/providers")); strings.Contains(body, "null") {
		t.Error(body)
	}
}

func TestDone(t *testing.T) {
	t.Parallel()
	var calls []rpc.Call
	got := make(chan rpc.Call, 10)
	_, srv := start(t, rpc.Config{Done: func(c rpc.Call) { got <- c }})
	w := dial(t, srv.Path)
	w.ask(t, get("/v1/status"))
	w.ask(t, get("/v1/sessions/s"))
	w.ask(t, get("/nowhere"))
	for range 3 {
		calls = append(calls, <-got)
	}
	if calls[0].Method != "status" || calls[0].Err != nil || calls[0].Peer.Role != rpc.RoleOperator || calls[0].Peer.PID == 0 {
		t.Errorf("%+v", calls[0])
	}
	if calls[1].Session != "s" || rpc.CodeOf(calls[1].Err) != rpc.CodeNotFound {
		t.Errorf("%+v", calls[1])
	}
	if calls[2].Method != "" || rpc.CodeOf(calls[2].Err) != rpc.CodeUnknownMethod {
		t.Errorf("%+v", calls[2])
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	_, srv := start(t, rpc.Config{Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "berth_sessions 3\n")
	})})
	if status, body := dial(t, srv.Path).ask(t, get("/metrics")); status != 200 || body != "berth_sessions 3\n" {
		t.Errorf("%d %q", status, body)
	}
}

func TestConnectionBound(t *testing.T) {
	t.Parallel()
	_, srv := start(t, rpc.Config{Bounds: rpc.Bounds{Conns: 2}})
	a, b := dial(t, srv.Path), dial(t, srv.Path)
	a.ask(t, get("/v1/version"))
	b.ask(t, get("/v1/version"))
	status, body := dial(t, srv.Path).ask(t, get("/v1/version"))
	e := refused(t, status, body, rpc.CodeBusy)
	if !e.Retryable || e.RetryAfter != time.Second {
		t.Errorf("%+v", e)
	}
	a.Close()
	until(t, "the place of a closed connection", func() bool {
		status, _ := dial(t, srv.Path).ask(t, get("/v1/version"))
		return status == 200
	})
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	svc, srv := start(t, rpc.Config{})
	w := dial(t, srv.Path)
	if status, body := w.ask(t, post("/v1/sessions/s/start", `{"spec":{"command":["a"],"terminal":true}}`)); status != 200 {
		t.Fatal(body)
	}
	waiter, follower, attached := dial(t, srv.Path), dial(t, srv.Path), dial(t, srv.Path)
	io.WriteString(waiter, get("/v1/sessions/s/wait"))
	io.WriteString(follower, get("/v1/sessions/s/logs?follow"))
	io.WriteString(attached, "GET /v1/sessions/s/attach HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: berth-terminal\r\n\r\n")
	resp, err := http.ReadResponse(attached.r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", resp, err)
	}
	stream, err := http.ReadResponse(follower.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	until(t, "the calls", func() bool { return len(svc.Calls()) == 4 })
	began := time.Now()
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Shutdown took %v", took)
	}
	status, body := waiter.reply(t)
	if e := refused(t, status, body, rpc.CodeReconciling, "shutting down"); !e.Retryable {
		t.Errorf("%+v", e)
	}
	if _, err := io.Copy(io.Discard, stream.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the stream's end: %v", err)
	}
	if _, err := io.Copy(io.Discard, attached.r); err != nil {
		t.Errorf("the terminal's end: %v", err)
	}
}

// stubbornService ignores its context.
type stubbornService struct {
	*blockingService
	release chan struct{}
}

// Version blocks until it is released.
func (s *stubbornService) Version(context.Context, rpc.Peer) (rpc.VersionReply, error) {
	s.entered <- struct{}{}
	<-s.release
	return rpc.VersionReply{}, nil
}

// A client that has connected and asked for nothing does not hold up the end.
func TestShutdownWithFreshConnections(t *testing.T) {
	t.Parallel()
	_, srv := start(t, rpc.Config{})
	for range 10 {
		dial(t, srv.Path)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

func TestShutdownIsBounded(t *testing.T) {
	t.Parallel()
	svc := &stubbornService{newBlocking(), make(chan struct{})}
	_, srv := start(t, rpc.Config{Service: svc})
	w := dial(t, srv.Path)
	io.WriteString(w, get("/v1/version"))
	<-svc.entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := srv.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	if !w.closed() {
		t.Error("the connection is still open")
	}
	close(svc.release)
}

// A Service that answers while it is about to use the terminal gets an error
// there; the connection is used by one side only, never by both.
func TestAttachAnswersEarly(t *testing.T) {
	t.Parallel()
	svc := newBlocking()
	_, srv := start(t, rpc.Config{Service: svc})
	for i := range 200 {
		session := []string{"loud", "quiet"}[i%2]
		w := dial(t, srv.Path)
		status, body := w.ask(t, "GET /v1/sessions/"+session+"/attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: berth-terminal\r\n\r\n")
		switch {
		case status == http.StatusServiceUnavailable && session == "loud":
			refused(t, status, body, rpc.CodeUnreachable)
		case status != http.StatusSwitchingProtocols:
			t.Fatalf("%s: %d %s", session, status, body)
		}
		w.Close()
		if err := <-svc.left; err == nil {
			t.Error("Recv has got something")
		}
	}
}
