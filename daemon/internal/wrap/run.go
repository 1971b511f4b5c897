package wrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

// wrapper is the state of the program.
type wrapper struct {
	launch wire.Launch
	recipe sandbox.Recipe
	self   sys.Identity
	epoch  string
	lock   *os.File
	spool  *spool.Writer
	state  state
	agent  *agent // nil when it could not be started
	out    *output
	in     *input
	link   *link
	stops  *ladder
	log    *diary

	settled   chan struct{}  // closed when settle has returned
	exitMu    sync.Mutex     // orders writes of exit.json
	oomBefore uint64         // OOM kills in the work cgroup before the agent
	child     chan os.Signal // SIGCHLD
	poke      chan os.Signal // SIGUSR1
	ends      chan unix.WaitStatus
}

// Run is berth-wrap: it reads a wire.Launch from the descriptor launchFD,
// supervises its agent until that has ended, and returns the process's exit
// code, one of the Exit constants. It must be called first thing in main: it
// changes process-wide settings. Diagnostics go to standard error. The daemon
// makes the Go runtime small by the environment, which costs no time here.
func Run(launchFD int) int {
	w := &wrapper{
		log:     newDiary(os.Stderr),
		settled: make(chan struct{}),
		child:   make(chan os.Signal, 1),
		poke:    make(chan os.Signal, 1),
		ends:    make(chan unix.WaitStatus, 1),
	}
	defer w.log.flush()
	w.catchSignals()
	if err := closeOnExec(3); err != nil {
		w.log.logf("marking descriptors close-on-exec: %v", err)
		return ExitState
	}
	launch := os.NewFile(uintptr(launchFD), "launch")
	code := w.read(launch)
	launch.Close() // read to its end
	if code != ExitOK || w.launch.Version == 0 {
		return code
	}
	return w.supervise()
}

// catchSignals makes the wrapper deaf to signals that are meant for what it
// supervises or that come by accident. They are caught instead of ignored,
// because an ignored signal stays ignored in the agent (execve(2)); a channel
// that nobody reads drops what does not fit.
func (w *wrapper) catchSignals() {
	deaf := make(chan os.Signal, 1)
	signal.Notify(deaf, unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGPIPE,
		unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
	signal.Notify(w.child, unix.SIGCHLD)
	signal.Notify(w.poke, unix.SIGUSR1)
}

// closeOnExec marks every descriptor from first on: nothing that the wrapper
// was given by accident may reach the agent.
func closeOnExec(first uint) error {
	err := unix.CloseRange(first, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil || !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	entries, err := os.ReadDir("/proc/self/fd") // before Linux 5.11
	if err != nil {
		return err
	}
	for _, e := range entries {
		var fd uint
		if _, err := fmt.Sscan(e.Name(), &fd); err == nil && fd >= first {
			unix.CloseOnExec(int(fd))
		}
	}
	return nil
}

// read takes the Launch object in.
func (w *wrapper) read(f io.Reader) int {
	l, err := wire.ReadLaunch(f)
	if errors.Is(err, wire.ErrAbandoned) {
		return ExitOK
	}
	if err != nil {
		w.log.logf("reading the launch object: %v", err)
		return ExitLaunch
	}
	if err := json.Unmarshal(l.Recipe, &w.recipe); err != nil {
		w.log.logf("reading the launch object: the recipe does not decode")
		return ExitLaunch
	}
	l.Recipe = nil
	if err := validate(&l, &w.recipe); err != nil {
		w.log.logf("reading the launch object: %v", err)
		return ExitLaunch
	}
	w.launch = l
	return ExitOK
}

func validate(l *wire.Launch, r *sandbox.Recipe) error {
	switch {
	case !filepath.IsAbs(l.Dir):
		return errors.New("dir is not an absolute path")
	case !filepath.IsAbs(l.Socket):
		return errors.New("socket is not an absolute path")
	case l.WorkCgroup != "" && !filepath.IsAbs(l.WorkCgroup):
		return errors.New("work_cgroup is not an absolute path")
	case l.Session == "" || l.Instance == "" || l.Host == "" || l.Generation == 0:
		return errors.New("host, session, instance or generation is missing")
	case r.Version != sandbox.Version:
		return fmt.Errorf("recipe version %d, this wrapper knows %d", r.Version, sandbox.Version)
	}
	if l.HeartbeatEvery <= 0 {
		l.HeartbeatEvery = defaultHeartbeat
	}
	if l.DrainTimeout <= 0 {
		l.DrainTimeout = defaultDrain
	}
	return nil
}

// supervise runs the session from lock to exit record.
func (w *wrapper) supervise() int {
	if code := w.prepare(); code != ExitOK {
		return code
	}
	w.out = newOutput(w.spool, w.log, newMirror(&w.launch))
	w.in = newInput()
	w.link = newLink(w)
	w.link.open() // the daemon looks who this is while the agent starts
	w.stops = &ladder{log: w.log}
	startErr := w.start()
	if startErr != nil { // before the hello, which tells it
		w.state.set(func(s *wire.Status) { s.StartError = startErr.Error() })
	}
	go w.link.run() // owner: supervise; ends in link.stop
	if startErr == nil {
		go w.reapLoop() // owner: supervise; ends with the process
		go w.settle()   // owner: supervise; may hang as the disk does
		w.finish(<-w.ends)
	} else {
		close(w.settled)
		w.finishUnstarted(startErr)
	}
	return ExitOK
}

// settle does what the disk has to do for an agent that runs, and that the hello
// need not wait for: with one processor a call that the disk holds up would hold
// up the hello too, until the runtime notices.
func (w *wrapper) settle() {
	defer close(w.settled)
	<-w.link.tried
	w.writeRunning()
	w.makeReserve()
}

// prepare takes the lock and makes what the agent's start needs.
func (w *wrapper) prepare() int {
	if err := os.Chdir("/"); err != nil {
		w.log.logf("changing directory: %v", err)
	}
	unix.Umask(0o077)
	lock, err := takeLock(filepath.Join(w.launch.Dir, wire.LockName))
	if errors.Is(err, errLocked) {
		w.log.logf("session %s generation %d: %v", w.launch.Session, w.launch.Generation, err)
		return ExitLocked
	}
	if err != nil {
		w.log.logf("taking the generation's lock: %v", err)
		return ExitState
	}
	w.lock = lock
	if w.self, err = sys.SelfIdentity(); err != nil {
		w.log.logf("finding out who this is: %v", err)
		return ExitState
	}
	if w.epoch, err = sys.Epoch(); err != nil {
		w.log.logf("finding out who this is: %v", err)
		return ExitState
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		w.log.logf("becoming the subreaper: %v", err) // orphans then escape to init, the leaf still holds them
	}
	w.state.set(func(s *wire.Status) { s.Phase = wire.PhaseStarting })
	w.writeStarting()
	w.spool, err = spool.Create(filepath.Join(w.launch.Dir, wire.SpoolName),
		spool.Options{FileBytes: w.launch.SpoolFileBytes, Files: w.launch.SpoolFiles})
	if err != nil {
		w.log.logf("opening the spool: %v", err)
		return ExitState
	}
	return ExitOK
}

// start starts the agent.
func (w *wrapper) start() error {
	w.oomBefore, _ = oomKills(w.launch.WorkCgroup)
	a, err := startAgent(&w.launch, &w.recipe, w.log)
	if err != nil {
		return err
	}
	w.agent = a
	w.recipe.Env = nil // secrets are the agent's now
	for stream, f := range a.outputs() {
		w.out.pump(stream, f)
	}
	w.in.serve(a.input, a.term != nil)
	w.state.set(func(s *wire.Status) { s.Phase, s.AgentPID = wire.PhaseRunning, a.pid })
	w.event("started", map[string]any{"pid": a.pid})
	return nil
}

// event writes one event record: {"event": name, ...}.
func (w *wrapper) event(name string, fields map[string]any) {
	if fields == nil {
		fields = map[string]any{}
	}
	fields["event"] = name
	data, err := json.Marshal(fields)
	if err != nil {
		panic("internal error: event does not encode: " + err.Error())
	}
	w.out.put(data)
}
