package spawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/berthd/berth/statefs/failpoint"
	"golang.org/x/sys/unix"
)

// Request says what to start and where.
type Request struct {
	Path string   // absolute path of berth-wrap
	Args []string // argv with the name in front; nil means Path alone
	Env  []string // the whole environment; nil is an empty one, nothing is inherited
	Dir  string   // working directory; empty means /
	// Cgroup is the directory of the leaf's wrap, nil where there are no cgroups.
	Cgroup *os.File
	// Log becomes the wrapper's standard output and error, nil means /dev/null. It must be a file: a pipe
	// or socket that the daemon reads would tie the wrapper's life to the daemon's.
	Log *os.File
	// OOMScoreAdj is what the wrapper gets instead of the daemon's, see proc_pid_oom_score_adj(5).
	OOMScoreAdj int
}

var (
	// ErrKilledBeforeExec: the process died before it ran a single instruction of its program. That is
	// what a leaf that was once killed does to whatever is cloned into it.
	ErrKilledBeforeExec = errors.New("killed before exec")
	// ErrNoPidfd: the kernel returned no pidfd (it is older than 5.4, or a filter forbids it).
	ErrNoPidfd = errors.New("no pidfd")
	// ErrNoLeaf: the cgroup to start in has been removed.
	ErrNoLeaf = errors.New("cgroup was removed")
	// ErrNotFile: the log is a pipe or a socket.
	ErrNotFile = errors.New("log is not a file")
)

// Starting a program that another process is still writing, or that a fork of it holds open for writing,
// fails with ETXTBSY for the time of that fork (golang.org/issue/22315).
const (
	busyTries = 6
	busyPause = 2 * time.Millisecond // doubled each time: 62 ms in all
)

// Start starts the wrapper in its leaf, in a session of its own, with these descriptors and no other:
// 0 = /dev/null, 1 and 2 = the log, 3 = the pipe of its recipe. To be sure of that, every descriptor of
// this process from 3 up is marked close-on-exec first. Signals are unblocked in it; those that this
// process ignores stay ignored, as exec(2) has it.
//
// The process is parked when Start returns: give it to a Watcher, then Release or Abort it. ctx is
// looked at before and between tries; clone and exec cannot be interrupted and take about a millisecond. More
// than four at once gain nothing. Errors: ErrKilledBeforeExec, ErrNoLeaf, ErrNoPidfd, ErrNotFile, and
// those of clone3(2), chdir(2) and execve(2). On error no process is left.
func Start(ctx context.Context, req Request) (*Parked, error) {
	if err := errors.Join(ctx.Err(), checkLog(req.Log)); err != nil {
		return nil, fmt.Errorf("starting %q: %w", req.Path, err)
	}
	var recipe [2]int
	if err := unix.Pipe2(recipe[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("starting %q: making the recipe pipe: %w", req.Path, err)
	}
	defer unix.Close(recipe[0])
	child, err := forkRetry(ctx, req, recipe[0])
	if err != nil {
		unix.Close(recipe[1])
		return nil, fmt.Errorf("starting %q: %w", req.Path, err)
	}
	_ = failpoint.Hit("spawn.clone.after") // the child is there: only its end can be tried
	p, err := park(child, recipe[1], req.OOMScoreAdj)
	if err != nil {
		return nil, fmt.Errorf("starting %q: %w", req.Path, err)
	}
	return p, nil
}

func checkLog(log *os.File) error {
	if log == nil {
		return nil
	}
	st, err := log.Stat()
	if err != nil {
		return fmt.Errorf("checking the log: %w", err)
	}
	if st.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0 {
		return fmt.Errorf("checking the log %q: %w", log.Name(), ErrNotFile)
	}
	return nil
}

type process struct{ pid, pidfd int }

func forkRetry(ctx context.Context, req Request, recipe int) (process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return process{}, fmt.Errorf("opening the null device: %w", err)
	}
	defer null.Close()
	pause := busyPause
	for try := 1; ; try++ {
		child, err := fork(req, null, recipe)
		if !errors.Is(err, unix.ETXTBSY) || try == busyTries {
			return child, err
		}
		select {
		case <-ctx.Done():
			return process{}, fmt.Errorf("%w (%w)", err, ctx.Err())
		case <-time.After(pause):
			pause *= 2
		}
	}
}

func fork(req Request, null *os.File, recipe int) (process, error) {
	log := null.Fd()
	if req.Log != nil {
		log = req.Log.Fd()
	}
	pidfd := -1
	attr := syscall.ProcAttr{
		Dir:   req.Dir,
		Env:   req.Env,
		Files: []uintptr{null.Fd(), log, log, uintptr(recipe)},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	}
	if attr.Dir == "" {
		attr.Dir = "/"
	}
	if req.Cgroup != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(req.Cgroup.Fd())
	}
	args := req.Args
	if args == nil {
		args = []string{req.Path}
	}
	if err := sealDescriptors(); err != nil {
		return process{}, err
	}
	defer unblockSignals()()
	pid, err := syscall.ForkExec(req.Path, args, &attr)
	runtime.KeepAlive(req)
	if err != nil {
		return process{}, explain(req, err)
	}
	if pidfd < 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL) // our own child, not yet waited for: the pid is its own
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		return process{}, ErrNoPidfd
	}
	return process{pid, pidfd}, nil
}

// explain tells a missing leaf from a missing program: clone3(2) answers ENOENT for a cgroup that was
// removed (ENODEV while that is under way), as execve(2) does for a missing program or interpreter.
func explain(req Request, err error) error {
	if req.Cgroup == nil || !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return err
	}
	if _, serr := os.Stat(fmt.Sprintf("/proc/self/fd/%d/cgroup.procs", req.Cgroup.Fd())); serr != nil {
		return fmt.Errorf("%w (%w)", ErrNoLeaf, err)
	}
	return err
}

// sealDescriptors marks everything from 3 up close-on-exec, whoever opened it: an activation socket, a
// library that knows no O_CLOEXEC. Children that are being started at this moment have tables of their own.
func sealDescriptors() error {
	err := unix.CloseRange(3, 1<<32-1, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	entries, derr := os.ReadDir("/proc/self/fd") // before Linux 5.11, or filtered
	if derr != nil {
		return fmt.Errorf("marking descriptors close-on-exec: %w", errors.Join(err, derr))
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// unblockSignals gives the calling thread an empty signal mask, which a child inherits, and returns what
// restores it. The runtime keeps the mask that the daemon was started with, and a wrapper that cannot
// hear SIGUSR1 or SIGCHLD would be of no use.
func unblockSignals() (restore func()) {
	runtime.LockOSThread()
	var none, old unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, &old); err != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
		runtime.UnlockOSThread()
	}
}
