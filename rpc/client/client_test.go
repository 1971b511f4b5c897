package client_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/client"
	"github.com/berthd/berth/rpc/internal/rpctest"
)

// bound is the time after which a test gives up waiting.
const bound = 20 * time.Second

func start(t *testing.T) (*rpctest.Service, *client.Client, context.Context) {
	t.Helper()
	svc := rpctest.New()
	srv := rpctest.Start(t, rpc.Config{Service: svc})
	c := client.New(srv.Path)
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	t.Cleanup(cancel)
	return svc, c, ctx
}

func startSession(t *testing.T, ctx context.Context, c *client.Client, id string, terminal bool) rpc.StartReply {
	t.Helper()
	r, err := c.Start(ctx, id, rpc.StartRequest{Spec: &rpc.SessionSpec{Command: []string{"agent"}, Terminal: terminal}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Every row of the table has a method of the client that calls it.
func TestEveryMethod(t *testing.T) {
	t.Parallel()
	svc, c, ctx := start(t)
	startSession(t, ctx, c, "s", true)
	special := map[string]bool{"openapi": true, "attach": true, "logs": true, "events": true}
	for _, m := range rpc.Methods() {
		name := strings.ToUpper(m.Name[:1]) + m.Name[1:]
		if special[m.Name] {
			continue
		}
		if m.Name == "wait" || m.Name == "delete" {
			svc.Exit("s", rpc.Exit{Kind: "code"})
		}
		f := reflect.ValueOf(c).MethodByName(name)
		if !f.IsValid() {
			t.Errorf("client.%s is missing", name)
			continue
		}
		args := []reflect.Value{reflect.ValueOf(ctx)}
		if strings.Contains(m.Path, "{id}") {
			args = append(args, reflect.ValueOf("s"))
		}
		if m.Query != nil {
			args = append(args, reflect.Zero(m.Query))
		}
		if m.Request != nil {
			req := reflect.New(m.Request).Elem()
			if v := req.FieldByName("Verified"); v.IsValid() {
				v.SetBool(true)
			}
			args = append(args, req)
		}
		out := f.Call(args)
		if out[0].Type() != m.Reply {
			t.Errorf("%s returns %v, the table says %v", name, out[0].Type(), m.Reply)
		}
		if err, _ := out[1].Interface().(error); err != nil && rpc.CodeOf(err) != rpc.CodeSessionDeleted {
			t.Errorf("%s: %v", name, err)
		}
		if out[0].IsZero() && m.Name != "resolve" {
			t.Errorf("%s returned nothing", name)
		}
	}
	if doc, err := c.OpenAPI(ctx); err != nil || !strings.Contains(string(doc), `"openapi": "3.1.0"`) {
		t.Errorf("OpenAPI: %v", err)
	}
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	svc, c, ctx := start(t)
	want := &rpc.Error{
		Code: rpc.CodeCapacityRejected, Message: "no room", Retryable: true, RetryAfter: 1500 * time.Millisecond,
		Details: map[string]any{"free_bytes": 12.0},
	}
	svc.Fail("get", want)
	_, err := c.Get(ctx, "s")
	var got *rpc.Error
	if !errors.As(err, &got) || !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, want %#v", err, want)
	}
	_, err = c.Get(ctx, "no such id")
	if rpc.CodeOf(err) != rpc.CodeInvalidRequest {
		t.Errorf("an id with blanks: %v", err)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	c := client.New("/nonexistent/berth.sock")
	_, err := c.Status(t.Context())
	var ue *client.UnreachableError
	if !errors.As(err, &ue) || ue.Sent || !strings.Contains(err.Error(), `"/nonexistent/berth.sock": no such file or directory`) {
		t.Errorf("err = %v", err)
	}
	// case T77
	long := client.New("/" + strings.Repeat("x", 200))
	if _, err := long.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "may have 107") {
		t.Errorf("a path that is too long: %v", err)
	}
}

func TestLogsFollow(t *testing.T) {
	t.Parallel()
	svc, c, ctx := start(t)
	startSession(t, ctx, c, "s", false)
	svc.Output("s", "stdout", "one\n")
	var got []string
	for r, err := range c.Logs(ctx, "s", rpc.LogsQuery{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(r.Data))
		switch r.Seq { // the next comes only after this one has arrived: nothing is held back
		case 1:
			svc.Output("s", "stderr", "two\n")
		case 2:
			svc.Exit("s", rpc.Exit{Kind: "code"})
		}
	}
	if !reflect.DeepEqual(got, []string{"one\n", "two\n"}) {
		t.Errorf("got %q", got)
	}
}

func TestEventsFollow(t *testing.T) {
	t.Parallel()
	svc, c, ctx := start(t)
	startSession(t, ctx, c, "s", false)
	var kinds []string
	for e, err := range c.Events(ctx, rpc.EventsQuery{Follow: true, Session: "s"}) {
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, e.Kind)
		if e.Kind == "owned_absent" {
			break
		}
		svc.Exit("s", rpc.Exit{Kind: "code"})
	}
	if !reflect.DeepEqual(kinds, []string{"verified", "owned_absent"}) {
		t.Errorf("got %q", kinds)
	}
}

func TestStreamFailure(t *testing.T) {
	t.Parallel()
	svc, c, ctx := start(t)
	want := rpc.Errorf(rpc.CodeNotFound, "there is no session %q", "s")
	for _, err := range c.Logs(ctx, "s", rpc.LogsQuery{Follow: true}) {
		var got *rpc.Error
		if !errors.As(err, &got) || !reflect.DeepEqual(got, want) {
			t.Errorf("got %v", err)
		}
	}
	svc.Fail("events", errors.New("disk on fire"))
	for _, err := range c.Events(ctx, rpc.EventsQuery{}) {
		if rpc.CodeOf(err) != rpc.CodeInternal {
			t.Errorf("got %v", err)
		}
	}
}

func TestAttach(t *testing.T) {
	t.Parallel()
	_, c, ctx := start(t)
	startSession(t, ctx, c, "s", true)
	term, err := c.Attach(ctx, "s", rpc.AttachQuery{Rows: 24, Cols: 80, Since: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	recv := func(want string) {
		t.Helper()
		f, err := term.Recv()
		if err != nil || string(f.Data) != want {
			t.Fatalf("Recv = %q, %v; want %q", f.Data, err, want)
		}
	}
	recv("hello 24x80 since 5\r\n")
	if err := term.Send(rpc.ResizeFrame(rpc.Size{Rows: 50, Cols: 132})); err != nil {
		t.Fatal(err)
	}
	recv("size 50x132")
	if err := term.Send(rpc.TerminalFrame{Kind: rpc.TerminalData, Data: []byte("abc")}); err != nil {
		t.Fatal(err)
	}
	recv("ABC")
	if err := term.Send(rpc.TerminalFrame{Kind: rpc.TerminalData, Data: []byte("fail\r")}); err != nil {
		t.Fatal(err)
	}
	f, err := term.Recv()
	if err != nil || f.Kind != rpc.TerminalError || rpc.ParseTerminalError(f.Data).Code != rpc.CodeUnreachable {
		t.Fatalf("Recv = %+v, %v", f, err)
	}
	if _, err := term.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

// A refusal that the Service knows before it uses the terminal has a status.
func TestAttachRefused(t *testing.T) {
	t.Parallel()
	_, c, ctx := start(t)
	if _, err := c.Attach(ctx, "s", rpc.AttachQuery{}); rpc.CodeOf(err) != rpc.CodeNotFound {
		t.Errorf("no session: %v", err)
	}
	startSession(t, ctx, c, "s", false)
	if _, err := c.Attach(ctx, "s", rpc.AttachQuery{}); rpc.CodeOf(err) != rpc.CodeCapability {
		t.Errorf("no terminal: %v", err)
	}
}

func BenchmarkStatus(b *testing.B) {
	srv := rpctest.Start(b, rpc.Config{Service: rpctest.New()})
	c := client.New(srv.Path)
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Status(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLogs reads records of 100 bytes.
func BenchmarkLogs(b *testing.B) {
	svc := rpctest.New()
	srv := rpctest.Start(b, rpc.Config{Service: svc})
	c := client.New(srv.Path)
	defer c.Close()
	if _, err := c.Start(b.Context(), "s", rpc.StartRequest{Spec: &rpc.SessionSpec{Command: []string{"x"}}}); err != nil {
		b.Fatal(err)
	}
	for range b.N {
		svc.Output("s", "stdout", strings.Repeat("x", 100))
	}
	b.ResetTimer()
	n := 0
	for _, err := range c.Logs(b.Context(), "s", rpc.LogsQuery{}) {
		if err != nil {
			b.Fatal(err)
		}
		n++
	}
	if n != b.N {
		b.Fatalf("%d of %d records", n, b.N)
	}
}
