package cgroupfs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

// stormUID is a user that nothing else runs as, so that its process limit bounds the storm alone.
const stormUID = 61327

// script writes an executable that an arbitrary user can run, and that ends when the test's directory
// goes, whatever else fails.
func script(t *testing.T, body string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "script")
	if err := os.WriteFile(path, []byte(body), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// case T34, T21: double forks, new sessions and forks in a loop, up to a bound: one write ends it all.
func TestKillOutrunsForks(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: another user, whose process limit bounds the forks")
	}
	tree := base(t)
	l := make1(t, tree, LeafName("storm", 1))
	path := script(t, `#!/bin/sh
ulimit -p 100 2>/dev/null || ulimit -u 100 || exit 1
if [ -z "$1" ]; then
	for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
		(setsid sh "$0" loop </dev/null >/dev/null 2>&1 &)
	done
	exit
fi
while [ -e "$0" ]; do (setsid sh -c ": & : & :"); done
`)
	withinAs(t, l, &syscall.Credential{Uid: stormUID, Gid: stormUID}, "sh", path)
	eventually(t, "a storm", func() bool {
		pids, err := l.WorkProcs()
		return err == nil && len(pids) > 12
	})
	start := time.Now()
	if err := errors.Join(l.Kill(), l.WaitEmpty(bound(t))); err != nil {
		t.Fatal(err)
	}
	t.Logf("storm gone after %v", time.Since(start))
	if pids := ofUser(t, stormUID); len(pids) != 0 {
		t.Fatalf("survivors: %v", pids)
	}
	if err := l.Remove(bound(t)); err != nil {
		t.Fatal(err)
	}
}

// ofUser lists the live processes of a user.
func ofUser(t *testing.T, uid int) []string {
	t.Helper()
	var found []string
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		b, err := os.ReadFile(d + "/status")
		if err == nil && strings.Contains(string(b), "\nUid:\t"+itoa(uid)+"\t") && !strings.Contains(string(b), "\nState:\tZ") {
			found = append(found, d)
		}
	}
	return found
}

// case T21: a chain in which each process starts the next and ends is populated at every look, whatever
// a listing catches, and one write ends it.
func TestForkChain(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("chain", 1))
	path := script(t, "#!/bin/sh\n[ -e \"$0\" ] && sh \"$0\" &\n")
	c := within(t, l, "sh", path)
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		if p, err := l.Populated(); !p || err != nil {
			t.Fatalf("populated %v, %v", p, err)
		}
	}
	if err := errors.Join(l.Kill(), l.WaitEmpty(bound(t)), l.Remove(bound(t))); err != nil {
		t.Fatal(err)
	}
}

func TestTermWork(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	polite := within(t, l, "sleep", "600")
	stopped := within(t, l, "sleep", "600")
	if err := stopped.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	deaf := within(t, l, "sh", "-c", `trap "" TERM; echo; while :; do sleep 600; done`)
	eventually(t, "a deaf one that has a child", func() bool {
		pids, err := l.WorkProcs()
		return err == nil && len(pids) == 4 && ignoresTerm(deaf.Process.Pid)
	})
	nested := filepath.Join(l.WorkPath(), "n")
	if err := errors.Join(os.Mkdir(nested, 0o755), os.WriteFile(nested+"/cgroup.procs", []byte(itoa(stopped.Process.Pid)), 0)); err != nil {
		t.Fatal(err)
	}
	n, err := l.TermWork(bound(t))
	if n < 4 || err != nil {
		t.Fatalf("signalled %d, %v", n, err)
	}
	for _, c := range []*exec.Cmd{polite, stopped} {
		if err := c.Wait(); err == nil || err.Error() != "signal: terminated" {
			t.Fatal(err)
		}
	}
	if pids, err := l.WorkProcs(); !slices.Contains(pids, deaf.Process.Pid) || err != nil {
		t.Fatalf("%v, %v", pids, err)
	}
	if err := errors.Join(l.KillWork(), l.WaitEmpty(bound(t))); err != nil {
		t.Fatal(err)
	}
}

func ignoresTerm(pid int) bool {
	b, _ := os.ReadFile("/proc/" + itoa(pid) + "/status")
	_, rest, _ := strings.Cut(string(b), "SigIgn:\t")
	mask, _, _ := strings.Cut(rest, "\n")
	v, err := strconv.ParseUint(mask, 16, 64)
	return err == nil && v&(1<<(syscall.SIGTERM-1)) != 0
}

// Nobody outside is signalled: a bystander that was in the leaf a moment ago lives on.
func TestTermWorkSparesWhoHasLeft(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("a", 1))
	other := make1(t, tree, LeafName("b", 1))
	left := within(t, l, "sleep", "600")
	if err := os.WriteFile(other.WorkPath()+"/cgroup.procs", []byte(itoa(left.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	// A stale listing names it; its pidfd can be opened; it is not a member any more.
	if n, err := l.termBatch([]int{left.Process.Pid}, map[int]bool{}); n != 0 || err != nil {
		t.Fatalf("signalled %d, %v", n, err)
	}
	if p, err := other.WorkPopulated(); !p || err != nil {
		t.Fatalf("%v, %v", p, err)
	}
}

// case T10: what a leaf of the same name left behind is named exactly, never reused.
func TestMakeOverPopulatedLeaf(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	within(t, l, "sleep", "600")
	if _, err := tree.Make(l.Name()); !errors.Is(err, ErrExists) || errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if p, err := l.Populated(); !p || err != nil {
		t.Fatalf("%v, %v", p, err)
	}
}
