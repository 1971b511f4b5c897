package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Step is one step of a preparation. The program has the file that its output
// goes to as descriptor 3, and with Mirror the directory of an earlier clone's
// objects as descriptor 4.
type Step struct {
	// Stamp says for whom the workspace is prepared; Last that nothing comes after
	// this step.
	Stamp Stamp `json:"stamp"`
	Last  bool  `json:"last,omitempty"`
	// Copy is the directory to copy, Clone the repository to clone.
	Copy  string `json:"copy,omitempty"`
	Clone string `json:"clone,omitempty"`
	// Branch, WorkBranch and Depth as in record.Source.
	Branch     string `json:"branch,omitempty"`
	WorkBranch string `json:"work_branch,omitempty"`
	Depth      uint64 `json:"depth,omitempty"`
	Mirror     bool   `json:"mirror,omitempty"`
	// Command is a setup command, Env the agent's environment; Home is its HOME.
	Command string   `json:"command,omitempty"`
	Env     []string `json:"env,omitempty"`
	Home    string   `json:"home"`
	// Quiet is how many seconds may pass without any output.
	Quiet int `json:"quiet"`
}

// The failures of a step. The set is closed: it is part of events, which must
// not tell what a repository or a command says.
const (
	FailedExit     = "exit"      // the program ended with a code above 0
	FailedSignal   = "signal"    // the program was killed
	FailedQuiet    = "no_output" // nothing was printed for too long
	FailedTime     = "too_long"
	FailedRoom     = "no_room"   // the disk, or the user's quota, is full
	FailedNotEmpty = "not_empty" // something of unknown origin is in the workspace
	FailedForeign  = "foreign"   // another session was preparing it and has not finished
	FailedBranch   = "no_branch"
	FailedSource   = "source" // what is to be copied cannot be read or is not whole by itself
	FailedError    = "error"  // anything else; the log has it
)

// End is how a step has ended.
type End struct {
	// Failure is one of the constants, empty when all went well.
	Failure string `json:"failure,omitempty"`
	Code    int    `json:"code,omitempty"`
	Signal  int    `json:"signal,omitempty"`
	// Prepared: the stamp says that this session's preparation is finished, and
	// nothing was done.
	Prepared bool `json:"prepared,omitempty"`
	// From is the session that had prepared the workspace before, if another had.
	From string `json:"from,omitempty"`
	// SeedBad: the mirror's objects were of no use.
	SeedBad bool `json:"seed_bad,omitempty"`
	// Why is for people; it is never part of an event.
	Why string `json:"why,omitempty"`
}

// errNoRoom is the cause of a context that keepFree has ended.
var errNoRoom = errors.New("no room is left")

// failure is an error with its place in the closed set.
type failure struct {
	kind string
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func failed(kind, format string, args ...any) error {
	return &failure{kind, fmt.Errorf(format, args...)}
}

// prepare does one step.
func prepare(ctx context.Context, req *Request) *End {
	unix.Umask(0o022)
	p := &preparation{Step: req.Step, root: req.Root, log: os.NewFile(logFD, "log")}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return p.ended(ctx, err)
	}
	steps := map[string]func(context.Context) error{
		VerbClaim: p.claim, VerbCopy: p.copy, VerbClone: p.clone, VerbCheckout: p.checkout, VerbSetup: p.setup,
	}
	do := steps[req.Verb]
	if do == nil {
		return p.ended(ctx, fmt.Errorf("unknown step %q", req.Verb))
	}
	if req.Verb != VerbClaim {
		if have, ok := readStamp(p.root); ok && have.Finished && have.of(&p.Stamp) {
			return &End{Prepared: true}
		}
	}
	err := do(ctx)
	if err == nil && p.Last {
		err = p.stamp(true)
	}
	return p.ended(ctx, err)
}

const (
	logFD    = 3
	mirrorFD = 4
)

// preparation is one step under way.
type preparation struct {
	*Step
	root string
	log  *os.File
	end  End

	printed int  // bytes in the log
	cloning bool // see userConfig
}

// ended turns an error into the End.
func (p *preparation) ended(ctx context.Context, err error) *End {
	if err == nil {
		return &p.end
	}
	p.end.Failure, p.end.Why = FailedError, clip(err.Error())
	var known *failure
	var exit *exec.ExitError
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errNoRoom), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		p.end.Failure = FailedRoom
	case errors.As(err, &known):
		p.end.Failure = known.kind
	case ctx.Err() != nil:
		p.end.Failure = FailedTime
	}
	if errors.As(err, &exit) {
		p.end.Code = max(exit.ExitCode(), 0)
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			p.end.Signal = int(status.Signal())
		}
		if p.end.Failure == FailedError {
			p.end.Failure = FailedExit
			if p.end.Signal != 0 {
				p.end.Failure = FailedSignal
			}
		}
	}
	fmt.Fprintf(p.log, "berth: %s\n", p.end.Why)
	return &p.end
}

// maxLog bounds what one step writes to the log.
const maxLog = 1 << 20

// drainBound is how long output is read on after a command has ended: something
// that it has left behind may hold the pipe.
const drainBound = time.Second

// run runs a command in a process group of its own with its output in the log,
// and kills the group when that is quiet for too long or ctx ends.
func (p *preparation) run(ctx context.Context, cmd *exec.Cmd) error {
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	if cmd.Stderr = in; cmd.Stdout == nil {
		cmd.Stdout = in
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := running.start(cmd); err != nil {
		in.Close()
		return err
	}
	in.Close()
	output, ended := make(chan []byte), make(chan error, 1)
	go readAll(out, output)                    // ends with the pipe
	go func() { ended <- running.wait(cmd) }() // ends with the command
	quiet := time.NewTimer(p.patience())       // since the last output
	defer quiet.Stop()
	for {
		select {
		case data, ok := <-output:
			if !ok {
				output = nil
				continue
			}
			quiet.Reset(p.patience())
			p.print(data)
		case err := <-ended:
			_ = out.SetReadDeadline(time.Now().Add(drainBound))
			for output != nil {
				data, ok := <-output
				if !ok {
					break
				}
				p.print(data)
			}
			return err
		case <-quiet.C:
			running.kill(cmd.Process.Pid)
			return p.drained(output, failed(FailedQuiet, "nothing was printed for %s: %w", p.patience(), <-ended))
		case <-ctx.Done():
			running.kill(cmd.Process.Pid)
			return p.drained(output, errors.Join(context.Cause(ctx), <-ended))
		}
	}
}

// drained lets the reader of a pipe go, whose end the caller closes.
func (p *preparation) drained(output <-chan []byte, err error) error {
	if output != nil {
		go func() { // ends with the reader, which ends with the pipe
			for range output {
			}
		}()
	}
	return err
}

// print writes output to the log as far as the log's bound allows.
func (p *preparation) print(data []byte) {
	data = data[:min(len(data), maxLog-p.printed)]
	p.printed += len(data)
	_, _ = p.log.Write(data) // a log that cannot be written holds up nothing
}

func (p *preparation) patience() time.Duration { return time.Duration(p.Quiet) * time.Second }

// readAll passes on what a pipe gives until its end, or its deadline.
func readAll(from io.Reader, to chan<- []byte) {
	defer close(to)
	for {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		if n > 0 {
			to <- buf[:n]
		}
		if err != nil {
			return
		}
	}
}
