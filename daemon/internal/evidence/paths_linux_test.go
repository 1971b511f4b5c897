package evidence

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/berthd/berth/daemon/internal/discover/discovertest"
)

// Further cgroups count, also those of version 1.
func TestFurtherCgroups(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := newHost(t)
	p := h.newPlace("paths", 1)
	dirs := []string{filepath.Join(h.tree.Path(), "payload")}
	if fi, err := os.Stat("/sys/fs/cgroup/freezer/cgroup.procs"); err == nil && fi.Mode().IsRegular() {
		dirs = append(dirs, "/sys/fs/cgroup/freezer/"+filepath.Base(h.tree.Path()))
	}
	for _, dir := range dirs {
		p.s.CgroupPaths = []string{dir}
		want(t, "not made", p.quick(), Absent, "")
		nested := filepath.Join(dir, "a")
		if err := os.MkdirAll(nested, 0o755); err != nil {
			t.Fatal(err)
		}
		want(t, "empty", p.quick(), Absent, "")
		a := p.start(discovertest.Role{Args: []string{"hold"}}, "")
		if err := os.WriteFile(filepath.Join(nested, "cgroup.procs"), []byte(strconv.Itoa(a.PID)), 0); err != nil {
			t.Fatal(err)
		}
		want(t, "populated", p.quick(), Unknown, "paths: present")
		a.Stop()
		for _, d := range []string{nested, dir} {
			if err := os.Remove(d); err != nil {
				t.Fatal(err)
			}
		}
		want(t, "removed", p.quick(), Absent, "")
	}
	p.s.CgroupPaths = []string{"/no-such-hierarchy/x"}
	want(t, "a hierarchy that is not mounted", p.quick(), Unknown, "paths: unknown")
	p.s.CgroupPaths = []string{t.TempDir()}
	want(t, "no cgroup at all", p.quick(), Unknown, "paths: unknown")
}
