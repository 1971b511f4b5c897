package cgroupfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What cannot be applied is named; what can is applied by the kernel.
func TestSetLimits(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	has := strings.Fields(read(t, filepath.Join(l.WorkPath(), "cgroup.controllers")))
	failed := l.SetLimits(Limits{PidsMax: 5, MemoryMaxBytes: 64 << 20})
	for _, u := range failed {
		controller, _, _ := strings.Cut(u.File, ".")
		if slices.Contains(has, controller) || !errors.Is(u.Err, fs.ErrNotExist) {
			t.Errorf("%s: %v", u.File, u.Err)
		}
	}
	if kills, ok, err := l.WorkOOMKills(); kills != 0 || ok != slices.Contains(has, "memory") || err != nil {
		t.Errorf("%d %v %v", kills, ok, err)
	}
	if !slices.Contains(has, "pids") {
		t.Skipf("limits not applied: this hierarchy holds %q", has)
	}
	if tree.Mode() == V2 && len(failed) != 0 {
		t.Errorf("on a pure host: %v", failed)
	}
	if got := read(t, filepath.Join(l.WorkPath(), "pids.max")); got != "5\n" {
		t.Errorf("pids.max %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(l.WrapPath(), "pids.max")); string(b) != "max\n" {
		t.Errorf("the wrapper is limited: %q, %v", b, err)
	}
	out := script(t, "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8; do sleep 600 & done\nwait\n")
	c := within(t, l, "sh", out)
	_ = c.Wait() // the shell fails to fork
	if pids, err := l.WorkProcs(); len(pids) > 5 || err != nil {
		t.Errorf("%v, %v", pids, err)
	}
}

// case G14: memory beyond the limit is an OOM kill that is counted.
func TestOOMIsCounted(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	zero := uint64(0)
	for _, u := range l.SetLimits(Limits{MemoryMaxBytes: 16 << 20}) {
		t.Skipf("no memory controller here: %v", u.Err)
	}
	_ = l.SetLimits(Limits{SwapMaxBytes: &zero}) // missing where swap is not accounted
	c := within(t, l, "sh", "-c", `a=xxxxxxxxxxxxxxxx; while :; do a=$a$a; done`)
	if err := c.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Fatal(err)
	}
	if kills, ok, err := l.WorkOOMKills(); kills == 0 || !ok || err != nil {
		t.Errorf("%d %v %v", kills, ok, err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
