package journal_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(killedWriter); dir != "" {
		if err := writeUntilKilled(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	before := descriptors()
	code := m.Run()
	if left := leaks(before); code == 0 && left != "" {
		fmt.Fprintln(os.Stderr, "left behind after all tests:", left)
		code = 1
	}
	os.Exit(code)
}

// leaks says what of goroutines and descriptors stays, after some time to end.
func leaks(before int) (left string) {
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); runtime.Gosched() {
		buf := make([]byte, 1<<20)
		left = ""
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "statefs/journal.") {
				left += g + "\n"
			}
		}
		if n := descriptors(); n > before {
			left += fmt.Sprintf("%d descriptors, %d before", n, before)
		}
		if left == "" {
			return ""
		}
	}
	return left
}

// descriptors counts open files and directories; the runtime keeps some of other kinds.
func descriptors() (n int) {
	entries, _ := os.ReadDir("/proc/self/fd") // without /proc there is nothing to compare
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "/") && !strings.HasSuffix(to, "/fd") {
			n++
		}
	}
	return n
}
