package wrap

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

// agent is the program that the session is for.
type agent struct {
	pid    int
	pidfd  int
	input  *os.File // our end of its standard input, or the terminal
	stdout *os.File // nil with a terminal
	stderr *os.File // nil with a terminal
	term   *os.File // nil without a terminal
	slave  int      // our own descriptor of the agent's side, -1 = none

	mu     sync.Mutex
	reaped bool // its pid and its process group mean nothing any more
}

// errEnded: the agent has ended, there is nothing to signal.
var errEnded = errors.New("the agent has ended")

// stdio is the agent's side of its three standard descriptors.
type stdio struct {
	files [3]int // may repeat
	ours  []int  // of files, to be closed after the start
}

func (s *stdio) close() {
	for _, fd := range s.ours {
		unix.Close(fd)
	}
}

// startAgent starts the agent, or says in words for people why it cannot run.
func startAgent(l *wire.Launch, r *sandbox.Recipe, log *diary) (*agent, error) {
	a := &agent{pidfd: -1, slave: -1}
	var io *stdio
	var err error
	if l.Terminal {
		io, err = a.openTerminal(l.Size)
	} else {
		io, err = a.openPipes()
	}
	if err != nil {
		return nil, err
	}
	defer io.close()
	if r.SetIDs {
		io.chown(r, log)
	}
	spec := newExecSpec(l, r, io.files, log)
	if err := spec.openCgroup(); err != nil {
		a.close()
		return nil, err
	}
	defer spec.close()
	if a.pid, a.pidfd, err = spec.start(); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// openPipes makes three pipes. Our ends are non-blocking, the agent's are not:
// the two ends of a pipe are separate open file descriptions.
func (a *agent) openPipes() (*stdio, error) {
	io := &stdio{}
	ours := [3]**os.File{&a.input, &a.stdout, &a.stderr}
	for i, name := range [3]string{"stdin", "stdout", "stderr"} {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			io.close()
			a.close()
			return nil, fmt.Errorf("making the pipe for %s: %w", name, err)
		}
		our, their := p[0], p[1]
		if i == 0 {
			our, their = p[1], p[0]
		}
		io.files[i] = their
		io.ours = append(io.ours, their)
		unix.SetNonblock(our, true) // cannot fail on a pipe
		*ours[i] = os.NewFile(uintptr(our), name)
	}
	return io, nil
}

// chown gives the agent its standard descriptors, so that it can open
// /dev/stdout and /dev/tty again under its own uid.
func (s *stdio) chown(r *sandbox.Recipe, log *diary) {
	for _, fd := range s.files {
		if err := unix.Fchown(fd, int(r.UID), int(r.GID)); err != nil {
			log.logf("giving the agent its standard descriptors: %v", err)
		}
	}
}

// outputs returns what the agent writes to, in a fixed order.
func (a *agent) outputs() func(func(spool.Stream, *os.File) bool) {
	return func(yield func(spool.Stream, *os.File) bool) {
		if a.term != nil {
			yield(spool.PTY, a.term)
			return
		}
		_ = yield(spool.Stdout, a.stdout) && yield(spool.Stderr, a.stderr)
	}
}

// close releases everything of an agent that did not start.
func (a *agent) close() {
	for _, f := range []*os.File{a.input, a.stdout, a.stderr} {
		if f != nil {
			f.Close() // nothing is buffered
		}
	}
	a.closeSlave()
	if a.pidfd >= 0 {
		unix.Close(a.pidfd)
	}
}

// signal sends sig to the agent's process group, which it leads until it has
// been reaped.
func (a *agent) signal(sig syscall.Signal) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reaped {
		return errEnded
	}
	if err := unix.Kill(-a.pid, sig); err != nil {
		return fmt.Errorf("signalling the agent: %w", err)
	}
	return nil
}

// environment is the agent's whole environment: the recipe's, and the markers,
// which nothing in the recipe can replace.
func environment(l *wire.Launch, r *sandbox.Recipe) []string {
	markers := []string{
		"BERTH_HOST=" + l.Host,
		"BERTH_SESSION=" + l.Session,
		"BERTH_INSTANCE=" + l.Instance,
		"BERTH_GENERATION=" + strconv.FormatUint(l.Generation, 10),
	}
	env := make([]string, 0, len(r.Env)+len(markers))
	for _, kv := range r.Env {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.ContainsFunc(markers, func(m string) bool { return strings.HasPrefix(m, name+"=") }) {
			env = append(env, kv)
		}
	}
	return append(env, markers...)
}

// markerCount is how many entries at the end of environment's result are the
// markers.
const markerCount = 4
