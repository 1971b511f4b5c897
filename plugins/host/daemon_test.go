package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// orphan runs a daemon with one plugin in that mode below dir, kills the
// daemon, and returns the plugin's pid.
func orphan(t *testing.T, mode, dir string) int {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := exec.Command(exe)
	d.Env = []string{modeName + "=daemon " + strings.Join([]string{mode, dir, hostID()}, " ")}
	out, err := d.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	pid, convErr := strconv.Atoi(strings.TrimSpace(line))
	if err := errors.Join(err, convErr, d.Process.Kill()); err != nil {
		t.Fatal(err, line)
	}
	_ = d.Wait() // killed
	return pid
}

// case A17: a plugin ends with its daemon, however that ends.
func TestPluginEndsWithItsDaemon(t *testing.T) {
	t.Parallel()
	o := options(t)
	pid := orphan(t, "serve", o.SocketDir)
	eventually(t, "the plugin has ended itself", func() error {
		if alive(pid) {
			return errors.New("alive")
		}
		return nil
	})
}

// case A17, case T44: a plugin that outlived its daemon is ended before another
// is started; what it left lying about does not matter.
// case A18: writing to its log does not kill a plugin whose daemon has gone.
func TestNeverTwo(t *testing.T) {
	t.Parallel()
	o := options(t, "serve")
	old := orphan(t, "stubborn", o.SocketDir)
	log := filepath.Join(o.SocketDir, "test", "stderr.log")
	before := size(t, log)
	eventually(t, "the orphan goes on writing its log", func() error {
		if size(t, log) < before+100 {
			return fmt.Errorf("%d bytes", size(t, log))
		}
		return nil
	})
	if !alive(old) {
		t.Fatal("the orphan died by itself; this test shows nothing")
	}
	h := start(t, o)
	eventually(t, "the new plugin is ready", func() error {
		if h.Status()[0].PID == 0 {
			return errors.New("not yet")
		}
		if alive(old) {
			t.Fatal("two plugins at once")
		}
		return nil
	})
	left, err := filepath.Glob(filepath.Join(o.SocketDir, "test", "plugin-dir*"))
	if err != nil || len(left) != 1 {
		t.Errorf("socket directories %v, %v", left, err)
	}
}

// A holder of the lock that is not ours is named, and never signalled.
func TestForeignLockHolder(t *testing.T) {
	t.Parallel()
	o := options(t, "serve")
	o.Bounds.Kill = 100 * time.Millisecond
	dir := filepath.Join(o.SocketDir, "test")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, lockName))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	stranger := exec.Command("sleep", "1000")
	stranger.ExtraFiles = []*os.File{f}
	stranger.Env = []string{"BERTH_HOST=" + hostID()} // but not this provider
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	defer stranger.Wait()
	defer stranger.Process.Kill()
	h := start(t, o)
	e := refused(t, h, "test")
	want := fmt.Sprintf("held by process %d, which is not a process of this provider", stranger.Process.Pid)
	if !strings.Contains(e.Message, want) {
		t.Errorf("got %q, want %q", e.Message, want)
	}
	if !alive(stranger.Process.Pid) {
		t.Error("the stranger was killed")
	}
	if err := stranger.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = stranger.Wait()
	provider(t, h, "test")
}

// case H1, case T53, case T58: of the daemon's environment a plugin gets the
// names on a short list and nothing else; it is a session of its own.
func TestNothingIsInherited(t *testing.T) {
	t.Parallel()
	o := options(t, "serve")
	o.Controllers = []string{"cpu", "pids"}
	h := start(t, o)
	provider(t, h, "test")
	pid := h.Status()[0].PID
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "canary") {
		t.Errorf("canary in %q", b)
	}
	allowed := " PATH LANG LC_ALL TZ BERTH_HOST BERTH_PROVIDER BERTH_DAEMON_UID BERTH_CONTROLLERS " +
		"BERTH_SANDBOX_PLUGIN PLUGIN_MIN_PORT PLUGIN_MAX_PORT PLUGIN_PROTOCOL_VERSIONS PLUGIN_UNIX_SOCKET_DIR " + modeName + " "
	for _, e := range strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00") {
		if name, _, _ := strings.Cut(e, "="); !strings.Contains(allowed, " "+name+" ") {
			t.Errorf("%q is in the environment", e)
		}
	}
	if !strings.Contains(string(b), "BERTH_CONTROLLERS=cpu,pids\x00") {
		t.Errorf("the controllers are not told: %q", b)
	}
	session, err := unix.Getsid(pid)
	group, groupErr := unix.Getpgid(pid)
	if err := errors.Join(err, groupErr); err != nil || session != pid || group != pid {
		t.Errorf("session %d, group %d of plugin %d: %v", session, group, pid, err)
	}
}

// case T58, case T66: of what the daemon has open, however it came by it, a
// plugin gets the lock.
func TestDescriptors(t *testing.T) {
	t.Parallel()
	for range 20 {
		canary, err := os.Create(filepath.Join(t.TempDir(), "canary"))
		if err != nil {
			t.Fatal(err)
		}
		defer canary.Close()
		// As if the daemon's own parent had left it open.
		if _, err := unix.FcntlInt(canary.Fd(), unix.F_SETFD, 0); err != nil {
			t.Fatal(err)
		}
	}
	o := options(t, "descriptors")
	o.Bounds.BackoffMin, o.Bounds.BackoffMax = time.Hour, time.Hour
	refused(t, start(t, o), "test")
	b, err := os.ReadFile(filepath.Join(o.SocketDir, "test", "stderr.log"))
	if err != nil || !strings.Contains(string(b), "descriptor 3 "+o.SocketDir+"/test/lock\n") {
		t.Errorf("log %q, %v", b, err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "canary") {
			t.Errorf("the plugin was started with %s", line)
		}
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestPrintsGoToTheLog(t *testing.T) {
	t.Parallel()
	o := options(t, "serve")
	p := provider(t, start(t, o), "test")
	if _, err := p.Prepare(t.Context(), ask("print")); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(o.SocketDir, "test", "stderr.log"))
	if err != nil || !strings.Contains(string(b), "on stdout\n") || !strings.Contains(string(b), "on stderr\n") {
		t.Errorf("log %q, %v", b, err)
	}
}

func TestPluginOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	o := options(t, "serve")
	exe := filepath.Join(o.SocketDir, "plugin")
	b, err := os.ReadFile(o.Providers[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(exe, b, 0o755), os.Chmod(exe, 0o755), os.Chmod(o.SocketDir, 0o711)); err != nil {
		t.Fatal(err)
	}
	c := &o.Providers[0]
	c.Path, c.UID, c.GID = exe, 65534, 65534
	h := start(t, o)
	p := provider(t, h, "test")
	if _, err := p.Prepare(t.Context(), ask("ok")); err != nil {
		t.Error(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Status()[0].PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65534\t65534\t65534\t65534\n", "Groups:\t \n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("no %q in the plugin's status", want)
		}
	}
}

// case T38: with a cgroup, not even a descendant without any of the plugin's
// descriptors survives its end.
func TestCgroup(t *testing.T) {
	t.Parallel()
	mount := ""
	for _, m := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var s unix.Statfs_t
		if unix.Statfs(m, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC {
			mount = m
		}
	}
	if mount == "" || os.Geteuid() != 0 {
		t.Skip("needs root and a cgroup v2 mount")
	}
	var made []*testCgroup
	o := options(t, "descendant")
	o.Cgroup = func(kind string) (Cgroup, error) {
		c := &testCgroup{filepath.Join(mount, fmt.Sprintf("%s-%s-%d", hostID(), kind, len(made)))}
		made = append(made, c)
		return c, os.Mkdir(c.dir, 0o755)
	}
	h := start(t, o)
	provider(t, h, "test")
	pid := h.Status()[0].PID
	procs := made[0].procs(t)
	if len(procs) < 2 || !strings.Contains(" "+strings.Join(procs, " ")+" ", " "+strconv.Itoa(pid)+" ") {
		t.Errorf("cgroup holds %v, plugin is %d", procs, pid)
	}
	kill(t, h, unix.SIGKILL)
	eventually(t, "it is back, in another cgroup", func() error {
		if s := h.Status()[0]; s.State != Ready || s.PID == pid {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	stop(t, h)
	if len(made) != 2 {
		t.Errorf("%d cgroups were made", len(made))
	}
	for _, c := range made {
		if _, err := os.Stat(c.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("cgroup %q is left: %v", c.dir, err)
		}
	}
}

type testCgroup struct{ dir string }

func (c *testCgroup) OpenWork() (*os.File, error) { return os.Open(c.dir) }

func (c *testCgroup) Kill() error {
	return os.WriteFile(filepath.Join(c.dir, "cgroup.kill"), []byte("1"), 0)
}

func (c *testCgroup) Remove(ctx context.Context) error {
	for {
		err := os.Remove(c.dir)
		if !errors.Is(err, unix.EBUSY) || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

func (c *testCgroup) procs(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.dir, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(b))
}
