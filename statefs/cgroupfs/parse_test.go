package cgroupfs

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// unitName is what systemd takes for one, unit_name_is_valid in its unit-name.c.
var unitName = regexp.MustCompile(`^[a-zA-Z0-9:_.\\-]+\.scope$`)

func TestLeafNameRoundTrip(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"a", "A-g1", "x-g2-g3", "a.b_c-d", "9", strings.Repeat("s", 128), "a-g1.scope"} {
		for _, g := range []uint64{0, 1, 42, 1<<64 - 1} {
			if got, n, ok := ParseLeafName(LeafName(s, g)); got != s || n != g || !ok {
				t.Errorf("%q %d: %q %d %v", s, g, got, n, ok)
			}
			name := ScopeName(s, g)
			if got, n, ok := ParseLeafName(name); got != s || n != g || !ok || !IsScope(name) || IsScope(LeafName(s, g)) {
				t.Errorf("scope of %q %d: %q %d %v", s, g, got, n, ok)
			}
			if !unitName.MatchString(name) || len(name) > MaxNameLen {
				t.Errorf("%q is no name of a unit", name)
			}
		}
	}
	for _, name := range []string{
		"", "berth-", "berth-a", "berth-a-g", "berth--g1", "berth-a-g01", "berth-a-g+1", "berth-a-g-1", "berth-a-g1 ", "berth-.a-g1",
		"berth-a/b-g1", "berth-a-g18446744073709551616", "berth-a-g1.scope.scope", "berth-a-g1.slice", "berth-.scope", ".scope", "Berth-a-g1", "a-g1", "berth-" + strings.Repeat("s", 129) + "-g1", "berth-ä-g1",
	} {
		if s, n, ok := ParseLeafName(name); ok {
			t.Errorf("%q: %q %d", name, s, n)
		}
	}
}

func FuzzParseLeafName(f *testing.F) {
	f.Add("berth-a-g1")
	f.Add("berth-a-g1-g2")
	f.Add("berth-a-g1.scope")
	f.Fuzz(func(t *testing.T, name string) {
		s, n, ok := ParseLeafName(name)
		if ok && (LeafName(s, n) != name && ScopeName(s, n) != name || checkName(name) != nil) || !ok && (s != "" || n != 0) {
			t.Fatalf("%q: %q %d %v", name, s, n, ok)
		}
	})
}

// Contents of /proc/PID/cgroup on a hybrid host, on a pure one, of a zombie, outside of a namespace.
const (
	hybridProc  = "9:name=systemd:/\n8:pids:/\n4:memory:/a/b\n1:cpu,cpuacct:/\n0::/berth-0123/berth-s-g1/work\n"
	pureProc    = "0::/system.slice/berthd.service\n"
	zombieProc  = "1:cpu:/\n0::/berth-0123/berth-s-g1/wrap (deleted)\n"
	outsideProc = "0::/../../user.slice\n"
)

func TestParseProcCgroup(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, path string
		removed    bool
		err        bool
	}{
		{hybridProc, "/berth-0123/berth-s-g1/work", false, false},
		{pureProc, "/system.slice/berthd.service", false, false},
		{zombieProc, "/berth-0123/berth-s-g1/wrap", true, false},
		{outsideProc, "/../../user.slice", false, false},
		{"0::/\n", "/", false, false},
		{"0::/a b:c::d\n", "/a b:c::d", false, false},
		{"10::/x\n", "", false, true},
		{"0::\n", "", false, true},
		{"0::x\n", "", false, true},
		{"0::/cut", "", false, true},
		{"", "", false, true},
		{"1:cpu:/0::/x\n", "", false, true},
	} {
		p, removed, err := ParseProcCgroup([]byte(c.text))
		if p != c.path || removed != c.removed || (err != nil) != c.err {
			t.Errorf("%q: %q %v %v", c.text, p, removed, err)
		}
	}
	if _, _, err := ParseProcCgroup([]byte("1:cpu:/\n")); !errors.Is(err, ErrNoV2) {
		t.Error(err)
	}
}

func FuzzParseProcCgroup(f *testing.F) {
	for _, s := range []string{hybridProc, pureProc, zombieProc, outsideProc, "0::/cut", ""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, removed, err := ParseProcCgroup(b)
		if err != nil && (p != "" || removed) || err == nil && (!strings.HasPrefix(p, "/") || strings.Contains(p, "\n")) {
			t.Fatalf("%q: %q %v %v", b, p, removed, err)
		}
	})
}

func TestBelow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p, root, rel string
		ok           bool
	}{
		{"/a/b", "/", "a/b", true}, {"/", "/", "", true}, {"/a", "/a", "", true}, {"/a/b", "/a", "b", true},
		{"/ab", "/a", "", false}, {"/..", "/", "", false}, {"/../x", "/", "", false}, {"/..x", "/", "..x", true}, {"/", "/a", "", false},
	} {
		if rel, ok := below(c.p, c.root); ok != c.ok || ok && rel != c.rel {
			t.Errorf("%q below %q: %q %v", c.p, c.root, rel, ok)
		}
	}
}

func TestParseEvents(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]events{
		"populated 1\nfrozen 0\n": {populated: true}, "populated 0\nfrozen 1\n": {frozen: true}, "populated 0\n": {}, "new 7\npopulated 1\n": {populated: true},
	} {
		if e, err := parseEvents([]byte(text)); e != want || err != nil {
			t.Errorf("%q: %+v, %v", text, e, err)
		}
	}
	for _, text := range []string{"", "frozen 0\n", "populated\n", "populated 2\n", "populated 0 \nfrozen 0\n", "populated 0\nfrozen x\n", "xpopulated 0\n"} {
		if e, err := parseEvents([]byte(text)); err == nil {
			t.Errorf("%q: %+v", text, e)
		}
	}
}

func FuzzParseEvents(f *testing.F) {
	f.Add([]byte("populated 1\nfrozen 0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEvents(b)
		if err == nil && !strings.Contains(string(b), "populated ") || err != nil && e != (events{}) {
			t.Fatalf("%q: %+v, %v", b, e, err)
		}
	})
}

func TestParseProcs(t *testing.T) {
	t.Parallel()
	if pids, err := parseProcs([]byte("17\n0\n4\n0\n")); !slices.Equal(pids, []int{17, 4}) || err != nil {
		t.Errorf("%v, %v", pids, err)
	}
	for _, text := range []string{"x\n", "-1\n", "\n", "1 2\n"} {
		if pids, err := parseProcs([]byte(text)); err == nil {
			t.Errorf("%q: %v", text, pids)
		}
	}
}

const mountinfo = `22 1 0:20 / / rw - ext4 /dev/vda rw
30 22 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 30 0:31 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
40 22 0:31 /box/a /mnt/with\040space rw - cgroup2 none rw
50 22 0:31 / /hidden rw - cgroup2 none rw
51 50 0:40 / /hidden rw - tmpfs none rw
`

func TestParseMountRoot(t *testing.T) {
	t.Parallel()
	for point, want := range map[string]string{"/sys/fs/cgroup/unified": "/", "/mnt/with space": "/box/a", "/sys/fs/cgroup": "", "/hidden": "", "/none": ""} {
		if root, ok := parseMountRoot(mountinfo, point); root != want || ok != (want != "") {
			t.Errorf("%q: %q %v", point, root, ok)
		}
	}
}

func FuzzParseMountRoot(f *testing.F) {
	f.Add(mountinfo, "/sys/fs/cgroup/unified")
	f.Fuzz(func(t *testing.T, text, point string) {
		if root, ok := parseMountRoot(text, point); !ok && root != "" {
			t.Fatalf("%q", root)
		}
	})
}

func TestLimitsFiles(t *testing.T) {
	t.Parallel()
	zero := uint64(0)
	got := Limits{PidsMax: 10, MemoryMaxBytes: 1 << 20, MemoryHighBytes: 1 << 19, SwapMaxBytes: &zero, CPUMax: CPUPeriod * 3 / 2, CPUWeight: 50, OOMGroup: true}.files()
	want := []controlFile{
		{"pids.max", "10"}, {"memory.high", "524288"}, {"memory.max", "1048576"}, {"memory.swap.max", "0"},
		{"cpu.max", "150000 100000"}, {"cpu.weight", "50"}, {"memory.oom.group", "1"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if got := (Limits{}).files(); got != nil {
		t.Errorf("%v", got)
	}
}
