package spawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/berthd/berth/daemon/internal/sys"
	"golang.org/x/sys/unix"
)

// Parked is a wrapper that waits for its recipe. It belongs to whoever called Start.
type Parked struct {
	Identity sys.Identity
	PidFD    int      // close-on-exec, open until Close
	Warnings []string // what could not be set up and is not worth failing for

	once   sync.Once
	recipe *os.File // write end
}

// park takes over a process that was just cloned: who it is, and whether it got as far as its program.
func park(child process, recipe, oomScoreAdj int) (*Parked, error) {
	p := &Parked{PidFD: child.pidfd}
	if err := unix.SetNonblock(recipe, true); err != nil {
		panic("internal error: a pipe cannot be made non-blocking: " + err.Error())
	}
	p.recipe = os.NewFile(uintptr(recipe), "recipe")
	err := p.identify(child.pid)
	if err != nil {
		// The clone succeeded, so something may be running: nothing of it may be left.
		return nil, errors.Join(err, p.Abort(), p.Close())
	}
	if err := os.WriteFile("/proc/"+strconv.Itoa(child.pid)+"/oom_score_adj", []byte(strconv.Itoa(oomScoreAdj)), 0); err != nil {
		p.Warnings = append(p.Warnings, fmt.Sprintf("setting the OOM score: %v", err))
	}
	return p, nil
}

// identify reads the child's facts; the pid is its own until somebody waits for it, which nobody can
// before Start has returned. The runtime takes a child that died on its way to exec for a success,
// because both close the descriptor that it watches; the kernel's own flag tells them apart.
func (p *Parked) identify(pid int) error {
	killed, st, err := sys.KilledBeforeExec(pid, p.PidFD)
	if err != nil {
		return err
	}
	if killed {
		return ErrKilledBeforeExec
	}
	boot, err := sys.BootID()
	if err != nil {
		return err
	}
	inode, err := sys.PidfdInode(p.PidFD)
	if err != nil {
		return err
	}
	p.Identity = sys.Identity{PID: pid, StartTicks: st.StartTicks, PidfdInode: inode, BootID: boot}
	return nil
}

// Release writes the recipe and closes the pipe, which is the go. It returns when the wrapper has taken
// everything that the pipe does not hold (64 KiB); ctx bounds that. An empty recipe is refused, it would
// mean Abort. After an error the wrapper has seen a part at most, which is no recipe: Abort it.
func (p *Parked) Release(ctx context.Context, launch []byte) error {
	if len(launch) == 0 {
		return errors.New("releasing a wrapper: empty recipe")
	}
	stop := context.AfterFunc(ctx, func() { _ = p.recipe.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := p.recipe.Write(launch)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
		return fmt.Errorf("releasing wrapper %d: %w", p.Identity.PID, err)
	}
	if err := p.hangUp(); err != nil {
		return fmt.Errorf("releasing wrapper %d: %w", p.Identity.PID, err)
	}
	return nil
}

func (p *Parked) hangUp() (err error) {
	p.once.Do(func() { err = p.recipe.Close() })
	return err
}

// How long a parked wrapper may take to leave after the pipe has ended, and after SIGKILL.
const (
	leaveWait = 2 * time.Second
	killWait  = 2 * time.Second
)

// Abort closes the pipe, upon which a parked wrapper leaves by itself, waits for that and reaps it. One
// that does not leave, or that has been released already, is killed. An error means that it may still be
// there: its leaf must be killed. Abort may be called more than once, and beside a Watcher.
func (p *Parked) Abort() error {
	_ = p.hangUp()
	if ended(p.PidFD, leaveWait) {
		reap(p.PidFD)
		return nil
	}
	if err := unix.PidfdSendSignal(p.PidFD, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("aborting wrapper %d: %w", p.Identity.PID, err)
	}
	if !ended(p.PidFD, killWait) {
		return fmt.Errorf("aborting wrapper %d: it outlives SIGKILL", p.Identity.PID)
	}
	reap(p.PidFD)
	return nil
}

// Close gives the descriptors back. Of a wrapper that was not released it is the end as well, since its
// pipe ends; nobody waits for it then but a Watcher.
func (p *Parked) Close() error {
	err := p.hangUp()
	if p.PidFD >= 0 {
		err = errors.Join(err, unix.Close(p.PidFD))
		p.PidFD = -1
	}
	return err
}

// ended waits until the pidfd's process has exited, at most for wait.
func ended(pidfd int, wait time.Duration) bool {
	end := sys.Now() + wait
	for {
		left := max(0, end-sys.Now())
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(left.Milliseconds()))
		if n > 0 {
			return true
		}
		if err != unix.EINTR && (err != nil || left == 0) {
			return false
		}
	}
}
