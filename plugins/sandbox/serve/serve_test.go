package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/berthd/berth/plugins/sandbox"
)

// scripted answers what a test tells it.
type scripted struct {
	prepare func(context.Context, sandbox.PrepareRequest) (sandbox.Recipe, error)
	observe func(context.Context, sandbox.Handle) (sandbox.Observation, error)
}

func (s scripted) Describe(context.Context) (sandbox.Description, error) { return description(), nil }

func (s scripted) Prepare(ctx context.Context, q sandbox.PrepareRequest) (sandbox.Recipe, error) {
	return s.prepare(ctx, q)
}

func (s scripted) Observe(ctx context.Context, h sandbox.Handle) (sandbox.Observation, error) {
	return s.observe(ctx, h)
}

func (s scripted) Release(context.Context, sandbox.Handle) (sandbox.ReleaseResult, error) {
	return sandbox.ReleaseResult{Detail: "released"}, nil
}

// connect serves p on a socket of its own and returns the daemon's end.
func connect(t *testing.T, p sandbox.Provider) *grpc.ClientConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(MaxMessageBytes))
	s.RegisterService(&service, &server{provider: p})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return conn
}

func TestEverythingCrosses(t *testing.T) {
	t.Parallel()
	var asked sandbox.PrepareRequest
	c := &client{connect(t, scripted{
		prepare: func(_ context.Context, q sandbox.PrepareRequest) (sandbox.Recipe, error) {
			asked = q
			return recipe(), nil
		},
		observe: func(context.Context, sandbox.Handle) (sandbox.Observation, error) { return observation(), nil },
	})}
	ctx := t.Context()
	d, err := c.Describe(ctx)
	equal(t, d, description(), err)
	r, err := c.Prepare(ctx, request())
	equal(t, r, recipe(), err)
	equal(t, asked, request(), nil)
	o, err := c.Observe(ctx, "h")
	equal(t, o, observation(), err)
	l, err := c.Release(ctx, "h")
	equal(t, l, sandbox.ReleaseResult{Detail: "released"}, err)
}

func TestErrorsCrossWhole(t *testing.T) {
	t.Parallel()
	sent := &sandbox.Error{Reason: sandbox.CreationUnsettled, Message: "half \"done\"\n\u2713", Retryable: true}
	failures := map[sandbox.Handle]error{
		"typed": sent, "wrapped": errors.Join(errors.New("x"), sent), "plain": errors.New("boom"),
	}
	c := &client{connect(t, scripted{observe: func(_ context.Context, h sandbox.Handle) (sandbox.Observation, error) {
		return sandbox.Observation{}, failures[h]
	}})}
	for h, want := range map[sandbox.Handle]*sandbox.Error{
		"typed": sent, "wrapped": sent,
		"plain": {Reason: sandbox.InfrastructureFailed, Message: "boom", Retryable: true},
		"bad/h": {Reason: sandbox.InvalidRequest, Message: `handle "bad/h" holds more than [A-Za-z0-9_.-]`},
	} {
		_, err := c.Observe(t.Context(), h)
		got, ok := errors.AsType[*sandbox.Error](err)
		if !ok || *got != *want {
			t.Errorf("%s: got %#v, want %#v", h, err, want)
		}
	}
}

func TestCancelledCallReachesProvider(t *testing.T) {
	t.Parallel()
	entered, left := make(chan struct{}), make(chan struct{})
	c := &client{connect(t, scripted{observe: func(ctx context.Context, _ sandbox.Handle) (sandbox.Observation, error) {
		close(entered)
		<-ctx.Done()
		close(left)
		return sandbox.Observation{}, ctx.Err()
	}})}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	_, err := c.Observe(ctx, "h")
	if status.Code(err) != codes.Canceled {
		t.Errorf("got %v, want status Canceled", err)
	}
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Error("the provider did not see the cancellation")
	}
}

// A peer of another age: fields that nobody here knows are ignored, methods
// that it lacks are Unimplemented, garbage is an error and never a panic.
func TestOtherAges(t *testing.T) {
	t.Parallel()
	conn := connect(t, scripted{observe: func(context.Context, sandbox.Handle) (sandbox.Observation, error) {
		return observation(), nil
	}})
	call := func(method, in string) (string, error) {
		out := new(wrapperspb.BytesValue)
		err := conn.Invoke(t.Context(), "/"+serviceName+"/"+method, wrapperspb.Bytes([]byte(in)), out)
		return string(out.GetValue()), err
	}
	if out, err := call("Observe", `{"handle":"h","newer":{"x":[1]}}`); err != nil || !strings.Contains(out, `"present"`) {
		t.Errorf("unknown field: %s, %v", out, err)
	}
	if _, err := call("Enter", `{}`); status.Code(err) != codes.Unimplemented {
		t.Errorf("unknown method: %v", err)
	}
	for _, bad := range []string{"", "null x", `{"handle":7}`, "\xff\xfe"} {
		if out, err := call("Observe", bad); err != nil || !strings.Contains(out, "invalid_request") {
			t.Errorf("garbage %q: %s, %v", bad, out, err)
		}
	}
}

type fixed struct {
	grpc.ClientConnInterface
	answer string
}

func (f fixed) Invoke(_ context.Context, _ string, _, out any, _ ...grpc.CallOption) error {
	out.(*wrapperspb.BytesValue).Value = []byte(f.answer)
	return nil
}

func TestAnswersThatAreNone(t *testing.T) {
	t.Parallel()
	for _, a := range []string{"", "{}", "[]", `{"result":7}`, `{"error":null}`} {
		if _, err := (&client{fixed{answer: a}}).Describe(t.Context()); err == nil {
			t.Errorf("answer %q passed", a)
		}
	}
}

// FuzzAnswer: whatever a provider sends, the daemon gets a value or an error.
func FuzzAnswer(f *testing.F) {
	f.Add(`{"result":{"presence":"absent"}}`)
	f.Add(`{"error":{"reason":"x"},"result":null}`)
	f.Fuzz(func(t *testing.T, a string) {
		o, err := (&client{fixed{answer: a}}).Observe(t.Context(), "h")
		if err != nil && !reflect.ValueOf(o).IsZero() {
			t.Errorf("value %v beside error %v", o, err)
		}
	})
}

// The files under testdata are version 1 of the contract: a change that alters
// one breaks every provider that is out there. Add files for additions.
func TestGoldenMessages(t *testing.T) {
	t.Parallel()
	d, r, o := description(), recipe(), observation()
	for name, v := range map[string]any{
		"describe.reply":  answer[sandbox.Description]{Result: &d},
		"prepare.request": request(),
		"prepare.reply":   answer[sandbox.Recipe]{Result: &r},
		"observe.request": handleRequest{"berth-s1-g3"},
		"observe.reply":   answer[sandbox.Observation]{Result: &o},
		"release.reply":   answer[sandbox.ReleaseResult]{Result: &sandbox.ReleaseResult{Detail: "nothing to give back"}},
		"error.reply": answer[sandbox.Recipe]{Error: &sandbox.Error{
			Reason: sandbox.CreationFailed, Message: "no room for the image", Retryable: true,
		}},
	} {
		got, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name+".v1.json")
		if os.Getenv("UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(bytes.TrimSpace(want), got) {
			t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
		}
	}
}

func description() sandbox.Description {
	return sandbox.Description{
		Kind: "process", Version: "1.2.3", Contract: 1,
		Capabilities: sandbox.Capabilities{sandbox.Rootless, sandbox.Terminal},
	}
}

func request() sandbox.PrepareRequest {
	return sandbox.PrepareRequest{
		Handle: "berth-s1-g3", Host: "0123456789abcdef0123456789abcdef", Session: "s1",
		Instance: "fedcba9876543210fedcba9876543210", Generation: 3, Workspace: "/var/lib/berth/workspaces/s1",
		Command: []string{"agent", "--flag"}, Env: []string{"A=b"}, UID: 1000, GID: 1001, Groups: []uint32{27},
		Home: "/home/u", Terminal: true,
		Limits: sandbox.Limits{Processes: 64, MemoryBytes: 1 << 30, CPUPercent: 150, OpenFiles: 1024},
	}
}

func recipe() sandbox.Recipe {
	return sandbox.Recipe{
		Version: 1, Argv: []string{"agent", "--flag"}, Env: []string{"HOME=/home/u", "A=b"}, Dir: "/var/lib/berth/workspaces/s1",
		SetIDs: true, UID: 1000, GID: 1001, Groups: []uint32{27}, NoNewPrivileges: true,
		Rlimits: []sandbox.Rlimit{{Name: "nofile", Soft: 1024, Hard: 1024}},
		Cgroup:  sandbox.Limits{Processes: 64}, Umask: 0o27,
	}
}

func observation() sandbox.Observation {
	return sandbox.Observation{
		Presence: sandbox.Present, Detail: "running", Cgroups: []string{"/sys/fs/cgroup/x"},
	}
}

func equal[A any](t *testing.T, got, want A, err error) {
	t.Helper()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}
