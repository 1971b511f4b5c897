// Package daemontest runs the real berthd, with real wrappers and providers,
// for tests: each Host has directories, sockets and a cgroup tree of its own.
// It also holds the check that all such tests share: the invariants of a host,
// and that nothing of it is left at the end.
package daemontest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/rpc/client"
	"github.com/berthd/berth/statefs/cgroupfs"
)

// Nobody is the uid that sessions of a daemon run by root belong to.
const Nobody = 65534

var (
	buildOnce sync.Once
	binDir    string
	buildErr  error
)

// BinEnv names a directory of programs that are built already, for a test
// binary that runs on a machine without Go.
const BinEnv = "BERTH_TEST_BIN"

// LeavesEnv is what the configuration's key leaves is in tests that do not set
// it; without it "subtree": tests let the systemd of the machine alone.
const LeavesEnv = "BERTH_TEST_LEAVES"

// Programs builds the programs once for a test binary and returns their
// directory; with BinEnv set it returns that. Call Cleanup in TestMain.
func Programs(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv(BinEnv); dir != "" {
		return dir
	}
	buildOnce.Do(func() { binDir, buildErr = build("grpcnotrace", "-s -w") })
	if buildErr != nil {
		t.Fatal(buildErr)
	}
	return binDir
}

// build builds the programs, with these tags and linker flags, into a new
// directory.
func build(tags, ldflags string) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "berth-test-bin"); err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return dir, err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "-tags", tags, "-ldflags", ldflags,
		"github.com/berthd/berth/daemon/cmd/berthd", "github.com/berthd/berth/daemon/cmd/berth-wrap",
		"github.com/berthd/berth/daemon/cmd/berth-workspace",
		"github.com/berthd/berth/rpc/cmd/berthctl", "github.com/berthd/berth/plugins/cmd/berth-sandbox-process")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	return dir, nil
}

// Cleanup removes what Programs has built.
func Cleanup() {
	if binDir != "" {
		os.RemoveAll(binDir)
	}
}

// Host is one daemon's world. Its methods are for one test goroutine, but for
// Client.
type Host struct {
	t      testing.TB
	Dir    string // holds everything
	State  string
	Run    string
	Client *client.Client
	bin    string
	config string
	opts   Options
	cmd    *exec.Cmd
	exited chan error
	id     string
}

// Options change a Host's configuration.
type Options struct {
	// Config is TOML that is put in front of the harness's own settings; it
	// must not open a table at its end.
	Config string
	// UID runs the daemon as another user, with the group of the same number
	// and no others; 0 = as the test. Only for tests of root.
	UID uint32
	// StateDir is the state directory, "" = one in the host's own directory.
	StateDir string
	// Capacity is the [capacity] table without its head, "" = marks that a
	// nearly full disk of a test machine still meets.
	Capacity string
	// Leaves is the configuration's key of that name, "" = what LeavesEnv says.
	Leaves string
	// Env is added to the daemon's environment, as "NAME=value".
	Env []string
	// Programs is the directory of the programs, "" = that of Programs.
	Programs string
}

// New makes a host; the daemon does not run yet. At the end of the test it
// stops every session, ends the daemon and checks that nothing is left.
func New(t testing.TB, opts Options) *Host {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-test")
	if err != nil {
		t.Fatal(err)
	}
	opts.Leaves = cmp.Or(opts.Leaves, os.Getenv(LeavesEnv), "subtree")
	h := &Host{
		t: t, Dir: dir, State: cmp.Or(opts.StateDir, dir+"/state"), Run: dir + "/run",
		bin: opts.Programs, config: dir + "/berthd.toml", opts: opts,
	}
	if h.bin == "" {
		h.bin = Programs(t)
	}
	t.Cleanup(h.end)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if opts.UID != 0 {
		if err := os.Chown(dir, int(opts.UID), int(opts.UID)); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf("state_dir = %q\nrun_dir = %q\nlibexec_dir = %q\nleaves = %q\n",
		h.State, h.Run, h.bin, opts.Leaves) + opts.Config +
		"\n[capacity]\n" + cmp.Or(opts.Capacity, "low_bytes = 16777216\nlow_percent = 0\nlow_inode_percent = 0\n")
	if err := os.WriteFile(h.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	h.Client = client.New(h.Run + "/berth.sock")
	return h
}

// Sessions is the [sessions] table that most tests use: small reservations,
// and as root sessions of nobody.
func Sessions() string {
	owner := ""
	if os.Geteuid() == 0 {
		owner = "default_owner = \"nobody\"\n"
	}
	return "[sessions]\nreserve_bytes = 0\nreserve_inodes = 0\n" + owner
}

// Start starts the daemon and returns once its socket answers.
func (h *Host) Start() {
	h.t.Helper()
	h.StartAsync()
	h.untilAnswers()
}

func (h *Host) untilAnswers() {
	h.t.Helper()
	h.Until("the daemon answers", 2*time.Minute, func() error {
		select {
		case err := <-h.exited:
			h.exited <- err
			h.t.Fatalf("the daemon has ended: %v\n%s", err, h.Log())
		default:
		}
		_, err := h.Client.Status(context.Background())
		return err
	})
}

// StartAsync starts the daemon and returns at once.
func (h *Host) StartAsync() {
	h.t.Helper()
	log, err := os.OpenFile(h.Dir+"/berthd.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	defer log.Close()
	h.startLogging(log)
}

// startLogging starts the daemon with its log going to a file of the caller's.
func (h *Host) startLogging(log *os.File) {
	h.t.Helper()
	h.cmd = h.command()
	h.cmd.Stderr = log
	if err := h.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.exited = make(chan error, 1)
	go func() { h.exited <- h.cmd.Wait() }() // ends with the daemon
}

// command is berthd, not started.
func (h *Host) command() *exec.Cmd {
	cmd := exec.Command(h.bin+"/berthd", "--config", h.config)
	cmd.Env = append(os.Environ(), h.opts.Env...)
	if uid := h.opts.UID; uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	return cmd
}

// PID is the daemon's process.
func (h *Host) PID() int { return h.cmd.Process.Pid }

// Kill kills the daemon as kill -9 does.
func (h *Host) Kill() {
	h.t.Helper()
	if err := h.cmd.Process.Kill(); err != nil {
		h.t.Fatal(err)
	}
	_ = h.wait() // how a killed process ends is no news
}

// wait waits for the daemon's end.
func (h *Host) wait() error {
	err := <-h.exited
	h.exited <- err // Running looks at it too
	return err
}

// Stop ends the daemon as an operator does; its wrappers live on.
func (h *Host) Stop() {
	h.t.Helper()
	if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		h.t.Fatal(err)
	}
	if err := h.wait(); err != nil {
		h.t.Errorf("the daemon ended badly: %v\n%s", err, h.Log())
	}
}

// Running reports whether the daemon runs.
func (h *Host) Running() bool {
	if h.cmd == nil {
		return false
	}
	select {
	case err := <-h.exited:
		h.exited <- err
		return false
	default:
		return true
	}
}

// logTail is how much of the daemon's log goes into a message.
const logTail = 8 << 10

// Log is the end of what the daemon has logged.
func (h *Host) Log() string {
	data, _ := os.ReadFile(h.Dir + "/berthd.log") // for messages only
	return string(data[max(0, len(data)-logTail):])
}

// ID is the host id.
func (h *Host) ID() string {
	if h.id == "" {
		data, err := os.ReadFile(h.State + "/host.json")
		if err != nil {
			h.t.Fatal(err)
		}
		_, rest, ok := strings.Cut(string(data), `"host_id"`)
		parts := strings.SplitN(rest, `"`, 3)
		if !ok || len(parts) < 3 {
			h.t.Fatalf("no host id in %s", data)
		}
		h.id = parts[1]
	}
	return h.id
}

// Slice is the directory that scopes lie in, on a host that may have some; else
// empty.
func (h *Host) Slice() string {
	if h.opts.Leaves == "subtree" {
		return ""
	}
	dir, _, _ := cgroupfs.ManagedSlice("berth.slice")
	return dir
}

// CgroupBase is the daemon's directory in the cgroup tree; empty without one.
func (h *Host) CgroupBase() string {
	mount, mode := cgroupfs.Detect()
	if mode == cgroupfs.None || os.Geteuid() != 0 || h.opts.UID != 0 {
		return ""
	}
	return filepath.Join(mount, "berth-"+h.ID()[:12])
}

// Until polls until f succeeds, for at most d.
func (h *Host) Until(what string, d time.Duration, f func() error) {
	h.t.Helper()
	deadline := time.Now().Add(d)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("waiting for %q: %v\n%s", what, err, h.Log())
		}
		time.Sleep(2 * time.Millisecond) // the poll's period
	}
}

// end stops everything, then proves that nothing is left.
func (h *Host) end() {
	defer os.RemoveAll(h.Dir)
	defer h.scrub()
	if h.cmd == nil {
		return
	}
	if !h.Running() {
		h.Start()
	}
	h.StopAll()
	h.Stop()
	if err := h.Leaks(); err != nil {
		h.t.Errorf("something is left: %v\n%s", err, h.Log())
	}
}

// StopAll stops every session and waits until all are vacant.
func (h *Host) StopAll() {
	h.t.Helper()
	h.Until("every session is vacant", 3*time.Minute, func() error {
		list, err := h.Client.List(context.Background())
		if err != nil {
			return err
		}
		var left []string
		for _, s := range list.Sessions {
			if s.State != "vacant" {
				left = append(left, s.Session+" "+s.State+" "+s.Problem)
				h.stop(s.Session)
			}
		}
		if len(left) > 0 {
			return errors.New(strings.Join(left, ", "))
		}
		return nil
	})
}
