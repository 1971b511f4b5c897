package host

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/plugins/sandbox/serve"
)

// pretend is the test binary as somebody else.
func pretend(mode string) int {
	word, rest, _ := strings.Cut(mode, " ")
	switch word {
	case "serve":
		return serve.Main(&fake{kind: os.Getenv(serve.EnvProvider)})
	case "kind":
		return serve.Main(&fake{kind: rest})
	case "contract":
		return serve.Main(&fake{kind: os.Getenv(serve.EnvProvider), contract: 1})
	case "exit":
		fmt.Fprintln(os.Stderr, "no runtime on this host")
		return 3
	case "exit-while": // as long as the file exists
		if _, err := os.Stat(rest); err == nil {
			return 3
		}
		return serve.Main(&fake{kind: os.Getenv(serve.EnvProvider)})
	case "descriptors": // that it was started with
		fds, _ := pidsOf("/proc/self/fd")
		slices.Sort(fds)
		for _, fd := range fds {
			to, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			fmt.Fprintln(os.Stderr, "descriptor", fd, to)
		}
		return 0
	case "mute":
		select {}
	case "garbage":
		fmt.Println("Hello, I am no plugin at all")
		select {}
	case "flood":
		for {
			fmt.Print(strings.Repeat("x", 1000))
		}
	case "stubborn", "descendant", "foreign":
		return difficult(word)
	case "announce":
		fmt.Println(rest)
		select {}
	case "listen": // a stranger behind a plugin's socket
		l, err := net.Listen("unix", rest)
		if err != nil {
			return 1
		}
		for {
			if _, err := l.Accept(); err != nil {
				return 1
			}
		}
	case "daemon":
		return daemon(rest)
	}
	return 9
}

// difficult are plugins that work but do not go, or are not alone.
func difficult(mode string) int {
	if mode == "foreign" {
		path := filepath.Join(os.Getenv("PLUGIN_UNIX_SOCKET_DIR"), "s")
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), modeName+"=listen "+path)
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			return 1
		}
		for {
			if conn, err := net.Dial("unix", path); err == nil {
				conn.Close()
				break
			}
			time.Sleep(time.Millisecond)
		}
		fmt.Printf("1|1|unix|%s|grpc|\n", path)
		select {}
	}
	if mode == "descendant" { // in a session of its own, with every descriptor
		fd, err := unix.Dup(lockFD)
		if err != nil {
			return 1
		}
		c := exec.Command("sleep", "1000")
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		c.ExtraFiles = []*os.File{os.NewFile(uintptr(fd), "lock")}
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			return 1
		}
		return serve.Main(&fake{kind: os.Getenv(serve.EnvProvider)})
	}
	// Its own standard input never ends, so that it never learns of the daemon's
	// death; it talks all the time.
	r, w, err := os.Pipe()
	if err != nil {
		return 1
	}
	os.Stdin = r
	log := os.Stderr
	go func() {
		for {
			if _, err := fmt.Fprintln(log, "still here"); err != nil {
				os.Exit(4)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	defer w.Close()
	return serve.Main(&fake{kind: os.Getenv(serve.EnvProvider)})
}

const lockFD = 3

// daemon runs a host with one plugin in the given mode, prints the plugin's
// pid and waits to be killed. rest is "MODE SOCKETDIR HOSTID".
func daemon(rest string) int {
	f := strings.Fields(rest)
	exe, _ := os.Executable()
	h, err := New(Options{
		SocketDir: f[1], HostID: f[2], Bounds: testBounds(),
		Providers: []Config{{Kind: "test", Path: exe, Env: []string{modeName + "=" + f[0]}}},
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	h.Start(context.Background())
	if _, err := h.Provider(context.Background(), "test"); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(h.Status()[0].PID)
	select {}
}

// fake is a provider that does what the request says.
type fake struct {
	kind      string
	contract  int
	cancelled atomic.Int64
}

func (f *fake) Describe(context.Context) (sandbox.Description, error) {
	return sandbox.Description{
		Kind: f.kind, Version: "0.1", Contract: sandbox.Version + f.contract,
		Capabilities: sandbox.Capabilities{sandbox.Terminal},
	}, nil
}

func (f *fake) act(ctx context.Context, what string) error {
	switch what {
	case "hang":
		<-ctx.Done()
		f.cancelled.Add(1)
		return ctx.Err()
	case "deaf":
		select {}
	case "crash":
		os.Exit(5)
	case "panic":
		panic("deliberate")
	case "refuse":
		return &sandbox.Error{Reason: sandbox.CreationFailed, Message: "no image", Retryable: true}
	case "newer":
		return &sandbox.Error{Reason: "from_the_future", Message: "who knows"}
	case "print":
		fmt.Println("on stdout")
		fmt.Fprintln(os.Stderr, "on stderr")
	case "stop":
		return unix.Kill(os.Getpid(), unix.SIGSTOP)
	}
	return nil
}

func (f *fake) Prepare(ctx context.Context, q sandbox.PrepareRequest) (sandbox.Recipe, error) {
	if err := f.act(ctx, q.Command[0]); err != nil {
		return sandbox.Recipe{}, err
	}
	r := sandbox.Recipe{Version: sandbox.Version, Argv: q.Command, Dir: q.Workspace, UID: q.UID}
	if q.Command[0] == "bad" {
		r.Dir = "relative"
	}
	return r, nil
}

func (f *fake) Observe(ctx context.Context, h sandbox.Handle) (sandbox.Observation, error) {
	if err := f.act(ctx, string(h)); err != nil {
		return sandbox.Observation{}, err
	}
	o := sandbox.Observation{Presence: sandbox.Absent, Detail: fmt.Sprint(f.cancelled.Load())}
	if h == "bad" {
		o.Presence = "perhaps"
	}
	return o, nil
}

func (f *fake) Release(ctx context.Context, h sandbox.Handle) (sandbox.ReleaseResult, error) {
	return sandbox.ReleaseResult{Detail: "gone"}, f.act(ctx, string(h))
}
