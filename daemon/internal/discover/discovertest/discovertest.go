// Package discovertest plays processes that are hard to see, for the tests of every package that looks
// for processes, and checks that such tests leave nothing behind. It knows nothing of what is looked for.
package discovertest

import (
	"bufio"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

//go:embed testdata/actor.c
var actorSource []byte

// Binary returns the actor program, compiled once per test binary; it skips the test when there is no
// compiler. Every uid may execute it.
func Binary(tb testing.TB) string {
	tb.Helper()
	return Compile(tb, "actor", actorSource)
}

var compiled struct {
	sync.Mutex
	dir   string
	paths map[string]string
}

// ProgramsEnv names a directory with programs that were compiled elsewhere, for machines without a
// compiler; a program that is in there is not compiled.
const ProgramsEnv = "DISCOVERTEST_PROGRAMS"

// Compile builds a C program from its source, once per name.
func Compile(tb testing.TB, name string, source []byte) string {
	tb.Helper()
	if dir := os.Getenv(ProgramsEnv); dir != "" {
		if p := filepath.Join(dir, name); executable(p) {
			return p
		}
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		if cc, err = exec.LookPath("gcc"); err != nil {
			tb.Skip("no C compiler: neither cc nor gcc is in PATH")
		}
	}
	compiled.Lock()
	defer compiled.Unlock()
	if p, ok := compiled.paths[name]; ok {
		return p
	}
	if compiled.dir == "" {
		if compiled.dir, err = os.MkdirTemp("", "discovertest"); err != nil {
			tb.Fatal(err)
		}
		if err := os.Chmod(compiled.dir, 0o755); err != nil {
			tb.Fatal(err)
		}
		compiled.paths = map[string]string{}
	}
	src, bin := filepath.Join(compiled.dir, name+".c"), filepath.Join(compiled.dir, name)
	if err := os.WriteFile(src, source, 0o644); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(cc, "-O2", "-Wall", "-static", "-pthread", "-o", bin, src)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	compiled.paths[name] = bin
	return bin
}

func executable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode()&0o111 != 0
}

// Role is what to start.
type Role struct {
	Args   []string // role and its arguments, see testdata/actor.c
	Env    []string // the whole environment
	UID    int      // 0 is our own
	Cgroup *os.File // clone into this cgroup v2 directory; nil stays

	Attr func(*syscall.SysProcAttr) // what else; nil is nothing
}

// Actor is a started role.
type Actor struct {
	PID int
	N   int // the number on its first line

	stdin io.WriteCloser
	cmd   *exec.Cmd
	once  sync.Once
}

// Start starts a role and returns when it is in place. It ends with the test.
func Start(tb testing.TB, r Role) *Actor {
	tb.Helper()
	cmd := exec.Command(Binary(tb), r.Args...)
	cmd.Env = append([]string{}, r.Env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if r.UID != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(r.UID), Gid: uint32(r.UID)}
	}
	if r.Cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(r.Cgroup.Fd())
	}
	if r.Attr != nil {
		r.Attr(cmd.SysProcAttr)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatalf("starting %v: %v", r.Args, err)
	}
	a := &Actor{PID: cmd.Process.Pid, stdin: stdin, cmd: cmd}
	tb.Cleanup(a.Stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		tb.Fatalf("role %v: %v", r.Args, err)
	}
	if _, n, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
		a.N, _ = strconv.Atoi(n)
	}
	return a
}

// CloseInput ends the role from its side and does not wait.
func (a *Actor) CloseInput() { _ = a.stdin.Close() }

// Kill sends SIGKILL, reaps and ends the rest by its input.
func (a *Actor) Kill() {
	_ = a.cmd.Process.Kill()
	a.Stop()
}

// Stop ends the role and reaps it. More calls do nothing.
func (a *Actor) Stop() {
	a.once.Do(func() {
		_ = a.stdin.Close()
		_ = a.cmd.Process.Signal(syscall.SIGCONT)
		_ = a.cmd.Wait()
	})
}

// Eventually polls until ok and fails the test when it has not come true within 10 s.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	tb.Fatalf("did not come true: %s", what)
}

// Main runs the tests of a package and reports descriptors, goroutines and children that they left.
func Main(m *testing.M, left func() []string) int {
	if r, w, err := os.Pipe(); err == nil { // the runtime keeps the poller that this makes it open
		_, _ = r.Close(), w.Close()
	}
	fds, goroutines := countFDs(), runtime.NumGoroutine()
	code := m.Run()
	if compiled.dir != "" {
		_ = os.RemoveAll(compiled.dir)
	}
	if f := flag.Lookup("test.fuzz"); f != nil && f.Value.String() != "" {
		return code // fuzzing has workers of its own
	}
	complaint := func() (all []string) {
		if n := countFDs(); n > fds {
			all = append(all, fmt.Sprintf("%d descriptors, %d before", n, fds))
		}
		if n := runtime.NumGoroutine(); n > goroutines {
			all = append(all, fmt.Sprintf("%d goroutines, %d before", n, goroutines))
		}
		if c := children(); c != "" {
			all = append(all, "children "+c)
		}
		if left != nil {
			all = append(all, left()...)
		}
		return all
	}
	end := time.Now().Add(5 * time.Second)
	for len(complaint()) > 0 && time.Now().Before(end) {
		time.Sleep(10 * time.Millisecond)
	}
	for _, c := range complaint() {
		fmt.Fprintln(os.Stderr, "left behind:", c)
		code = max(code, 1)
	}
	return code
}

func countFDs() int {
	entries, _ := os.ReadDir("/proc/self/fd")
	return len(entries)
}

func children() string {
	var all []string
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil {
			all = append(all, strings.Fields(string(b))...)
		}
	}
	return strings.Join(all, " ")
}
