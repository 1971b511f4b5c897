package workspace

import (
	"errors"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"
)

// running are the process groups that this program has started and that were
// not waited for. There is one per process, as there are signals.
var running groups

type groups struct {
	mu    sync.Mutex
	ended bool
	ids   map[int]bool
}

// start starts a command that is to have a group of its own.
func (g *groups) start(cmd *exec.Cmd) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return errors.New("ending")
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if g.ids == nil {
		g.ids = map[int]bool{}
	}
	g.ids[cmd.Process.Pid] = true
	return nil
}

// wait waits for a command's end, kills what it has left in its group, and
// returns how it ended. The command is reaped last: until then its id is nobody
// else's.
func (g *groups) wait(cmd *exec.Cmd) error {
	pid := cmd.Process.Pid
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = unix.Kill(-pid, unix.SIGKILL)
	delete(g.ids, pid)
	return cmd.Wait()
}

// kill kills a group whose command was not waited for yet.
func (g *groups) kill(id int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ids[id] {
		_ = unix.Kill(-id, unix.SIGKILL)
	}
}

// killAll ends all groups, for good.
func (g *groups) killAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	for id := range g.ids {
		_ = unix.Kill(-id, unix.SIGKILL)
	}
}
