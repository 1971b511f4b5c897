package process

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/plugins/sandbox/sandboxtest"
)

func own() *Provider { return New(Options{Version: "test", DaemonUID: uint32(os.Geteuid())}) }

func request(t *testing.T, h sandbox.Handle) sandbox.PrepareRequest {
	return sandbox.PrepareRequest{
		Handle: h, Session: "s", Generation: 1, Instance: "i", Host: "h", Workspace: t.TempDir(), Home: "/",
		Command: []string{"env"}, Env: []string{"A=b"}, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	}
}

func TestConformance(t *testing.T) {
	sandboxtest.Run(t, func(*testing.T) sandboxtest.Subject {
		return sandboxtest.Subject{Provider: own(), Request: request}
	})
}

const users = `root:x:0:0:root:/root:/bin/bash
malformed:x:1000
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
ada:x:1000:1000:Ada,,,:/home/ada:/usr/bin/fish
twin:x:1000:1000::/home/twin:/bin/zsh
`

func passwd(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(path, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRecipe(t *testing.T) {
	t.Parallel()
	p := New(Options{DaemonUID: 0, Passwd: passwd(t)})
	r, err := p.Prepare(t.Context(), sandbox.PrepareRequest{
		Handle: "h", Session: "s", Generation: 1, Workspace: "/w", Home: "/home/ada", Terminal: true,
		Command: []string{"sh", "-c", "echo"}, UID: 1000, GID: 1001, Groups: []uint32{5, 6},
		Env:    []string{"PATH=/mine", "X=1", "X=2", "LANG="},
		Limits: sandbox.Limits{Processes: 64, OpenFiles: 100, MemoryBytes: 1 << 20, CPUPercent: 50},
	})
	if err != nil {
		t.Fatal(err)
	}
	env := []string{
		"PATH=/mine", "HOME=/home/ada", "USER=ada", "LOGNAME=ada", "SHELL=/usr/bin/fish", "LANG=",
		"TERM=xterm-256color", "X=2",
	}
	if !slices.Equal(r.Env, env) {
		t.Errorf("environment\n%q, want\n%q", r.Env, env)
	}
	if !slices.Equal(r.Argv, []string{"sh", "-c", "echo"}) || r.Dir != "/w" || !r.NoNewPrivileges {
		t.Errorf("recipe %+v", r)
	}
	if !r.SetIDs || r.UID != 1000 || r.GID != 1001 || !slices.Equal(r.Groups, []uint32{5, 6}) {
		t.Errorf("identity in %+v", r)
	}
	limits := []sandbox.Rlimit{{Name: "nofile", Soft: 100, Hard: 100}, {Name: "nproc", Soft: 64, Hard: 64}}
	if !slices.Equal(r.Rlimits, limits) || r.Cgroup.Processes != 64 || r.Cgroup.MemoryBytes != 1<<20 || r.Cgroup.CPUPercent != 50 {
		t.Errorf("limits in %+v", r)
	}
}

func TestCapabilitiesFollowControllers(t *testing.T) {
	t.Parallel()
	for controllers, want := range map[string]string{
		"":                     "rootless terminal wake_free_observe",
		"pids":                 "limits_pids rootless terminal wake_free_observe",
		"cpu io memory cpuset": "limits_cpu limits_memory rootless terminal wake_free_observe",
	} {
		p := New(Options{Controllers: strings.Fields(controllers), DaemonUID: 0})
		d, err := p.Describe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range d.Capabilities {
			got = append(got, string(c))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("controllers %q: %v, want %s", controllers, got, want)
		}
		q := request(t, "h")
		q.Limits.Processes = 9
		r, err := p.Prepare(t.Context(), q)
		if err != nil || (len(r.Rlimits) == 0) != d.Capabilities.Has(sandbox.LimitsPids) {
			t.Errorf("controllers %q: resource limits %v, %v", controllers, r.Rlimits, err)
		}
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	prepare := func(daemon, uid uint32) (sandbox.Recipe, error) {
		q := request(t, "h")
		q.UID = uid
		return New(Options{DaemonUID: daemon}).Prepare(t.Context(), q)
	}
	if r, err := prepare(0, 0); err != nil || !r.SetIDs {
		t.Errorf("root for root: %+v, %v", r, err)
	}
	if r, err := prepare(1000, 1000); err != nil || r.SetIDs {
		t.Errorf("a user for itself: %+v, %v", r, err)
	}
	_, err := prepare(1000, 1001)
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Reason != sandbox.InvalidRequest {
		t.Errorf("a user for another: %v", err)
	}
}

func TestUsers(t *testing.T) {
	t.Parallel()
	path := passwd(t)
	for uid, want := range map[uint32]user{
		0: {"root", "/bin/bash"}, 1: {"daemon", "/bin/sh"}, 1000: {"ada", "/usr/bin/fish"}, 4242: {"4242", "/bin/sh"},
	} {
		if got, err := lookup(path, uid); err != nil || got != want {
			t.Errorf("uid %d: %v, %v, want %v", uid, got, err, want)
		}
	}
	_, err := New(Options{Passwd: "/nonexistent"}).Prepare(t.Context(), request(t, "h"))
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Reason != sandbox.InfrastructureFailed || !e.Retryable {
		t.Errorf("no passwd file: %v", err)
	}
}

func FuzzUsers(f *testing.F) {
	f.Add(users, uint32(1000))
	f.Add("a:b:1:c:d:e:/bin/x\x00y\n", uint32(1))
	f.Fuzz(func(t *testing.T, text string, uid uint32) {
		u, err := find(strings.NewReader(text), uid)
		if err == nil && (u.name == "" || !strings.HasPrefix(u.shell, "/") || strings.ContainsAny(u.name+u.shell, "\x00\n:")) {
			t.Errorf("%q gives %q", text, u)
		}
	})
}

// case H1: an agent started by the recipe has the recipe's environment, whole,
// and nothing else.
func TestRecipeRuns(t *testing.T) {
	t.Setenv("CANARY", "leaked")
	q := request(t, "h")
	r, err := own().Prepare(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(r.Argv[0])
	c.Env, c.Dir = r.Env, r.Dir
	if r.SetIDs {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: r.UID, Gid: r.GID, Groups: r.Groups}}
	}
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(bytes.TrimSpace(out)))
	// os/exec adds PWD when the directory is set.
	got = slices.DeleteFunc(got, func(e string) bool { return strings.HasPrefix(e, "PWD=") })
	slices.Sort(got)
	want := slices.Sorted(slices.Values(r.Env))
	if !slices.Equal(got, want) {
		t.Errorf("environment %q, want %q", got, want)
	}
}
