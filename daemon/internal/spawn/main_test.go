package spawn

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/statefs/cgroupfs"
	"golang.org/x/sys/unix"
)

const roleEnv = "SPAWN_TEST_ROLE"

// TestMain makes this binary its own wrapper and its own daemon: with a role in the environment it is
// the started program.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(play(role))
	}
	files, goroutines := openFiles(), runtime.NumGoroutine()
	code := m.Run()
	for end := time.Now().Add(10 * time.Second); code == 0 && flag.Lookup("test.fuzz").Value.String() == ""; time.Sleep(time.Millisecond) {
		f, g, left := openFiles(), runtime.NumGoroutine(), children()
		if f <= files && g <= goroutines && left == "" {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintf(os.Stderr, "leak: %d descriptors were %d, %d goroutines were %d, children: %s\n", f, files, g, goroutines, left)
			code = 1
		}
	}
	os.Exit(code)
}

func children() string {
	var left []string
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		b, _ := os.ReadFile("/proc/self/task/" + t.Name() + "/children")
		left = append(left, strings.Fields(string(b))...)
	}
	return strings.Join(left, " ")
}

// openFiles counts what is open but for the runtime's poller, which comes with the first use.
func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	n := 0
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && to != "anon_inode:[eventpoll]" && to != "anon_inode:[eventfd]" {
			n++
		}
	}
	return n
}

// play is what a started program does: read the recipe as berth-wrap does, then whatever it says.
func play(role string) int {
	switch role {
	case "deaf": // ignores the end of its pipe
		signal.Ignore(unix.SIGTERM)
		time.Sleep(time.Hour)
	case "daemon": // parks a wrapper and is killed
		return playDaemon()
	case "status":
		b, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return 98
		}
		sid, _ := unix.Getsid(0)
		score, _ := os.ReadFile("/proc/self/oom_score_adj")
		dir, _ := os.Getwd()
		fmt.Printf("%sSid:\t%v\nScore:\t%sDir:\t%s\nEnv:\t%d\n", b, sid == os.Getpid(), score, dir, len(os.Environ()))
	}
	recipe, err := io.ReadAll(os.NewFile(3, "recipe"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	return perform(recipe)
}

func perform(recipe []byte) int {
	verb, arg, _ := strings.Cut(string(recipe), " ")
	switch verb {
	case "exit":
		code, _ := strconv.Atoi(arg)
		return code
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "size":
		fmt.Print(len(recipe))
	case "sleep":
		time.Sleep(time.Hour)
	case "cgroup":
		b, _ := os.ReadFile("/proc/self/cgroup")
		fmt.Print(string(b))
	}
	return 0
}

func playDaemon() int {
	w, err := NewWatcher()
	if err != nil {
		return 97
	}
	exe, _ := os.Executable()
	p, err := Start(context.Background(), Request{Path: exe, Env: []string{roleEnv + "=wrap", "GORACE=atexit_sleep_ms=0"}})
	if err != nil || w.Add(p.PidFD, 1) != nil {
		return 96
	}
	fmt.Println(p.Identity.PID)
	time.Sleep(time.Hour)
	return 0
}

// self is a request that starts this test binary in a role.
func self(t testing.TB, role string) Request {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Request{Path: exe, Args: []string{"wrap"}, Env: []string{roleEnv + "=" + role, "GORACE=atexit_sleep_ms=0"}}
}

func logFile(t testing.TB) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "wrap.log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// parked starts a wrapper that the end of the test aborts.
func parked(t testing.TB, req Request) *Parked {
	t.Helper()
	p, err := Start(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bury(t, p) })
	return p
}

func bury(t testing.TB, p *Parked) {
	t.Helper()
	if p.PidFD < 0 {
		return
	}
	_ = unix.PidfdSendSignal(p.PidFD, unix.SIGKILL, nil, 0)
	if err := p.Abort(); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func watcher(t testing.TB) *Watcher {
	t.Helper()
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func next(t testing.TB, w *Watcher) Exit {
	t.Helper()
	select {
	case e := <-w.Events():
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("no exit within 20 s")
		return Exit{}
	}
}

// run starts a helper process that is no business of the watcher.
func run(t testing.TB, argv ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(argv[0], argv[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return c
}

// eventually polls until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// leaf makes a leaf in a tree of the test's own.
func leaf(t testing.TB) *cgroupfs.Leaf {
	t.Helper()
	tree, err := cgroupfs.Open("", "spawn-test-"+strconv.Itoa(os.Getpid())+"-"+strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")))
	if err != nil {
		t.Fatal(err)
	}
	if tree.Mode() == cgroupfs.None {
		t.Skipf("no usable cgroup v2 tree: %s", tree.Reason())
	}
	l, err := tree.Make(cgroupfs.LeafName("s", 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		for _, err := range []error{l.Kill(), l.WaitEmpty(ctx), l.Remove(ctx), tree.Remove(), tree.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return l
}
