package rpc_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/internal/rpctest"
)

// bound is the time after which a test gives up waiting.
const bound = 20 * time.Second

// helperVariable makes the test binary another process of a test.
const helperVariable = "BERTH_RPC_TEST_HELPER"

func TestMain(m *testing.M) {
	if name := os.Getenv(helperVariable); name != "" {
		os.Exit(helpers[name](os.Args[1:]))
	}
	// The runtime's poller keeps two descriptors from its first use on.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before := openFiles()
	code := m.Run()
	// A fuzzing run keeps a goroutine of os/signal.
	if code == 0 && flag.Lookup("test.fuzz").Value.String() == "" {
		code = leaks(before)
	}
	os.Exit(code)
}

// leaks looks for goroutines and descriptors that tests have left behind.
func leaks(before int) int {
	var stacks string
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		buf := make([]byte, 1<<20)
		stacks = string(buf[:runtime.Stack(buf, true)])
		if strings.Count(stacks, "\n\ngoroutine ") == 0 && openFiles() <= before {
			return 0
		}
		if time.Now().After(deadline) {
			fmt.Fprintf(os.Stderr, "left behind: %d descriptors (were %d), goroutines:\n%s\n", openFiles(), before, stacks)
			return 1
		}
	}
}

func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// helper runs one of helpers as another process, as uid and with groups when
// uid is not negative.
func helper(t *testing.T, uid int, groups []uint32, name string, args ...string) *exec.Cmd {
	t.Helper()
	// By this path it can be executed by a uid that cannot reach the directory
	// of the test binary.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), helperVariable+"="+name, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	cmd.Dir = "/"
	if uid >= 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), Groups: groups}}
	}
	return cmd
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to connect as another uid")
	}
}

// start serves a memory with cfg's other settings.
func start(t *testing.T, cfg rpc.Config) (*rpctest.Service, *rpctest.Server) {
	t.Helper()
	svc := rpctest.New()
	if cfg.Service == nil {
		cfg.Service = svc
	}
	return svc, rpctest.Start(t, cfg)
}

// wire is a raw connection.
type wire struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, path string) *wire {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(bound))
	return &wire{c, bufio.NewReader(c)}
}

// ask sends text as it is and returns the reply's status and body.
func (w *wire) ask(t *testing.T, text string) (int, string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	return w.reply(t)
}

func (w *wire) reply(t *testing.T) (int, string) {
	t.Helper()
	resp, err := http.ReadResponse(w.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// closed tells whether the server has closed the connection.
func (w *wire) closed() bool {
	w.SetReadDeadline(time.Now().Add(bound))
	_, err := w.r.ReadByte()
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
}

func get(path string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"
}

func post(path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

// until polls ok, which must become true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bound); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for: %s", bound, what)
		}
	}
}

// blockingService blocks in Status and Explain.
type blockingService struct {
	*rpctest.Service
	entered chan struct{}
	left    chan error
}

func newBlocking() *blockingService {
	return &blockingService{Service: rpctest.New(), entered: make(chan struct{}, 100), left: make(chan error, 100)}
}

// Status blocks until its context ends.
func (b *blockingService) Status(ctx context.Context, _ rpc.Peer) (rpc.StatusReply, error) {
	b.entered <- struct{}{}
	<-ctx.Done()
	b.left <- ctx.Err()
	return rpc.StatusReply{}, ctx.Err()
}

// Scan panics.
func (b *blockingService) Scan(context.Context, rpc.Peer) (rpc.ScanReply, error) {
	panic("scan fell over")
}

// Events panics after one record.
func (b *blockingService) Events(_ context.Context, _ rpc.Peer, _ rpc.EventsQuery, emit func(rpc.Event) error) error {
	if err := emit(rpc.Event{Seq: 1, Kind: "one"}); err != nil {
		return err
	}
	panic("events fell over")
}

// Logs writes until it cannot.
func (b *blockingService) Logs(_ context.Context, _ rpc.Peer, _ string, _ rpc.LogsQuery, emit func(rpc.LogRecord) error) error {
	b.entered <- struct{}{}
	for i := uint64(1); ; i++ {
		if err := emit(rpc.LogRecord{Seq: i, Data: make([]byte, 32<<10)}); err != nil {
			b.left <- err
			return err
		}
	}
}

// Attach fails at once, while a goroutine of it goes for the terminal.
func (b *blockingService) Attach(_ context.Context, _ rpc.Peer, session string, _ rpc.AttachQuery, t rpc.Terminal) error {
	go func() { // ends with the terminal
		_, err := t.Recv()
		b.left <- err
	}()
	if session == "quiet" {
		return nil
	}
	return rpc.Errorf(rpc.CodeUnreachable, "too late")
}
