package rpc_test

import (
	"testing"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/internal/rpctest"
)

const (
	strangerUID = 54321
	readerGroup = 54400
)

// A uid without a role is refused before its request is looked at.
func TestStrangerIsRefused(t *testing.T) {
	t.Parallel()
	needRoot(t)
	svc, srv := start(t, rpc.Config{})
	status, body := output(t, helper(t, strangerUID, nil, "caller", srv.Path, get("/v1/status")))
	refused(t, status, body, rpc.CodeForbidden, "uid 54321")
	status, body = output(t, helper(t, strangerUID, nil, "caller", srv.Path, get("/v1/nothing")))
	refused(t, status, body, rpc.CodeForbidden)
	if calls := svc.Calls(); len(calls) > 0 {
		t.Errorf("the service was called: %v", calls)
	}
}

// Many strangers who say nothing cost their own connections only.
func TestSilentStrangers(t *testing.T) {
	t.Parallel()
	needRoot(t)
	_, srv := start(t, rpc.Config{})
	for range 8 {
		cmd := helper(t, strangerUID, nil, "caller", srv.Path, "GET /v1/st") // and no more
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
	}
	if status, body := dial(t, srv.Path).ask(t, get("/v1/version")); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

// The role comes from the groups that the kernel noted, supplementary ones
// included.
func TestReaderReadsOnly(t *testing.T) {
	t.Parallel()
	needRoot(t)
	svc, srv := start(t, rpc.Config{Access: rpc.Access{ReaderGIDs: []uint32{readerGroup}}})
	ask := func(groups []uint32, request string) (int, string) {
		t.Helper()
		return output(t, helper(t, strangerUID, groups, "caller", srv.Path, request))
	}
	status, body := ask(nil, get("/v1/version"))
	refused(t, status, body, rpc.CodeForbidden)
	many := make([]uint32, 0, 100) // more than fit the first buffer
	for i := range uint32(99) {
		many = append(many, 60000+i)
	}
	many = append(many, readerGroup)
	for _, m := range rpc.Methods() {
		if m.Stream != rpc.StreamNone || m.Name == "wait" || m.Name == "get" || m.Name == "explain" {
			continue
		}
		request := get(m.Path)
		if m.Changes() {
			request = post(m.Expand("s"), "{}")
		}
		status, body := ask(many, request)
		if m.Changes() {
			refused(t, status, body, rpc.CodeForbidden, m.Name+" needs the", "has the reader role")
		} else if status != 200 {
			t.Errorf("%s: %d %s", m.Name, status, body)
		}
	}
	status, body = ask(many, "GET /v1/sessions/s/attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: berth-terminal\r\n\r\n")
	refused(t, status, body, rpc.CodeForbidden, "read_only=true")
	status, body = ask(many, "GET /v1/sessions/s/attach?read_only HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: berth-terminal\r\n\r\n")
	refused(t, status, body, rpc.CodeNotFound)
	for _, p := range svc.Peers() {
		if p.UID != strangerUID || p.GID != strangerUID || p.Role != rpc.RoleReader || p.PID == 0 {
			t.Errorf("%+v", p)
		}
	}
}

func TestUserResolvesNothing(t *testing.T) {
	t.Parallel()
	needRoot(t)
	_, srv := start(t, rpc.Config{Access: rpc.Access{AllowUsers: true}})
	status, body := output(t, helper(t, strangerUID, nil, "caller", srv.Path, post("/v1/sessions/s/start", `{"spec":{"command":["a"]}}`)))
	if status != 200 {
		t.Errorf("start: %d %s", status, body)
	}
	status, body = output(t, helper(t, strangerUID, nil, "caller", srv.Path, post("/v1/sessions/s/resolve", `{}`)))
	refused(t, status, body, rpc.CodeForbidden, "operator role")
}

// A socket whose mode excludes a uid does not even talk to it.
func TestModeExcludes(t *testing.T) {
	t.Parallel()
	needRoot(t)
	path := rpctest.SocketPath(t)
	l, err := rpc.Listen(path, 0o660, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, body := output(t, helper(t, strangerUID, nil, "caller", path, get("/v1/status"))); body != "not connected\n" {
		t.Errorf("%q", body)
	}
}
