package host

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/plugins/sandbox"
)

func TestDelay(t *testing.T) {
	t.Parallel()
	b := Bounds{}.withDefaults()
	b.Circuit = 9
	var got []time.Duration
	for n := 1; n <= 10; n++ {
		got = append(got, b.delay(n, 1))
	}
	want := "[1s 2s 4s 8s 16s 32s 1m4s 2m0s 2m0s 2m0s]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if d := b.delay(3, 0); d != 2*time.Second {
		t.Errorf("without luck %s, want half", d)
	}
	b.Circuit = 5
	if d := b.delay(5, 1); d != 2*time.Minute || b.open(4) || !b.open(5) {
		t.Errorf("open circuit waits %s", d)
	}
	if d := b.delay(1<<40, 1); d != 2*time.Minute {
		t.Errorf("many failures wait %s", d)
	}
}

func TestRefusedOptions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"good":           {func(*Options) {}, ""},
		"relative":       {func(o *Options) { o.SocketDir = "run" }, "not absolute"},
		"relative log":   {func(o *Options) { o.LogDir = "log" }, "not absolute"},
		"no host":        {func(o *Options) { o.HostID = "" }, "host id"},
		"twice":          {func(o *Options) { o.Providers = append(o.Providers, o.Providers[0]) }, "configured twice"},
		"kind":           {func(o *Options) { o.Providers[0].Kind = "../x" }, "a kind is"},
		"path":           {func(o *Options) { o.Providers[0].Path = "p" }, "not absolute"},
		"short checksum": {func(o *Options) { o.Providers[0].SHA256 = "00" }, "64 hexadecimal"},
		"bad checksum":   {func(o *Options) { o.Providers[0].SHA256 = strings.Repeat("g", 64) }, "64 hexadecimal"},
		"uid alone":      {func(o *Options) { o.Providers[0].UID = 5 }, "set both"},
		"argument":       {func(o *Options) { o.Providers[0].Args = []string{"a\x00"} }, "NUL"},
		"env":            {func(o *Options) { o.Providers[0].Env = []string{"A"} }, "not NAME=value"},
		"env marker":     {func(o *Options) { o.Providers[0].Env = []string{"BERTH_HOST=x"} }, "meaning of its own"},
		"env manager":    {func(o *Options) { o.Providers[0].Env = []string{"NOTIFY_SOCKET=x"} }, "meaning of its own"},
		// case T77: a path too long for a socket shows at once.
		"long": {func(o *Options) { o.SocketDir = "/" + strings.Repeat("d", 67) }, "at most 107 work"},
	} {
		o := Options{SocketDir: "/run/x", HostID: "h", Providers: []Config{{Kind: "k", Path: "/p", Env: []string{"A=b"}}}}
		c.change(&o)
		_, err := New(o)
		if (c.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestTellingLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                    "",
		"\n\n":                                "",
		"one\ntwo\n\n":                        "two",
		"x\npanic: boom\n\ngoroutine 1\n":     "panic: boom",
		"fatal error: out of memory\nruntime": "fatal error: out of memory",
		"a\xffb":                              "a?b",
		strings.Repeat("é", 200):              strings.Repeat("é", 150) + "…",
	} {
		if got := tellingLine([]byte(in)); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "k.log")
	l, err := openLog(path, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer l.f.Close()
	for n := range 30 {
		fmt.Fprintf(l.f, "line %d\n", n)
	}
	if err := l.trim(100); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(l.f, "after")
	now, err := os.ReadFile(path)
	if err != nil || string(now) != "after\n" {
		t.Errorf("log %q, %v", now, err)
	}
	old, err := os.ReadFile(path + ".1")
	if err != nil || len(old) != 100 || !bytes.HasSuffix(old, []byte("line 29\n")) {
		t.Errorf("old log %q, %v", old, err)
	}
	if l.why() != "after" {
		t.Errorf("why %q", l.why())
	}
	again, err := openLog(path, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer again.f.Close()
	if again.why() != "" {
		t.Errorf("a new start tells of an old one: %q", again.why())
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", sandbox.MaxDetailBytes)
	if got := clip(long); len(got) > sandbox.MaxDetailBytes || !strings.HasSuffix(got, "é…") {
		t.Errorf("clipped to %d bytes, end %q", len(got), got[len(got)-8:])
	}
	if clip("short") != "short" {
		t.Error("short text changed")
	}
}

// spec runs a program with nothing around it.
func spec(t *testing.T, path string, args ...string) launchSpec {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	return launchSpec{config: Config{Path: path, Args: args}, lock: log, log: log, env: []string{"BERTH_HOST=" + hostID()}}
}

// case T26: many short processes, beside others of the same parent that are
// waited for elsewhere; nobody loses an exit status.
func TestEveryExitStatusIsSeen(t *testing.T) {
	t.Parallel()
	s := spec(t, "/bin/sh", "-c", "exit 7")
	var both sync.WaitGroup
	both.Go(func() {
		for range 100 {
			if err := exec.Command("/bin/true").Run(); err != nil {
				t.Errorf("a child of somebody else: %v", err)
			}
		}
	})
	for range 100 {
		p, err := startProcess(s, "/")
		if err != nil {
			t.Fatal(err)
		}
		if !p.gone(30 * time.Second) {
			t.Fatal("it does not end")
		}
		if p.exit.Error() != "the plugin ended: exit status 7" {
			t.Errorf("got %v", p.exit)
		}
		if err := p.end(0, 30*time.Second); err != nil {
			t.Error(err)
		}
	}
	both.Wait()
}

// case T65: a program that was just written can be started although other
// threads fork all the time.
func TestJustWrittenProgram(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var forks sync.WaitGroup
	for range 4 {
		forks.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					_ = exec.Command("/bin/true").Run()
				}
			}
		})
	}
	defer forks.Wait()
	defer close(done)
	path := filepath.Join(t.TempDir(), "p")
	for range 30 {
		_ = os.Remove(path)
		if err := os.WriteFile(path, b, 0o755); err != nil {
			t.Fatal(err)
		}
		p, err := startProcess(spec(t, path), "/")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.end(30*time.Second, time.Second); err != nil {
			t.Error(err)
		}
	}
}

// case T57: the daemon's protection from the OOM killer is its own.
func TestPluginIsExpendable(t *testing.T) {
	score := "/proc/self/oom_score_adj"
	own, err := os.ReadFile(score)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(score, []byte("-7"), 0); err != nil {
		t.Skipf("needs the right to lower its OOM score: %v", err)
	}
	defer func() {
		if err := os.WriteFile(score, own, 0); err != nil {
			t.Error(err)
		}
	}()
	h := start(t, options(t, "serve"))
	provider(t, h, "test")
	got, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", h.Status()[0].PID))
	if err != nil || string(got) != "0\n" {
		t.Errorf("plugin has %q, %v", got, err)
	}
}
