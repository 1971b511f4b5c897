package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/plugins/host"
	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/plugins/sandbox/sandboxtest"
)

// binary is the program under test, which TestMain builds as it is released:
// without cgo. It is empty when there is nothing to build with.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if _, err := exec.LookPath("go"); err != nil {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "berth-sandbox-process")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "berth-sandbox-process")
	c := exec.Command("go", "build", "-o", binary, "-ldflags", "-s -w -X main.version=test", ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

func program(t testing.TB) host.Config {
	t.Helper()
	if binary == "" {
		t.Skip("needs the go command")
	}
	return host.Config{Kind: "process", Path: binary}
}

func request(t *testing.T, h sandbox.Handle) sandbox.PrepareRequest {
	t.Helper()
	return sandbox.PrepareRequest{
		Handle: h, Session: "s", Generation: 1, Instance: "i", Host: "h", Workspace: t.TempDir(), Home: "/",
		Command: []string{"true"}, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	}
}

func TestConformance(t *testing.T) {
	c := program(t)
	sandboxtest.Run(t, func(t *testing.T) sandboxtest.Subject {
		s := sandboxtest.Plugin(t, c, func(o *host.Options) { o.Controllers = []string{"memory", "pids"} })
		s.Request = request
		return s
	})
}

func TestWhatItSaysOfItself(t *testing.T) {
	t.Parallel()
	h := sandboxtest.Host(t, program(t), func(o *host.Options) { o.Controllers = []string{"memory", "pids"} })
	p, err := h.Provider(t.Context(), "process")
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Describe(t.Context())
	if err != nil || d.Version != "test" || !d.Capabilities.Has(sandbox.LimitsPids) || d.Capabilities.Has(sandbox.LimitsCPU) {
		t.Errorf("description %+v, %v", d, err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", h.Status()[0].PID))
	if err != nil || !strings.Contains(string(b), "BERTH_PROVIDER=process\x00") || strings.Contains(string(b), "HOME=") {
		t.Errorf("environment %q, %v", b, err)
	}
}

func TestByHand(t *testing.T) {
	t.Parallel()
	c := exec.Command(program(t).Path)
	c.Env = []string{}
	out, err := c.CombinedOutput()
	if c.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "berthd starts it") {
		t.Errorf("started by hand: %v, %q", err, out)
	}
	c = exec.Command(c.Path)
	c.Env = []string{"BERTH_DAEMON_UID=x"}
	out, err = c.CombinedOutput()
	if c.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "BERTH_DAEMON_UID") {
		t.Errorf("with a bad uid: %v, %q", err, out)
	}
}

// BenchmarkFirstReply is from Start to a provider that has described itself,
// and back to nothing.
func BenchmarkFirstReply(b *testing.B) {
	c := program(b)
	best := time.Hour
	for b.Loop() {
		dir, err := os.MkdirTemp("", "bp")
		if err != nil {
			b.Fatal(err)
		}
		h, err := host.New(host.Options{Providers: []host.Config{c}, SocketDir: dir, HostID: "bench"})
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		h.Start(context.Background())
		if _, err := h.Provider(context.Background(), "process"); err != nil {
			b.Fatal(err)
		}
		best = min(best, time.Since(began))
		if err := h.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(best.Seconds()*1e3, "best-ms-to-ready")
}

// BenchmarkPrepare is one call through host, socket and plugin; it reports what
// the plugin then holds in memory.
func BenchmarkPrepare(b *testing.B) {
	h := sandboxtest.Host(b, program(b), func(o *host.Options) { o.Bounds = host.Bounds{} })
	p, err := h.Provider(context.Background(), "process")
	if err != nil {
		b.Fatal(err)
	}
	q := sandbox.PrepareRequest{
		Handle: "h", Session: "s", Generation: 1, Workspace: "/w", Home: "/", Command: []string{"true"},
		UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	}
	best := time.Hour
	for b.Loop() {
		began := time.Now()
		if _, err := p.Prepare(context.Background(), q); err != nil {
			b.Fatal(err)
		}
		best = min(best, time.Since(began))
	}
	b.StopTimer()
	b.ReportMetric(best.Seconds()*1e6, "best-µs")
	for name, mib := range memory(b, h.Status()[0].PID) {
		b.ReportMetric(mib, name)
	}
}

// memory reads RSS and PSS in MiB (proc_pid_smaps_rollup).
func memory(b *testing.B, pid int) map[string]float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	found := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		var kib float64
		for _, name := range []string{"Rss", "Pss", "Private_Dirty"} {
			if _, err := fmt.Sscanf(line, name+": %f kB", &kib); err == nil {
				found[name+"-MiB"] = kib / 1024
			}
		}
	}
	return found
}
