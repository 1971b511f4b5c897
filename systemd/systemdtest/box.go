package systemdtest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// bootBound bounds one boot, which takes a third of a second on a calm
	// machine.
	bootBound = 60 * time.Second
	// endBound bounds the end of a box that was killed.
	endBound = 10 * time.Second
	// pollPeriod is how often what the kernel does not announce is looked at.
	pollPeriod = 5 * time.Millisecond
)

// Options change a box.
type Options struct {
	// Root is the tree that the box's root lies over; "" = the machine's own.
	Root string
	// Binds are directories or files of this machine that the box has too, as
	// "SOURCE" or "SOURCE:TARGET", absolute.
	Binds []string
}

// plan is what the holder and PID 1 need to know.
type plan struct {
	Name, Dir, Cgroup, Root, MachineID string
	Binds                              []string
}

// Box is a host that runs. Its methods may be called by several goroutines,
// but for Reboot, Crash and Close.
type Box struct {
	plan    plan
	holder  *exec.Cmd
	console *os.File
	control io.WriteCloser
	events  chan event
	ended   chan struct{} // closed once the holder has ended
	pid     atomic.Int64  // of PID 1, as this machine numbers it
}

// event is what the holder reports: a boot with the pid of its PID 1, or why
// there will be no further one.
type event struct {
	PID int
	End string
}

var boxes atomic.Uint64 // numbers the boxes of this process

// Boot boots a box and returns once its systemd has finished starting up. Close
// it. It also removes what boxes of killed processes have left.
func Boot(ctx context.Context, o Options) (*Box, error) {
	if err := Require(); err != nil {
		return nil, err
	}
	mount, err := cgroupMount()
	if err != nil {
		return nil, err
	}
	sweep(mount)
	b, err := newBox(mount, o)
	if err != nil {
		return nil, err
	}
	if err = b.start(); err == nil {
		err = b.wait(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func newBox(mount string, o Options) (*Box, error) {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s%s-%d", prefix, self(), boxes.Add(1))
	p := plan{
		Name: "box", Dir: filepath.Join(os.TempDir(), name), Cgroup: filepath.Join(mount, name),
		Root: o.Root, MachineID: hex.EncodeToString(id), Binds: o.Binds,
	}
	if p.Root == "" {
		p.Root = "/"
	}
	for _, dir := range []string{p.Dir, filepath.Join(p.Dir, "disk"), p.Cgroup} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, fmt.Errorf("making a box: %w", err)
		}
	}
	return &Box{plan: p, events: make(chan event, 8), ended: make(chan struct{})}, nil
}

// start starts the holder, which boots at once.
func (b *Box) start() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if b.console, err = os.Create(b.consolePath()); err != nil {
		return err
	}
	config, err := json.Marshal(b.plan)
	if err != nil {
		return err
	}
	b.holder = &exec.Cmd{
		Path: program, Args: []string{"berth-box-holder"}, Stderr: b.console,
		Env: []string{stageEnv + "=holder", planEnv + "=" + string(config), "PATH=" + searchPath},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWNS, Setsid: true, Pdeathsig: syscall.SIGKILL,
		},
	}
	if b.control, err = b.holder.StdinPipe(); err != nil {
		return err
	}
	out, err := b.holder.StdoutPipe()
	if err != nil {
		return err
	}
	started := make(chan error)
	go b.hold(out, started) // ends with the holder
	return <-started
}

// hold owns the thread that started the holder, which the kernel takes for the
// holder's parent, and passes its reports on.
func (b *Box) hold(out io.Reader, started chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread's end would end the holder
	defer close(b.ended)
	defer close(b.events)
	if err := b.holder.Start(); err != nil {
		started <- fmt.Errorf("starting a box: %w", err)
		return
	}
	started <- nil
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			b.events <- e
		}
	}
	_ = b.holder.Wait() // killed on purpose, most often
}

// wait waits until the boot that has begun, or is about to, has finished.
func (b *Box) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootBound)
	defer cancel()
	select {
	case e := <-b.events: // zero once the holder has ended
		if e.PID == 0 {
			return fmt.Errorf("booting a box: it has ended: %s\n%s", e.End, b.Console())
		}
		b.pid.Store(int64(e.PID))
	case <-ctx.Done():
		return fmt.Errorf("booting a box: %w\n%s", ctx.Err(), b.Console())
	}
	private := fmt.Sprintf("/proc/%d/root/run/systemd/private", b.pid.Load())
	for {
		if _, err := os.Stat(private); err == nil {
			break
		}
		select {
		case <-time.After(pollPeriod):
		case e := <-b.events:
			return fmt.Errorf("booting a box: it has ended: %s\n%s", e.End, b.Console())
		case <-ctx.Done():
			return fmt.Errorf("waiting for systemd: %w\n%s", ctx.Err(), b.Console())
		}
	}
	state, err := b.Output(ctx, "systemctl", "is-system-running", "--wait")
	if s := strings.TrimSpace(state); s != "running" && s != "degraded" {
		return fmt.Errorf("booting a box: systemd says %q: %w\n%s", s, err, b.Console())
	}
	return nil
}

// PID is the box's PID 1 as this machine numbers it.
func (b *Box) PID() int { return int(b.pid.Load()) }

// Root is the box's root as a path of this machine, for as long as the box
// runs without a reboot.
func (b *Box) Root() string { return fmt.Sprintf("/proc/%d/root", b.PID()) }

func (b *Box) consolePath() string { return filepath.Join(b.plan.Dir, "console") }

// Console is the end of what the boot has said.
func (b *Box) Console() string {
	data, _ := os.ReadFile(b.consolePath()) // for messages only
	return string(data[max(0, len(data)-4<<10):])
}

// Reboot shuts the box down as an operator does and waits for it to have booted
// again, with another boot id and the same disk.
func (b *Box) Reboot(ctx context.Context) error {
	// The reply may be cut off by what it asks for.
	_, _ = b.Output(ctx, "systemctl", "start", "--no-block", "--job-mode=replace-irreversibly", "reboot.target")
	return b.wait(ctx)
}

// Crash kills every process of the box at once and waits for it to have booted
// again. What was written to the disk is kept, synced or not: for power cuts a
// box is not enough.
func (b *Box) Crash(ctx context.Context) error {
	if _, err := io.WriteString(b.control, "crash\n"); err != nil {
		return fmt.Errorf("crashing a box: %w", err)
	}
	return b.wait(ctx)
}

// Close kills every process of the box and removes what it was made of.
func (b *Box) Close() error {
	var errs []error
	if b.control != nil {
		_ = b.control.Close() // the holder ends the box and then itself; it may have ended before
		select {
		case <-b.ended:
		case <-time.After(endBound):
			errs = append(errs, errors.New("the holder of a box does not end"), b.holder.Process.Kill())
		}
	}
	if b.console != nil {
		errs = append(errs, b.console.Close())
	}
	errs = append(errs, removeCgroup(b.plan.Cgroup), os.RemoveAll(b.plan.Dir))
	return errors.Join(errs...)
}

// Output runs a program in the box and returns what it prints on standard
// output; an error has what it prints on standard error.
func (b *Box) Output(ctx context.Context, args ...string) (string, error) {
	var out, errOut bytes.Buffer
	err := b.Run(ctx, Command{Args: args, Stdout: &out, Stderr: &errOut})
	if err != nil {
		err = fmt.Errorf("running %q in a box: %w: %s", args, err, bytes.TrimSpace(errOut.Bytes()))
	}
	return out.String(), err
}

// Command is a program to run in a box.
type Command struct {
	Args []string
	// Dir is the working directory, "" = the root.
	Dir string
	// Env is the whole environment; nil = a plain one of root's.
	Env            []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Signals are passed on to the program; may be nil.
	Signals <-chan os.Signal
}

// Run runs a program in the box, in a cgroup of its own, as root, and returns
// an *exec.ExitError if it fails.
func (b *Box) Run(ctx context.Context, c Command) error {
	leaf := filepath.Join(b.plan.Cgroup, "exec")
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("making a cgroup: %w", err)
	}
	dir, err := os.Open(leaf)
	if err != nil {
		return fmt.Errorf("opening a cgroup: %w", err)
	}
	defer dir.Close()
	return offMain(func() error { return b.enter(ctx, c, int(dir.Fd())) })
}

// offMain calls f on a thread that is not the process's first one, and ends the
// thread with it. What moves the first one moves /proc/self for all.
func offMain(f func() error) error {
	done := make(chan error)
	go func() { // ends with f
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- offMain(f) // holds this thread, so f gets another
			return
		}
		done <- f()
	}()
	return <-done
}

// enter moves its thread into the box's namespaces and starts the program from
// there. The thread is of no use afterwards, see offMain.
func (b *Box) enter(ctx context.Context, c Command, cgroup int) error {
	pidfd, err := unix.PidfdOpen(b.PID(), 0)
	if err != nil {
		return fmt.Errorf("entering a box: %w", err)
	}
	defer unix.Close(pidfd)
	// setns(2): a mount namespace is entered only by what shares its root and
	// working directory with nobody.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("entering a box: %w", err)
	}
	const all = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
	if err := unix.Setns(pidfd, all); err != nil {
		return fmt.Errorf("entering a box: %w", err)
	}
	// env(1) looks the program up in the box's PATH.
	cmd := exec.CommandContext(ctx, "/usr/bin/env", append([]string{"--"}, c.Args...)...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Dir, c.Env, c.Stdin, c.Stdout, c.Stderr
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	if cmd.Env == nil {
		cmd.Env = []string{"PATH=" + searchPath, "HOME=/root", "LANG=C.UTF-8"}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: cgroup}
	cmd.WaitDelay = endBound // a background child may hold the output open
	if err := cmd.Start(); err != nil {
		return err
	}
	over := make(chan struct{})
	var relay sync.WaitGroup
	relay.Go(func() {
		for {
			select {
			case s := <-c.Signals:
				_ = cmd.Process.Signal(s) // it may have ended meanwhile
			case <-over:
				return
			}
		}
	})
	err = cmd.Wait()
	close(over)
	relay.Wait()
	return err
}
