package cgroupfs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const innerEnv = "CGROUPFS_TEST_INNER" // set in a process that plays one test's inner part

func TestMain(m *testing.M) {
	files, goroutines := openFiles(), runtime.NumGoroutine()
	code := m.Run()
	for end := time.Now().Add(10 * time.Second); code == 0 && flag.Lookup("test.fuzz").Value.String() == ""; time.Sleep(time.Millisecond) {
		f, g, left := openFiles(), runtime.NumGoroutine(), leftovers()
		if f <= files && g <= goroutines && left == "" {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintf(os.Stderr, "leak: %d descriptors were %d, %d goroutines were %d, left: %s\n", f, files, g, goroutines, left)
			code = 1
		}
	}
	os.Exit(code)
}

// leftovers names bases of this process and children that it has.
func leftovers() string {
	var left []string
	if mount, mode := Detect(); mode != None {
		entries, _ := os.ReadDir(mount)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ownBase) {
				left = append(left, e.Name())
			}
		}
	}
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		b, _ := os.ReadFile("/proc/self/task/" + t.Name() + "/children")
		if len(b) > 0 {
			left = append(left, "children "+string(b))
		}
	}
	return strings.Join(left, ", ")
}

var ownBase = "cgroupfs-test-" + strconv.Itoa(os.Getpid()) + "-"

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

// inner reports whether this is the inner process of the calling test. If not it runs the same test in
// another process, made as attr says, and reports how that went.
func inner(t *testing.T, attr *syscall.SysProcAttr) bool {
	t.Helper()
	if os.Getenv(innerEnv) == t.Name() {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: other namespaces or users")
	}
	c := exec.Command("/proc/self/exe", "-test.run=^"+regexp.QuoteMeta(t.Name())+"$", "-test.v", "-test.timeout=60s")
	c.Env = append(os.Environ(), innerEnv+"="+t.Name())
	c.Dir = "/"
	c.SysProcAttr = attr
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("inner process: %v\n%s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("inner process: %s", out)
	}
	return false
}

// base opens a tree of the test's own and removes it, whatever is left in it included, at the end.
func base(t testing.TB) *Tree { return baseIn(t, "") }

func baseIn(t testing.TB, parent string) *Tree {
	t.Helper()
	tree, err := Open(parent, ownBase+strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())))
	if err != nil {
		t.Fatal(err)
	}
	if tree.Mode() == None {
		t.Skipf("no usable cgroup v2 tree: %s", tree.Reason())
	}
	t.Cleanup(func() { clear1(t, tree) })
	return tree
}

func clear1(t testing.TB, tree *Tree) {
	t.Helper()
	names, err := tree.List()
	if err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, n := range names {
		if l, err := tree.Open(n); err == nil {
			if err := errors.Join(l.Kill(), l.WaitEmpty(ctx), l.Remove(ctx)); err != nil {
				t.Error(err)
			}
		}
	}
	if err := errors.Join(tree.Remove(), tree.Close()); err != nil {
		t.Error(err)
	}
}

func make1(t testing.TB, tree *Tree, name string) *Leaf {
	t.Helper()
	l, err := tree.Make(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// within starts a command inside work; it is killed and reaped at the end of the test.
func within(t testing.TB, l *Leaf, argv ...string) *exec.Cmd {
	t.Helper()
	return withinAs(t, l, nil, argv...)
}

func withinAs(t testing.TB, l *Leaf, cred *syscall.Credential, argv ...string) *exec.Cmd {
	t.Helper()
	dir, err := l.OpenWork()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	c := exec.Command(argv[0], argv[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Setsid: true, Credential: cred}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

// bound is a context that ends a test which hangs.
func bound(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
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
