package wrap

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

// run starts s, waits for its end and returns what it wrote to stdout.
func (s *session) run() string {
	s.t.Helper()
	s.withDaemon().start()
	s.daemon.next().await(wire.KindExited)
	if code := s.wait(); code != ExitOK {
		s.t.Errorf("wrapper ended with %d", code)
	}
	return s.output(spool.Stdout)
}

// case T66: nothing of the wrapper's reaches the agent but 0, 1 and 2.
func TestAgentHasThreeDescriptors(t *testing.T) {
	t.Parallel()
	for _, limits := range [][]sandbox.Rlimit{nil, {{Name: "core", Soft: 0, Hard: 0}}} {
		t.Run(fmt.Sprint(len(limits)), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			// The list is made by a grandchild, which the agent only waits for.
			s := newSession(t, "sh", "-c", `sh -c 'readlink /proc/$PPID/fd/* /proc/$PPID/cwd'; :`)
			s.recipe.Rlimits = limits
			s.recipe.Dir = dir
			s.leak = 3 // descriptors that the daemon failed to mark close-on-exec
			lines := strings.Split(s.run(), "\n")
			if len(lines) != 5 || lines[3] != dir {
				t.Fatalf("agent has %q", lines)
			}
			for _, l := range lines[:3] {
				if !strings.HasPrefix(l, "pipe:") {
					t.Errorf("agent has %q", l)
				}
			}
		})
	}
}

// case H1: the environment is the recipe's and the markers, nothing else.
// case H2: the token is nowhere in argv or environment.
func TestAgentEnvironmentIsExact(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "tr '\\0' '\\n' </proc/self/environ; tr '\\0' ' ' </proc/$PPID/cmdline >&2; tr '\\0' '\\n' </proc/$PPID/environ >&2")
	s.env = []string{"CANARY=from-the-daemon", "PATH=/nowhere"}
	s.recipe.Env = append(s.recipe.Env, "A=1", "BERTH_SESSION=forged", "EMPTY=")
	got := strings.Split(strings.TrimSpace(s.run()), "\n")
	want := []string{
		"PATH=" + os.Getenv("PATH"), "A=1", "EMPTY=", "BERTH_HOST=" + testHost, "BERTH_SESSION=s1",
		"BERTH_INSTANCE=" + s.launch.Instance, "BERTH_GENERATION=1",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("environment %q, want %q", got, want)
	}
	if errs := s.output(spool.Stderr); strings.Contains(errs, s.launch.Token) || strings.Contains(errs, "A=1") {
		t.Errorf("the wrapper shows secrets: %q", errs)
	}
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name, argv, dir, want string
		limits                bool
	}{
		{name: "missing", argv: "/no/such/file", dir: "/", want: "no such file or directory"},
		{name: "not in PATH", argv: "no-such-command", dir: "/", want: "no such file in PATH"},
		{name: "not executable", argv: script("plain", "hello", 0o644), dir: "/", want: "permission denied"},
		{name: "no format", argv: script("noformat", "hello", 0o755), dir: "/", want: "not an executable format"},
		{name: "no interpreter", argv: script("interp", "#!/no/such/interpreter\n", 0o755), dir: "/", want: "interpreter does not"},
		{name: "bad directory", argv: "true", dir: dir + "/absent", want: "absent\": no such file"},
		{name: "directory is a file", argv: "true", dir: script("file", "", 0o755), want: "not a directory"},
		{name: "relative directory", argv: "true", dir: "tmp", want: "is not absolute"},
		{name: "a directory as program", argv: dir, dir: "/", want: "permission denied"},
		{name: "staged missing", argv: "/no/such/file", dir: "/", want: "no such file or directory", limits: true},
		{name: "staged bad directory", argv: "true", dir: dir + "/absent", want: "absent\": no such file", limits: true},
		{name: "staged not executable", argv: dir + "/plain", dir: "/", want: "permission denied", limits: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSession(t, c.argv)
			s.recipe.Dir = c.dir
			if c.limits {
				s.recipe.Rlimits = []sandbox.Rlimit{{Name: "core"}}
			}
			s.withDaemon().start()
			conn := s.daemon.next()
			f := conn.await(wire.KindExited)
			if code := s.wait(); code != ExitOK {
				t.Errorf("wrapper ended with %d", code)
			}
			if got := conn.hello.Status.StartError; !strings.Contains(got, c.want) {
				t.Errorf("start error %q, want %q", got, c.want)
			}
			if conn.hello.Status.Phase != wire.PhaseExited && conn.hello.Status.Phase != wire.PhaseStarting || conn.hello.Status.AgentPID != 0 {
				t.Errorf("hello status %+v", conn.hello.Status)
			}
			x := s.exit()
			if x.StartError == "" || x.Exit.Kind != wire.ExitUnknown || f.Exit.Kind != wire.ExitUnknown || x.AgentPID != 0 {
				t.Errorf("exit.json %+v", x)
			}
		})
	}
}

// case T65
func TestBusyExecutableIsRetried(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "busy")
	sh, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Skip("needs /bin/true")
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(sh); err != nil {
		t.Fatal(err)
	}
	s := newSession(t, path).withDaemon().start()
	eventually(t, "the wrapper tries", func() bool { return exists(filepath.Join(s.launch.Dir, wire.SpoolName)) })
	f.Close()
	if e := s.daemon.next().hello.Status.StartError; e != "" {
		t.Errorf("start error %q", e)
	}
	s.wait()
}

func TestAgentRunsAsAnotherUser(t *testing.T) {
	t.Parallel()
	needRoot(t)
	const uid, gid = 54321, 54322
	for _, limits := range [][]sandbox.Rlimit{nil, {{Name: "nofile", Soft: 77, Hard: 88}}} {
		t.Run(fmt.Sprint(len(limits)), func(t *testing.T) {
			t.Parallel()
			s := newSession(t, "sh", "-c", "id -u; id -g; id -G; grep -E '^(Uid|NoNewPrivs|SigIgn|SigBlk|Seccomp):' /proc/self/status; umask; echo again >/dev/stdout; ulimit -Sn; ulimit -Hn")
			s.recipe.SetIDs, s.recipe.UID, s.recipe.GID, s.recipe.Groups = true, uid, gid, []uint32{54323}
			s.recipe.NoNewPrivileges, s.recipe.Umask, s.recipe.Rlimits = true, 0o027, limits
			got := withoutLibcSignals(s.run())
			for _, want := range []string{
				"54321\n54322\n54322 54323\n", "Uid:\t54321\t54321\t54321\t54321\n", "NoNewPrivs:\t1\n",
				"SigIgn:\t0000000000000000\n", "SigBlk:\t0000000000000000\n", "0027\nagain\n",
			} {
				if !strings.Contains(got, want) {
					t.Errorf("%q lacks %q", got, want)
				}
			}
			if limits != nil && !strings.HasSuffix(got, "77\n88\n") {
				t.Errorf("limits in %q", got)
			}
		})
	}
}

func TestAgentMayNotEnterDirectory(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := newSession(t, "true")
	s.recipe.Dir, s.recipe.SetIDs, s.recipe.UID, s.recipe.GID = dir, true, 54321, 54321
	s.withDaemon().start()
	if e := s.daemon.next().hello.Status.StartError; !strings.Contains(e, "private\": permission denied") {
		t.Errorf("start error %q", e)
	}
	s.wait()
}

func TestSmallLimitsDoNotBreakTheStage(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "ulimit -v; ulimit -d; ulimit -f; ulimit -c; ulimit -s")
	s.binary = realBinary(t) // the race detector needs more than the limit
	s.recipe.Rlimits = []sandbox.Rlimit{
		{Name: "as", Soft: 64 << 20, Hard: 64 << 20}, {Name: "data", Soft: 1 << 20, Hard: 1 << 20},
		{Name: "fsize", Soft: 1 << 20, Hard: 1 << 20}, {Name: "core"}, {Name: "stack", Soft: 1 << 20, Hard: 1 << 20},
	}
	s.recipe.Env = append(s.recipe.Env, "BIG="+strings.Repeat("x", 100<<10))
	if got, want := s.run(), "65536\n1024\n2048\n0\n1024\n"; got != want {
		t.Errorf("limits %q, want %q", got, want)
	}
}

// Signals that the daemon ignores are not ignored in the agent.
func TestAgentHasDefaultSignals(t *testing.T) {
	t.Parallel()
	s := newSession(t, "grep", "-E", "^Sig(Ign|Blk):", "/proc/self/status")
	s.prefix = []string{"sh", "-c", `trap "" HUP INT QUIT TERM PIPE USR1 USR2 CHLD TSTP TTIN TTOU; exec "$0" "$@"`}
	if got := s.run(); withoutLibcSignals(got) != "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n" {
		t.Errorf("agent has %q", got)
	}
}

// withoutLibcSignals takes signals 32 and 33 out of an empty set of ignored
// signals. They are glibc's own, its posix_spawn leaves them ignored in a child,
// and make starts its children that way; nobody can change them by sigaction(2).
func withoutLibcSignals(status string) string {
	for _, bits := range []string{"80000000", "100000000", "180000000"} {
		status = strings.Replace(status, fmt.Sprintf("SigIgn:\t%016s", bits), "SigIgn:\t0000000000000000", 1)
	}
	return status
}

// The runtime raises its own limit on descriptors; the agent gets the old one.
func TestAgentKeepsDescriptorLimit(t *testing.T) {
	t.Parallel()
	for _, limits := range [][]sandbox.Rlimit{nil, {{Name: "core"}}} {
		s := newSession(t, "sh", "-c", "ulimit -Sn")
		s.recipe.Rlimits = limits
		s.prefix = []string{"prlimit", "--nofile=321:4096"}
		if got := s.run(); got != "321\n" {
			t.Errorf("limit %q with %d rlimits", got, len(limits))
		}
	}
}

func TestAgentIsInItsCgroupAndSession(t *testing.T) {
	t.Parallel()
	dir := newCgroup(t)
	s := newSession(t, "sh", "-c", "sed -n 's/^0:://p' /proc/self/cgroup; cut -d' ' -f5,6 /proc/$$/stat; echo $$")
	s.launch.WorkCgroup = dir
	lines := strings.Split(s.run(), "\n")
	if !strings.HasSuffix(lines[0], filepath.Base(dir)) {
		t.Errorf("agent is in %q, want %q", lines[0], dir)
	}
	if lines[1] != lines[2]+" "+lines[2] {
		t.Errorf("group and session %q, agent %q", lines[1], lines[2])
	}
}

// case T57: a protected wrapper does not protect its agent.
func TestAgentOOMScore(t *testing.T) {
	t.Parallel()
	needRoot(t)
	if protect := exec.Command("sh", "-c", "echo -500 >/proc/self/oom_score_adj"); protect.Run() != nil {
		t.Skip("needs CAP_SYS_RESOURCE")
	}
	s := newSession(t, "sh", "-c", "cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj")
	s.prefix = []string{"sh", "-c", `echo -500 >/proc/self/oom_score_adj && exec "$0" "$@"`}
	if got := s.run(); got != "0\n-500\n" {
		t.Errorf("scores %q", got)
	}
}

func TestGoneCgroupIsAStartError(t *testing.T) {
	t.Parallel()
	s := newSession(t, "true")
	s.launch.WorkCgroup = "/sys/fs/cgroup/berth-no-such-leaf"
	s.withDaemon().start()
	if e := s.daemon.next().hello.Status.StartError; !strings.Contains(e, "work cgroup") {
		t.Errorf("start error %q", e)
	}
	s.wait()
}

// A cgroup that was killed once kills what is started in it later.
func TestKilledCgroupIsAStartError(t *testing.T) {
	t.Parallel()
	for _, limits := range [][]sandbox.Rlimit{nil, {{Name: "core"}}} {
		s := newSession(t, "true")
		s.recipe.Rlimits = limits
		s.launch.WorkCgroup = newCgroup(t)
		if err := os.WriteFile(s.launch.WorkCgroup+"/cgroup.kill", []byte("1"), 0); err != nil {
			t.Skipf("needs cgroup.kill: %v", err)
		}
		s.withDaemon().start()
		h := s.daemon.next().hello
		s.wait()
		if x := s.exit(); h.Status.AgentPID != 0 && x.Exit.Kind == wire.ExitCode {
			t.Skip("this kernel forgets cgroup.kill")
		}
		if !strings.Contains(h.Status.StartError, "killed before") {
			t.Errorf("start error %q", h.Status.StartError)
		}
	}
}

// newCgroup makes a cgroup that ends with the test.
func newCgroup(t *testing.T) string {
	t.Helper()
	needRoot(t)
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if !exists(mount + "/cgroup.procs") {
			continue
		}
		dir := mount + "/berth-test-" + strconv.Itoa(os.Getpid()) + "-" + randomHex()[:8]
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("needs a writable cgroup2 tree: %v", err)
		}
		t.Cleanup(func() {
			_ = os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0)
			eventually(t, "the cgroup is empty", func() bool { return unix.Rmdir(dir) == nil })
		})
		return dir
	}
	t.Skip("needs a cgroup2 mount")
	return ""
}
