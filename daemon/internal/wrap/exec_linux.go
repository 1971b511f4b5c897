package wrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/rpc/wire"
)

// execSpec is one program to be started.
type execSpec struct {
	argv     []string
	env      []string
	dir      string
	files    [3]int
	terminal bool
	recipe   *sandbox.Recipe
	log      *diary
	cgroup   string
	cgroupFD int
}

func newExecSpec(l *wire.Launch, r *sandbox.Recipe, files [3]int, log *diary) *execSpec {
	return &execSpec{
		argv: r.Argv, env: environment(l, r), dir: r.Dir, files: files, terminal: l.Terminal,
		recipe: r, log: log, cgroup: l.WorkCgroup, cgroupFD: -1,
	}
}

// openCgroup opens the directory that the agent is cloned into.
func (s *execSpec) openCgroup() error {
	if s.cgroup == "" {
		return nil
	}
	fd, err := unix.Open(s.cgroup, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening work cgroup %q: %w", s.cgroup, err)
	}
	s.cgroupFD = fd
	return nil
}

func (s *execSpec) close() {
	if s.cgroupFD >= 0 {
		unix.Close(s.cgroupFD)
	}
}

// start starts the program and returns its pid and a pidfd. The error says in
// words for people what is wrong with the recipe.
func (s *execSpec) start() (pid, pidfd int, err error) {
	if err := s.check(); err != nil {
		return 0, -1, err
	}
	defer agentOOMScore(s.log)()
	defer unix.Umask(unix.Umask(s.umask())) // nothing else makes files before the agent runs
	var denied error
	for _, path := range s.candidates() {
		pid, pidfd, err = s.startPath(path)
		if err == nil {
			return pid, pidfd, nil
		}
		// As execvp(3): what may not be executed is passed over, and remembered.
		if !errors.Is(err, unix.EACCES) {
			return 0, -1, s.explain(path, err)
		}
		denied = s.explain(path, err)
	}
	if denied != nil {
		return 0, -1, denied
	}
	return 0, -1, fmt.Errorf("starting %q: no such file in PATH", s.argv[0])
}

func (s *execSpec) check() error {
	switch {
	case len(s.argv) == 0 || s.argv[0] == "":
		return errors.New("starting the agent: the recipe has no command")
	case !filepath.IsAbs(s.dir):
		return fmt.Errorf("starting %q: working directory %q is not absolute", s.argv[0], s.dir)
	}
	return nil
}

// umask returns the agent's umask; 0 in a recipe stands for the usual 0022.
func (s *execSpec) umask() int {
	if s.recipe.Umask == 0 {
		return 0o022
	}
	return int(s.recipe.Umask & 0o777)
}

// candidates returns the paths that argv[0] may mean: itself when it holds a
// slash, else the existing files of that name along the PATH of the agent's
// environment.
func (s *execSpec) candidates() []string {
	if strings.Contains(s.argv[0], "/") {
		return []string{s.argv[0]}
	}
	var found []string
	for _, dir := range filepath.SplitList(lookupEnv(s.env, "PATH")) {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(s.dir, dir) // "" means the working directory
		}
		path := filepath.Join(dir, s.argv[0])
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			found = append(found, path)
		}
	}
	return found
}

// lookupEnv returns the last value of name, as programs see it.
func lookupEnv(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// startPath executes path. ETXTBSY, which a concurrent fork in whoever
// installed the file can cause, is retried with a bound.
func (s *execSpec) startPath(path string) (pid, pidfd int, err error) {
	for try := 0; ; try++ {
		pid, pidfd, err = s.fork(path)
		if err == nil {
			if killed, _, err := sys.KilledBeforeExec(pid, pidfd); err == nil && killed {
				abandon(pid, pidfd)
				return 0, -1, errKilledBeforeExec
			}
		}
		if !errors.Is(err, unix.ETXTBSY) || try == startTries {
			return pid, pidfd, err
		}
		time.Sleep(startPause)
	}
}

// errKilledBeforeExec: the kernel kills what is cloned into a cgroup that was
// once told to kill its members (Linux 6.18), and the clone succeeds.
var errKilledBeforeExec = errors.New("killed before it could execute anything, as in a cgroup that has been killed")

// fork clones the child into its cgroup and its own session, with only the
// three standard descriptors, and executes path in it. no_new_privs is a
// property of the thread that forks and cannot be taken back.
func (s *execSpec) fork(path string) (pid, pidfd int, err error) {
	if len(s.recipe.Rlimits) > 0 {
		return s.forkStage(path)
	}
	attr := s.attr(&pidfd)
	attr.Dir = s.dir
	attr.Env = s.env
	if s.recipe.SetIDs {
		attr.Sys.Credential = &syscall.Credential{
			Uid: s.recipe.UID, Gid: s.recipe.GID, Groups: s.recipe.Groups,
		}
	}
	start := func() { pid, err = syscall.ForkExec(path, s.argv, attr) }
	if s.recipe.NoNewPrivileges {
		withNoNewPrivs(start)
	} else {
		start()
	}
	return pid, pidfd, err
}

// attr is what every start has in common.
func (s *execSpec) attr(pidfd *int) *syscall.ProcAttr {
	*pidfd = -1
	a := &syscall.SysProcAttr{Setsid: true, Setctty: s.terminal, PidFD: pidfd}
	if s.cgroupFD >= 0 {
		a.UseCgroupFD, a.CgroupFD = true, s.cgroupFD
	}
	files := []uintptr{uintptr(s.files[0]), uintptr(s.files[1]), uintptr(s.files[2])}
	return &syscall.ProcAttr{Files: files, Sys: a}
}
