package wrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/plugins/sandbox"
)

// StageName is the argv[0] under which the wrapper's own executable is the
// stage between fork and the agent; see Stage.
const StageName = "berth-wrap-stage"

// The stage's descriptors beyond the agent's three.
const (
	stageSpecFD  = 3 // a stageSpec in JSON, then end of file
	stageErrorFD = 4 // a stageFailure in JSON, or end of file when the agent runs
)

// stageSpec is what the stage has to do.
type stageSpec struct {
	Path   string         `json:"path"`
	Argv   []string       `json:"argv"`
	Env    []string       `json:"env"`
	Dir    string         `json:"dir"`
	Recipe sandbox.Recipe `json:"recipe"` // ids, limits and no_new_privs only
}

// stageFailure is the step that failed.
type stageFailure struct {
	Step  string        `json:"step"`
	Errno syscall.Errno `json:"errno"`
}

// stepExec is the step whose errno means the same as that of a direct start.
const stepExec = "exec"

// stageError is a failed step before the program itself was tried.
type stageError struct{ stageFailure }

func (e *stageError) Error() string { return e.Step + ": " + e.Errno.Error() }

// forkStage starts path through the stage, which Go's ForkExec has no hook for:
// resource limits are the process's and must be set after the fork.
func (s *execSpec) forkStage(path string) (pid, pidfd int, err error) {
	var spec, fail [2]int
	if err := unix.Pipe2(spec[:], unix.O_CLOEXEC); err != nil {
		return 0, -1, err
	}
	defer unix.Close(spec[0])
	if err := unix.Pipe2(fail[:], unix.O_CLOEXEC); err != nil {
		unix.Close(spec[1])
		return 0, -1, err
	}
	unix.SetNonblock(spec[1], true) // cannot fail on a pipe
	unix.SetNonblock(fail[0], true)
	to, from := os.NewFile(uintptr(spec[1]), "stage"), os.NewFile(uintptr(fail[0]), "stage")
	defer to.Close()
	defer from.Close()
	attr := s.attr(&pidfd)
	attr.Dir = "/"
	attr.Env = s.env[len(s.env)-markerCount:] // nothing of the agent's reaches a privileged program
	attr.Files = append(attr.Files, uintptr(spec[0]), uintptr(fail[1]))
	pid, err = syscall.ForkExec("/proc/self/exe", []string{StageName}, attr)
	unix.Close(fail[1])
	if err != nil {
		return 0, -1, &stageError{stageFailure{"starting the stage for resource limits", errnoOf(err)}}
	}
	if err := s.converse(path, to, from); err != nil {
		abandon(pid, pidfd)
		return 0, -1, err
	}
	return pid, pidfd, nil
}

// converse sends the stage its task and awaits its end of file or failure.
func (s *execSpec) converse(path string, to, from *os.File) error {
	task := stageSpec{Path: path, Argv: s.argv, Env: s.env, Dir: s.dir, Recipe: *s.recipe}
	task.Recipe.Env, task.Recipe.Argv = nil, nil
	end := time.Now().Add(stageBound)
	to.SetDeadline(end) // a pipe that is non-blocking takes deadlines
	from.SetDeadline(end)
	if err := json.NewEncoder(to).Encode(task); err != nil {
		return fmt.Errorf("telling the stage for resource limits its task: %w", err)
	}
	to.Close() // the end of file is the go
	var f stageFailure
	err := json.NewDecoder(from).Decode(&f)
	switch {
	case err != nil && errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("waiting for the stage for resource limits: %w", err)
	case err != nil:
		return nil // end of file: the descriptor closed on exec
	case f.Step == stepExec:
		return f.Errno
	default:
		return &stageError{f}
	}
}

// abandon ends and reaps a stage that failed.
func abandon(pid, pidfd int) {
	unix.Kill(pid, unix.SIGKILL) // our unreaped child: the pid is its own
	var status unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != unix.EINTR {
			break
		}
	}
	if pidfd >= 0 {
		unix.Close(pidfd)
	}
}

func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return unix.EIO
}

// Stage is the program between fork and the agent where resource limits are
// asked for: limits, ids, no_new_privs, working directory, execve. It reports
// the step that failed on descriptor 4 and returns the exit code 127; on
// success it does not return. Everything is prepared before the first limit
// applies: under a small one the Go runtime may not get memory or threads.
func Stage() int {
	runtime.LockOSThread() // ids are set on this thread only, which executes
	debug.SetGCPercent(-1)
	unix.CloseOnExec(stageErrorFD)
	fail := func(step string, err error) int {
		data, _ := json.Marshal(stageFailure{step, errnoOf(err)})
		unix.Write(stageErrorFD, data)
		return 127
	}
	in := os.NewFile(stageSpecFD, "task")
	var t stageSpec
	err := json.NewDecoder(in).Decode(&t)
	in.Close() // read to its end
	if err != nil {
		return fail("reading the stage's task", unix.EIO)
	}
	step, err := t.become()
	return fail(step, err)
}

// become does the steps; it returns only with an error.
func (t *stageSpec) become() (step string, err error) {
	dir, err := unix.BytePtrFromString(t.Dir)
	if err != nil {
		return "working directory", err
	}
	roomForExec(t)
	for _, l := range t.Recipe.Rlimits {
		if err := setLimit(l); err != nil {
			return "setting resource limit " + l.Name, err
		}
	}
	if t.Recipe.SetIDs {
		if err := rawSetIDs(t.Recipe.UID, t.Recipe.GID, t.Recipe.Groups); err != nil {
			return "setting the agent's ids", err
		}
	}
	if t.Recipe.NoNewPrivileges {
		if _, _, e := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
			return "setting no_new_privs", e
		}
	}
	if _, _, e := unix.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(dir)), 0, 0); e != 0 {
		return fmt.Sprintf("working directory %q", t.Dir), e
	}
	return stepExec, syscall.Exec(t.Path, t.Argv, t.Env)
}

// roomForExec makes the heap as large as Exec will need it, and frees that
// again: freed spans stay mapped, so a limit on memory does not stop Exec from
// using them.
func roomForExec(t *stageSpec) {
	size := 64 << 10
	for _, list := range [][]string{t.Argv, t.Env} {
		for _, v := range list {
			size += len(v) + 64
		}
	}
	room := make([]byte, 4*size)
	runtime.KeepAlive(&room[0])
	runtime.GC()
}

// limitNumbers are the resources of setrlimit(2), by the names of
// sandbox.Rlimit.
var limitNumbers = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA,
	"fsize": unix.RLIMIT_FSIZE, "locks": unix.RLIMIT_LOCKS, "memlock": unix.RLIMIT_MEMLOCK,
	"msgqueue": unix.RLIMIT_MSGQUEUE, "nice": unix.RLIMIT_NICE, "nofile": unix.RLIMIT_NOFILE,
	"nproc": unix.RLIMIT_NPROC, "rss": unix.RLIMIT_RSS, "rtprio": unix.RLIMIT_RTPRIO,
	"rttime": unix.RLIMIT_RTTIME, "sigpending": unix.RLIMIT_SIGPENDING, "stack": unix.RLIMIT_STACK,
}

// setLimit sets one limit. It goes through package syscall, which otherwise
// puts back at exec the limit on descriptors that the runtime has raised.
func setLimit(l sandbox.Rlimit) error {
	n, ok := limitNumbers[l.Name]
	if !ok {
		return unix.EINVAL
	}
	return syscall.Setrlimit(n, &syscall.Rlimit{Cur: l.Soft, Max: l.Hard})
}
