package discover

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// fixture reads a file that was copied from /proc of a real kernel.
func fixture(tb testing.TB, path ...string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{"testdata"}, path...)...))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	tail := " 1 1 0 -1 4194560 5 0 0 0 0 0 0 0 20 0 3 0 4711 0 0"
	for _, c := range []struct {
		in   string
		comm string
		ok   bool
	}{
		{"42 (a) S 7" + tail, "a", true},
		{"42 (a) b) (c\n) S 7" + tail, "a) b) (c\n", true},
		{"42 () S 7" + tail + "\n", "", true},
		{"42 (a) S 7 1 1", "", false},
		{"42 (a S 7" + tail, "", false},
		{"42 (a) SS 7" + tail, "", false},
		{"42 (a) S -7" + tail, "", false},
		{"(a) S 7" + tail, "", false},
		{"", "", false},
	} {
		s, ok := parseStat([]byte(c.in))
		if ok != c.ok {
			t.Errorf("%q: ok %v", c.in, ok)
			continue
		}
		if ok && (string(s.comm) != c.comm || s.state != 'S' || s.ppid != 7 || s.threads != 3 || s.startTicks != 4711 || s.flags != 4194560) {
			t.Errorf("%q: %+v", c.in, s)
		}
	}
}

func TestEmptiness(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		s    stat
		want emptiness
	}{
		{"kernel thread", stat{state: 'S', flags: flagKthread, threads: 1}, kernel},
		{"zombie", stat{state: 'Z', flags: flagExiting, threads: 1}, zombie},
		{"dead", stat{state: 'X', flags: flagExiting, threads: 1}, zombie},
		{"released", stat{state: 'Z', flags: flagExiting}, transient},
		{"going, asleep", stat{state: 'D', flags: flagExiting, threads: 1}, dying},
		{"first thread gone", stat{state: 'Z', flags: flagExiting, threads: 2}, headless},
		{"first thread going", stat{state: 'R', flags: flagExiting, threads: 2}, headless},
		{"going, has memory", stat{state: 'R', flags: flagExiting, threads: 1, size: 4096}, transient},
		{"going", stat{state: 'R', flags: flagExiting, threads: 1}, dying},
		{"new address space", stat{state: 'R', threads: 1}, transient},
		{"pointers being copied", stat{state: 'R', threads: 1, envStart: 9, envEnd: 9}, transient},
		{"no environment", stat{state: 'S', threads: 1, endCode: 5, envStart: 9, envEnd: 9}, bare},
		{"has one by now", stat{state: 'S', threads: 1, endCode: 5, envStart: 9, envEnd: 12}, transient},
		{"hidden from us", stat{state: 'S', threads: 1, endCode: 1}, transient},
	} {
		if got := c.s.emptiness(); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestParseUID(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]uint32{
		"Name:\ta\nUid:\t1\t1000\t3\t4\nGid:\t0\n":  1000,
		"Name:\tUid:\\n\nUid:\t1\t4294967294\t3\t4": 4294967294,
		"Name:\ta\nUid:\t1\t4294967296\t3\t4":       UnknownUID,
		"Name:\ta\nUid:\t1\n":                       UnknownUID,
		"Uid:\t1\t2\t3\t4\n":                        UnknownUID, // never the first line
		"":                                          UnknownUID,
	} {
		if got, ok := parseUID([]byte(in)); got != want || ok != (want != UnknownUID) {
			t.Errorf("%q: %d %v", in, got, ok)
		}
	}
}

func TestParseCgroup(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"0::/\n", "/"},
		{"0::/a/b\n", "/a/b"},
		{"9:name=systemd:/x\n1:cpu:/\n0::/a b\n", "/a b"},
		{"0::/gone/leaf (deleted)\n", "/gone/leaf"},
		{"0::/..\n", "/.."},
		{"9:name=systemd:/x\n", ""},
		{"10::/x\n", ""},
		{"0::\n", ""},
		{"", ""},
	} {
		got, ok := parseCgroup([]byte(c.in))
		if string(got) != c.want || ok != (c.want != "") {
			t.Errorf("%q: %q %v", c.in, got, ok)
		}
	}
}

func TestBelow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, base string
		want       bool
	}{
		{"/b", "/b", true}, {"/b/x", "/b", true}, {"/bb", "/b", false}, {"/", "/b", false}, {"/x", "/", true}, {"", "/b", false},
	} {
		if below([]byte(c.path), c.base) != c.want {
			t.Errorf("%q below %q", c.path, c.base)
		}
	}
}

func TestNextLock(t *testing.T) {
	t.Parallel()
	info := []byte("pos:\t0\nflags:\t02100002\nmnt_id:\t22\nino:\t1234\nlock:\t1: OFDLCK ADVISORY  WRITE -1 fe:0a:1234 0 EOF\n" +
		"lock:\tnonsense\nlock:\t2: FLOCK  ADVISORY  WRITE 77 00:05:18446744073709551615 0 EOF\n")
	l, rest, ok := nextLock(info)
	if !ok || string(l.kind) != "OFDLCK" || l.major != 0xfe || l.minor != 0x0a || l.inode != 1234 {
		t.Fatalf("%+v %v", l, ok)
	}
	l, rest, ok = nextLock(rest)
	if !ok || string(l.kind) != "FLOCK" || l.major != 0 || l.minor != 5 || l.inode != 1<<64-1 {
		t.Fatalf("%+v %v", l, ok)
	}
	if _, _, ok := nextLock(rest); ok {
		t.Fatal("a third lock")
	}
}

func FuzzStat(f *testing.F) {
	f.Add([]byte("42 (a) b) S 7 1 1 0 -1 4194560 5 0 0 0 0 0 0 0 20 0 3 0 4711 0 0"))
	for _, p := range fixtureProcs(f) {
		f.Add(fixture(f, p, "stat"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := parseStat(b)
		if ok && !bytes.Contains(b, s.comm) {
			t.Errorf("command %q", s.comm)
		}
		_ = s.emptiness()
	})
}

func FuzzStatus(f *testing.F) {
	for _, p := range fixtureProcs(f) {
		f.Add(fixture(f, p, "status"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if uid, ok := parseUID(b); ok && !bytes.Contains(b, []byte(strconv.Itoa(int(uid)))) {
			// Leading zeros are not what a kernel prints.
			if !bytes.Contains(b, []byte("\t0")) {
				t.Errorf("uid %d", uid)
			}
		}
	})
}

func FuzzCgroup(f *testing.F) {
	for _, p := range fixtureProcs(f) {
		f.Add(fixture(f, p, "cgroup"))
	}
	f.Add([]byte("0::/x (deleted)\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := parseCgroup(b); ok && (p[0] != '/' || bytes.Contains(p, []byte("\n"))) {
			t.Errorf("path %q", p)
		}
	})
}

func FuzzFdinfo(f *testing.F) {
	f.Add([]byte("pos:\t0\nlock:\t1: OFDLCK ADVISORY  WRITE -1 fe:0a:1234 0 EOF\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for n := 0; ; n++ {
			l, rest, ok := nextLock(b)
			if !ok {
				return
			}
			if len(rest) >= len(b) || len(l.kind) == 0 {
				t.Fatal("no progress")
			}
			b = rest
		}
	})
}

// fixtureProcs lists the process directories of all fixtures, relative to testdata.
func fixtureProcs(tb testing.TB) []string {
	tb.Helper()
	dirs, err := filepath.Glob("testdata/proc-*/[0-9]*")
	if err != nil || len(dirs) == 0 {
		tb.Fatalf("no fixtures: %v", err)
	}
	for i := range dirs {
		dirs[i], _ = filepath.Rel("testdata", dirs[i])
	}
	return dirs
}
