package discover

import (
	"bytes"
	"strings"
	"testing"
)

const (
	testHost     = "0123456789abcdef0123456789abcdef"
	otherHost    = "fedcba9876543210fedcba9876543210"
	testInstance = "00112233445566778899aabbccddeeff"
)

// environ joins entries as the kernel does.
func environ(entries ...string) []byte {
	if len(entries) == 0 {
		return nil
	}
	return []byte(strings.Join(entries, "\x00") + "\x00")
}

func ours(session string) []string {
	return []string{EnvHost + "=" + testHost, EnvSession + "=" + session, EnvInstance + "=" + testInstance, EnvGeneration + "=7"}
}

func TestClaims(t *testing.T) {
	t.Parallel()
	full := Proc{Kind: Member, Host: testHost, Session: "s1", Instance: testInstance, Generation: 7}
	legacy := Proc{Kind: Legacy, Host: testHost, Session: "s1"}
	rules := []LegacyRule{{Name: "old", Env: "OLD_SESSION"}, {Name: "flag", ArgvFlag: "--session"}}
	m, err := newMatcher(testHost, rules)
	if err != nil {
		t.Fatal(err)
	}
	long := "X=" + strings.Repeat("y", 100000)
	for _, c := range []struct {
		name string
		env  []byte
		argv []byte
		want Proc
	}{
		{"nothing", environ("PATH=/bin", "HOME=/"), nil, Proc{}},
		{"no environment", nil, nil, Proc{}},
		{"ours", environ(ours("s1")...), nil, full},
		{"ours, last of many", environ(append([]string{"A=1", long, "BERTH_OTHER=x", "BERTH_"}, ours("s1")...)...), nil, full},
		{"ours, in another order", environ(EnvGeneration+"=7", "Z=", EnvInstance+"="+testInstance, EnvSession+"=s1", "A=b", EnvHost+"="+testHost), nil, full},
		{"ours, cut at the end", bytes.TrimSuffix(environ(ours("s1")...), []byte{0}), nil, Proc{Kind: Member, Host: testHost, Session: "s1", Instance: testInstance, Generation: 7}},
		{"host alone", environ(EnvHost + "=" + testHost), nil, Proc{}},
		{"inside a value", environ("X=" + EnvSession + "=s1"), nil, Proc{}},
		{"inside a name", environ("X" + EnvSession + "=s1"), nil, Proc{}},
		{"no equals sign", environ(EnvSession), nil, Proc{}},
		{"empty session", environ(EnvSession + "="), nil, Proc{}},
		{"first of two counts", environ(EnvSession+"=s1", EnvHost+"="+testHost, EnvSession+"=s2"), nil, legacy},
		{"session that nobody can have", environ(EnvHost+"="+testHost, EnvSession+"=../x"), nil, Proc{}},
		{"session of 129", environ(EnvSession + "=" + strings.Repeat("a", 129)), nil, Proc{}},
		{"no pair", environ(ours("s1")[:2]...), nil, legacy},
		{"no host", environ(ours("s1")[1:]...), nil, Proc{Kind: Legacy, Session: "s1"}},
		{"instance without generation", environ(ours("s1")[:3]...), nil, legacy},
		{"generation 0", environ(append(ours("s1")[:3], EnvGeneration+"=0")...), nil, legacy},
		{"generation 07", environ(append(ours("s1")[:3], EnvGeneration+"=07")...), nil, legacy},
		{"generation of 2^64", environ(append(ours("s1")[:3], EnvGeneration+"=18446744073709551616")...), nil, legacy},
		{"generation of 2^64-1", environ(append(ours("s1")[:3], EnvGeneration+"=18446744073709551615")...), nil,
			Proc{Kind: Member, Host: testHost, Session: "s1", Instance: testInstance, Generation: 1<<64 - 1}},
		{"another host", environ(EnvHost+"="+otherHost, EnvSession+"=s1", EnvInstance+"="+testInstance, EnvGeneration+"=7"), nil,
			Proc{Kind: Foreign, Host: otherHost, Session: "s1", Instance: testInstance, Generation: 7}},
		{"a host that is none", environ(EnvHost+"=x", EnvSession+"=s1"), nil, Proc{Kind: Foreign, Session: "s1"}},
		{"rule by variable", environ("A=1", "OLD_SESSION=s9", "B=2"), nil, Proc{Kind: Legacy, Session: "s9", Rule: "old"}},
		{"rule by variable, first", environ("OLD_SESSION=s9"), nil, Proc{Kind: Legacy, Session: "s9", Rule: "old"}},
		{"rule by variable, no id in it", environ("OLD_SESSION=/x y"), nil, Proc{Kind: Legacy, Rule: "old"}},
		{"rule by flag", environ("A=1"), environ("prog", "-v", "--session", "s8", "x"), Proc{Kind: Legacy, Session: "s8", Rule: "flag"}},
		{"rule by flag with =", environ("A=1"), environ("prog", "--session=s8"), Proc{Kind: Legacy, Session: "s8", Rule: "flag"}},
		{"flag without a value", environ("A=1"), environ("prog", "--session"), Proc{Kind: Legacy, Rule: "flag"}},
		{"longer flag", environ("A=1"), environ("prog", "--sessions=s8"), Proc{}},
		{"flag as the program", environ("A=1"), environ("--session", "s8"), Proc{}},
		{"ours and a rule", environ(append(ours("s1"), "OLD_SESSION=s9")...), nil, full},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var got Proc
			found := m.searchEnviron(c.env)
			if found.rule == "" {
				found.rule, found.legacy = m.searchArgv(c.argv)
			}
			if found.found() {
				m.fill(&got, &found)
			}
			if got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestLegacyRulesAreChecked(t *testing.T) {
	t.Parallel()
	for _, l := range []LegacyRule{
		{}, {Name: "n"}, {Env: "E"}, {Name: "n", Env: "E", ArgvFlag: "--f"}, {Name: "n", Env: "E=1"},
		{Name: "n", Env: "BERTH_SESSION"}, {Name: "n", ArgvFlag: "f"}, {Name: "n", ArgvFlag: "--"}, {Name: "n", ArgvFlag: "--f=1"},
	} {
		if _, err := NewScanner(Options{HostID: testHost, LegacyRules: []LegacyRule{l}}); err == nil {
			t.Errorf("rule %+v was accepted", l)
		}
	}
}

func FuzzEnviron(f *testing.F) {
	f.Add(environ(ours("s1")...))
	f.Add(environ("A=1", "OLD_SESSION=x", EnvSession+"=", EnvSession+"=y"))
	f.Add([]byte("BERTH_SESSION=a"))
	f.Add([]byte("\x00\x00BERTH_SESSION=a\x00BERTH_"))
	m, err := newMatcher(testHost, []LegacyRule{{Name: "old", Env: "OLD_SESSION"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, env []byte) {
		got := m.searchEnviron(env)
		want := map[string]string{}
		for e := range bytes.SplitSeq(env, []byte{0}) {
			if name, value, ok := strings.Cut(string(e), "="); ok {
				if _, dup := want[name]; !dup {
					want[name] = value
				}
			}
		}
		for name, value := range map[string][]byte{
			EnvHost: got.host, EnvSession: got.session, EnvInstance: got.instance, EnvGeneration: got.generation, "OLD_SESSION": got.legacy,
		} {
			if want[name] != string(value) {
				t.Errorf("%s = %q, want %q", name, value, want[name])
			}
		}
		var p Proc
		if m.fill(&p, &got) != (p.Kind != Unmarked) {
			t.Error("fill's answer and the kind differ")
		}
		if p.Session != "" && !isSession([]byte(p.Session)) {
			t.Errorf("session %q", p.Session)
		}
	})
}

func FuzzCmdline(f *testing.F) {
	f.Add(environ("prog", "--session", "s1"))
	f.Add([]byte("prog\x00--session=\x00\x00"))
	m, err := newMatcher(testHost, []LegacyRule{{Name: "flag", ArgvFlag: "--session"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		rule, value := m.searchArgv(b)
		if has := bytes.Contains(b, []byte("\x00--session")); !has && rule != "" {
			t.Errorf("found %q without the flag", value)
		}
	})
}
