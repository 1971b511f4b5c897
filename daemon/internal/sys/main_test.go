package sys

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// Roles that this test binary plays when it is started again in other namespaces or as another user.
// Each returns what is wrong.
var roles = map[string]func() error{
	"recycle": roleRecycle,
	"hidden":  roleHidden,
	"thread":  roleThread,
}

const roleEnv = "SYS_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := roles[role](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	files, goroutines := openFiles(), runtime.NumGoroutine()
	code := m.Run()
	for end := time.Now().Add(5 * time.Second); code == 0 && !fuzzing(); time.Sleep(time.Millisecond) {
		f, g := openFiles(), runtime.NumGoroutine()
		if f <= files && g <= goroutines {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintf(os.Stderr, "leak: %d descriptors were %d, %d goroutines were %d\n", f, files, g, goroutines)
			code = 1
		}
	}
	os.Exit(code)
}

// fuzzing reports whether the engine of go test -fuzz runs here, which keeps goroutines of its own.
func fuzzing() bool { return flag.Lookup("test.fuzz").Value.String() != "" }

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
