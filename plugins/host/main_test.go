package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/plugins/sandbox/serve"
)

// modeName selects what this test binary is when a test starts it as a plugin
// or as a daemon.
const modeName = "HOST_TEST_MODE"

// canaries are what a daemon's environment may hold and no plugin may see.
var canaries = map[string]string{
	"NOTIFY_SOCKET": "/canary", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "LISTEN_FDS": "1", "LISTEN_PID": "1",
	"LISTEN_FDNAMES": "x", "CREDENTIALS_DIRECTORY": "/canary", "HOST_TEST_SECRET": "canary", "HTTPS_PROXY": "http://canary",
	"BERTH_SESSION": "canary", "LD_LIBRARY_PATH": "/canary", "PLUGIN_CLIENT_CERT": "canary",
}

func TestMain(m *testing.M) {
	if mode, ok := os.LookupEnv(modeName); ok {
		os.Exit(pretend(mode))
	}
	for k, v := range canaries {
		os.Setenv(k, v)
	}
	goroutines, files := runtime.NumGoroutine(), len(openFiles())
	code := m.Run()
	if err := leaks(goroutines, files); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "FAIL: leak:", err)
		code = 1
	}
	os.Exit(code)
}

// hostID marks the processes of this run, so that leaks can be told.
func hostID() string { return "hosttest-" + strconv.Itoa(os.Getpid()) }

// leaks reports processes, goroutines and descriptors that tests left behind.
func leaks(goroutines, files int) error {
	var err error
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		switch {
		case len(marked()) > 0:
			err = fmt.Errorf("processes %v", marked())
		case runtime.NumGoroutine() > goroutines+1: // the signal handler's, once
			buf := make([]byte, 1<<20)
			err = fmt.Errorf("%d goroutines, had %d:\n%s", runtime.NumGoroutine(), goroutines, buf[:runtime.Stack(buf, true)])
		case len(openFiles()) > files+2: // the poller's, once
			err = fmt.Errorf("descriptors %v, had %d", openFiles(), files)
		default:
			return nil
		}
	}
	return err
}

// marked lists the living processes that carry this run's mark.
func marked() []int {
	var found []int
	pids, _ := pidsOf("/proc")
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if strings.Contains("\x00"+string(b), "\x00"+serve.EnvHost+"="+hostID()+"\x00") {
			found = append(found, pid)
		}
	}
	return found
}

func openFiles() []string {
	var open []string
	fds, _ := pidsOf("/proc/self/fd")
	for _, fd := range fds {
		if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil && !strings.HasPrefix(to, "/proc/") {
			open = append(open, to)
		}
	}
	return open
}

// testBounds are short, yet long enough for a loaded machine under -race.
func testBounds() Bounds {
	return Bounds{
		Start: 20 * time.Second, Describe: 2 * time.Second, Grace: 5 * time.Second, Kill: 5 * time.Second,
		Probe: 50 * time.Millisecond, BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond,
		Circuit: 1000,
	}
}

// options are those of a host whose plugins have the given modes, one each,
// under the kinds test, test1, test2…
func options(t testing.TB, modes ...string) Options {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "bh") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	o := Options{SocketDir: dir, HostID: hostID(), Bounds: testBounds()}
	for n, mode := range modes {
		kind := "test"
		if n > 0 {
			kind += strconv.Itoa(n)
		}
		o.Providers = append(o.Providers, Config{Kind: kind, Path: exe, Env: []string{modeName + "=" + mode}})
	}
	return o
}

// start runs a host until the test ends.
func start(t testing.TB, o Options) *Host {
	t.Helper()
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	h.Start(context.Background())
	t.Cleanup(func() { stop(t, h) })
	return h
}

func stop(t testing.TB, h *Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := h.Close(ctx); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// provider waits until kind takes calls.
func provider(t testing.TB, h *Host, kind string) sandbox.Provider {
	t.Helper()
	var p sandbox.Provider
	eventually(t, "provider "+kind+" is ready", func() (err error) {
		p, err = h.Provider(context.Background(), kind)
		return err
	})
	return p
}

// refused waits for kind's first start and returns why it takes no calls.
func refused(t testing.TB, h *Host, kind string) *sandbox.Error {
	t.Helper()
	_, err := h.Provider(context.Background(), kind)
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok {
		t.Fatalf("provider %s: got %v, want a refusal", kind, err)
	}
	return e
}

func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("waiting until %s: %v", what, err)
}

func ask(command ...string) sandbox.PrepareRequest {
	return sandbox.PrepareRequest{
		Handle: "h", Host: "x", Session: "s", Instance: "i", Generation: 1,
		Workspace: "/", Home: "/", Command: command,
	}
}

// alive reports whether pid lives and is no zombie.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	after := string(b[strings.LastIndexByte(string(b), ')')+1:])
	return !strings.HasPrefix(strings.TrimSpace(after), "Z")
}
