package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// handshakeBytes bounds the line that a plugin introduces itself with.
	handshakeBytes = 4096
	// drain is how long a dead plugin's standard output is still read, since
	// a descendant may keep it open for ever.
	drain = 50 * time.Millisecond
	// busyRetries and busyWait bound the wait for a program that is being
	// written: between fork and exec another thread's child holds its descriptors
	// for a moment (ETXTBSY).
	busyRetries = 20
	busyWait    = 10 * time.Millisecond
)

// launchSpec is all that one exec needs.
type launchSpec struct {
	config Config
	env    []string
	lock   *os.File // becomes descriptor 3; the caller keeps its own
	log    *os.File // becomes descriptor 2; also the rest of standard output
	cgroup Cgroup   // nil without
}

// process is one running plugin process. It is a runner.Runner of go-plugin,
// instead of that library's own, because it must outlast a plugin whose
// descendant keeps the pipes, must never give the plugin a pipe whose reader
// can die (its standard error is a file), and must be killed with all its group.
//
// It is a session and process group of its own. Its exit is waited for by pid
// through os.Process, never by wait4(-1), so it takes no one else's child.
type process struct {
	spec    launchSpec
	dir     string // where its socket must lie
	proc    *os.Process
	life    *os.File // write end of its standard input; closing it ends it
	out     *os.File // read end of its standard output
	line    *io.PipeReader
	exited  chan struct{} // closed once it has been waited for
	drained chan struct{} // closed once out is no longer read

	mu      sync.Mutex
	reaped  bool   // the pid may be another's
	killed  bool   // by us
	address string // of its socket, once announced and admitted
	exit    error  // how it ended; valid once exited is closed
}

// errEnded is how a process ended that we killed.
var errEnded = errors.New("the plugin was ended")

// startProcess runs the program. The process is the caller's to end.
func startProcess(spec launchSpec, dir string) (*process, error) {
	p := &process{spec: spec, dir: dir, exited: make(chan struct{}), drained: make(chan struct{})}
	stdin, life, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	out, stdout, err := os.Pipe()
	if err != nil {
		life.Close()
		return nil, err
	}
	defer stdout.Close()
	p.life, p.out = life, out
	p.proc, err = spec.exec([]*os.File{stdin, stdout, spec.log, spec.lock})
	if err != nil {
		life.Close()
		out.Close()
		return nil, err
	}
	expendable(p.proc.Pid)
	reader, writer := io.Pipe()
	p.line = reader
	// Both belong to this process and end with it: see end.
	go p.waitLoop()
	go p.outputLoop(writer)
	return p, nil
}

// exec starts the program with files as its descriptors from 0.
func (s launchSpec) exec(files []*os.File) (*os.Process, error) {
	sys := &syscall.SysProcAttr{Setsid: true}
	if s.config.UID != 0 {
		sys.Credential = &syscall.Credential{Uid: s.config.UID, Gid: s.config.GID}
	}
	if s.cgroup != nil {
		dir, err := s.cgroup.OpenWork()
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		sys.UseCgroupFD, sys.CgroupFD = true, int(dir.Fd())
	}
	attr := &os.ProcAttr{Dir: "/", Env: s.env, Files: files, Sys: sys}
	argv := append([]string{s.config.Path}, s.config.Args...)
	for try := 0; ; try++ {
		p, err := os.StartProcess(s.config.Path, argv, attr)
		if err == nil || !errors.Is(err, unix.ETXTBSY) || try == busyRetries {
			return p, err
		}
		time.Sleep(busyWait)
	}
}

// expendable undoes the protection from the OOM killer that a daemon has and
// its children inherit: a plugin is easily started again, and what it starts
// must not become unkillable. A daemon without protection passes on what it has.
func expendable(pid int) {
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil || !strings.HasPrefix(string(own), "-") {
		return
	}
	// Raising it needs no privilege (proc_pid_oom_score_adj(5)); a process that has
	// gone already needs it no more.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("0"), 0)
}

// waitLoop ends the group with its leader, then reaps the leader. The order
// matters: as long as the leader is a zombie its pid cannot name another group.
func (p *process) waitLoop() {
	for {
		err := unix.Waitid(unix.P_PID, p.proc.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	_ = unix.Kill(-p.proc.Pid, unix.SIGKILL)
	p.mu.Lock()
	p.reaped = true
	state, err := p.proc.Wait()
	p.exit = p.describeLocked(state, err)
	p.mu.Unlock()
	_ = p.out.SetReadDeadline(time.Now().Add(drain))
	close(p.exited)
}

func (p *process) describeLocked(state *os.ProcessState, err error) error {
	if err != nil {
		return fmt.Errorf("waiting for the plugin: %w", err)
	}
	if w := state.Sys().(syscall.WaitStatus); p.killed && w.Signaled() && w.Signal() == unix.SIGKILL {
		return errEnded
	}
	return fmt.Errorf("the plugin ended: %s", state)
}

// outputLoop passes the first line of standard output to go-plugin and the
// rest to the log, so that a chatty plugin never blocks.
func (p *process) outputLoop(handshake *io.PipeWriter) {
	defer close(p.drained)
	defer p.out.Close()
	r := bufio.NewReaderSize(p.out, handshakeBytes)
	line, err := r.ReadSlice('\n')
	if len(line) > 0 {
		_, _ = handshake.Write(line)
	}
	_ = handshake.Close()
	if err == nil || errors.Is(err, bufio.ErrBufferFull) {
		_, _ = io.Copy(p.spec.log, r)
	}
}

// kill ends the whole group at once, and whatever else is in its cgroup. It
// does nothing to a process that has been waited for.
func (p *process) kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	if !p.reaped {
		p.killed = true
		if err := unix.Kill(-p.proc.Pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, err)
		}
	}
	if p.spec.cgroup != nil {
		errs = append(errs, p.spec.cgroup.Kill())
	}
	return errors.Join(errs...)
}

// end makes the process go: politely for grace, then by SIGKILL, and waits for
// it and its loops for at most kill more. An error says what is still there.
func (p *process) end(grace, kill time.Duration) error {
	p.life.Close()
	p.line.Close() // nobody waits for a handshake any more
	var errs []error
	if !p.gone(grace) {
		errs = append(errs, p.kill())
		if !p.gone(kill) {
			return errors.Join(append(errs,
				fmt.Errorf("plugin process %d does not die within %s, the kernel holds it", p.proc.Pid, kill))...)
		}
	}
	select {
	case <-p.drained:
	case <-time.After(kill):
		errs = append(errs, fmt.Errorf("writing the log of plugin process %d hangs", p.proc.Pid))
	}
	if c := p.spec.cgroup; c != nil {
		// What left the group is in the cgroup still.
		errs = append(errs, c.Kill(), discard(c, kill))
	}
	return errors.Join(errs...)
}

func (p *process) gone(within time.Duration) bool {
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-p.exited:
		return true
	case <-t.C:
		return false
	}
}

// Start does nothing: the process runs already (runner.Runner).
func (p *process) Start(context.Context) error { return nil }

// Wait waits until the process has ended (runner.Runner).
func (p *process) Wait(context.Context) error {
	<-p.exited
	return p.exit
}

// Kill ends the process (runner.Runner).
func (p *process) Kill(context.Context) error { return p.kill() }

// Stdout is the handshake line, then end of file (runner.Runner).
func (p *process) Stdout() io.ReadCloser { return p.line }

// Stderr is empty: the process writes to its log itself (runner.Runner).
func (p *process) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name is the program (runner.Runner).
func (p *process) Name() string { return p.spec.config.Path }

// ID is the pid (runner.Runner).
func (p *process) ID() string { return strconv.Itoa(p.proc.Pid) }

// Diagnose adds nothing to a failed handshake; the log's tail does (runner.Runner).
func (p *process) Diagnose(context.Context) string { return "" }

// PluginToHost admits only a Unix socket in the directory that was made for
// this start (runner.Runner).
func (p *process) PluginToHost(network, address string) (string, string, error) {
	if network != "unix" {
		return "", "", fmt.Errorf("the plugin listens on a %q socket, only \"unix\" is allowed", network)
	}
	if filepath.Dir(address) != p.dir {
		return "", "", fmt.Errorf("the plugin listens at %q, outside its directory %q", address, p.dir)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.address = address
	return network, address, nil
}

// HostToPlugin is the identity (runner.Runner).
func (p *process) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}

// dial connects to the plugin's socket and checks that its listener is of this
// process's session, so that another program of the same user cannot answer
// in its place. SO_PEERCRED names who called listen(2) (unix(7)).
func (p *process) dial(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	address := p.address
	p.mu.Unlock()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", address)
	if err != nil {
		return nil, err
	}
	if err := p.ownsPeer(conn.(*net.UnixConn)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func (p *process) ownsPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("asking who listens: %w", credErr)
	}
	if session, err := unix.Getsid(int(cred.Pid)); err != nil || session != p.proc.Pid {
		return fmt.Errorf("process %d listens on the socket of plugin process %d", cred.Pid, p.proc.Pid)
	}
	return nil
}
