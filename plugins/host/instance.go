package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	hclog "github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"

	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/plugins/sandbox/serve"
)

// instance is one start of a plugin: its process and the connection to it.
type instance struct {
	options *Options
	config  Config
	dir     string
	log     *logFile
	client  *plugin.Client

	provider    sandbox.Provider
	description sandbox.Description
	// alive ends when the instance is being ended; calls end with it.
	alive context.Context
	leave context.CancelFunc
	// suspect gets a token when a call overran its bound.
	suspect chan struct{}

	mu      sync.Mutex
	process *process // nil until exec
	aborted bool     // exec must not happen any more
}

var errAborted = errors.New("the start was given up")

// launch starts the plugin and returns once it has described itself as what
// the configuration wants, or Bounds.Start later with an error. An instance that
// comes with an error has to be ended, too.
func launch(ctx context.Context, o *Options, c Config) (*instance, error) {
	program, err := verify(c)
	if err != nil {
		return nil, err
	}
	dir, err := providerDir(o, c)
	if err != nil {
		return nil, err
	}
	lock, err := takeLock(ctx, dir, o.HostID, c.Kind, o.Bounds.Kill)
	if err != nil {
		return nil, err
	}
	defer lock.Close() // the plugin holds it from here
	if err := clearSockets(dir); err != nil {
		return nil, err
	}
	log, err := openLog(logPath(o, c), o.Bounds.LogBytes)
	if err != nil {
		return nil, err
	}
	i := &instance{options: o, config: c, dir: dir, log: log, suspect: make(chan struct{}, 1)}
	i.alive, i.leave = context.WithCancel(context.Background())
	giveUp := time.AfterFunc(o.Bounds.Start, i.abort)
	defer giveUp.Stop()
	defer context.AfterFunc(ctx, i.abort)()
	if err := i.connect(ctx, program, lock); err != nil {
		return i, i.explain(err)
	}
	return i, nil
}

// connect runs the program, shakes hands with it and asks it who it is.
func (i *instance) connect(ctx context.Context, program program, lock *os.File) error {
	i.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  serve.Handshake(),
		VersionedPlugins: serve.Plugins(nil),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		SkipHostEnv:      true,
		StartTimeout:     i.options.Bounds.Start,
		Logger:           hclog.NewNullLogger(), // the supervisor says what matters
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: i.dir},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, socketDir string) (runner.Runner, error) {
			return i.exec(cmd.Env, socketDir, lock)
		},
		GRPCDialOptions: []grpc.DialOption{grpc.WithContextDialer(i.dial)},
	})
	if _, err := i.client.Start(); err != nil {
		return fmt.Errorf("starting the plugin: %w", err)
	}
	if err := program.unchanged(); err != nil {
		return err
	}
	protocol, err := i.client.Client()
	if err != nil {
		return fmt.Errorf("connecting to the plugin: %w", err)
	}
	dispensed, err := protocol.Dispense(serve.Name)
	if err != nil {
		return fmt.Errorf("connecting to the plugin: %w", err)
	}
	i.provider = dispensed.(sandbox.Provider)
	ctx, cancel := context.WithTimeout(ctx, i.options.Bounds.Describe)
	defer cancel()
	d, err := i.provider.Describe(ctx)
	if err != nil {
		return fmt.Errorf("asking the plugin what it is: %w", err)
	}
	i.description = d
	return i.expected(d)
}

// expected refuses a plugin that is not what the configuration says.
func (i *instance) expected(d sandbox.Description) error {
	if d.Contract != sandbox.Version {
		return notConfigured("provider %q speaks contract version %d, this daemon %d",
			i.config.Path, d.Contract, sandbox.Version)
	}
	if d.Kind != i.config.Kind {
		return notConfigured("provider %q is of kind %q, configured as %q", i.config.Path, d.Kind, i.config.Kind)
	}
	return nil
}

// exec is go-plugin's way to its process.
func (i *instance) exec(handshake []string, socketDir string, lock *os.File) (runner.Runner, error) {
	if i.config.UID != 0 {
		if err := os.Chown(socketDir, int(i.config.UID), int(i.config.GID)); err != nil {
			return nil, err
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.aborted {
		return nil, errAborted
	}
	spec := launchSpec{
		config: i.config, env: environment(i.options, i.config, handshake), lock: lock, log: i.log.f,
	}
	if i.options.Cgroup != nil {
		cgroup, err := i.options.Cgroup(i.config.Kind)
		if err != nil {
			return nil, fmt.Errorf("making the plugin's cgroup: %w", err)
		}
		spec.cgroup = cgroup
	}
	p, err := startProcess(spec, socketDir)
	if err != nil {
		return nil, errors.Join(err, discard(spec.cgroup, i.options.Bounds.Kill))
	}
	i.process = p
	return p, nil
}

// discard removes a cgroup that nothing entered.
func discard(c Cgroup, bound time.Duration) error {
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	return c.Remove(ctx)
}

// dial is gRPC's way to the socket; the address that gRPC knows means nothing.
func (i *instance) dial(ctx context.Context, _ string) (net.Conn, error) {
	return i.process.dial(ctx)
}

// abort ends a start that takes too long or is no longer wanted.
func (i *instance) abort() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.aborted = true
	if i.process != nil {
		_ = i.process.kill() // end does it again, and tells
	}
}

// silent asks the plugin something that it can answer at once, and reports
// whether it lives and does not. One that has ended is not silent.
func (i *instance) silent(ctx context.Context) bool {
	ask, cancel := context.WithTimeout(ctx, i.options.Bounds.Describe)
	defer cancel()
	_, err := i.provider.Describe(ask)
	return err != nil && ctx.Err() == nil && !i.process.gone(drain)
}

// explain ends the process, which err says is of no use, and adds to err how
// it ended if that was by itself, and what it last said.
func (i *instance) explain(err error) error {
	explained := &sandbox.Error{Reason: sandbox.RuntimeNotRunning, Message: err.Error(), Retryable: true}
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		*explained = *e
	}
	text := strings.Join(strings.FieldsFunc(explained.Message, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	i.mu.Lock()
	p := i.process
	i.mu.Unlock()
	if p != nil {
		_ = p.kill() // end does it again, and tells
		if p.gone(i.options.Bounds.Kill) && !errors.Is(p.exit, errEnded) && !errors.Is(err, p.exit) {
			text += "; " + p.exit.Error()
		}
	}
	if said := i.log.why(); said != "" {
		text += "; it last said: " + said
	}
	explained.Message = clip(text)
	return explained
}

// end ends the calls, the process (politely for grace), whatever of it still
// holds the lock, and the connection. It is bounded; an error says what is left.
func (i *instance) end(grace time.Duration) error {
	i.leave()
	defer i.log.f.Close()
	bound := i.options.Bounds.Kill
	var err error
	if i.process != nil {
		err = i.process.end(grace, bound)
	}
	hungUp := make(chan struct{})
	// Ends with the process, which a kernel may hold for longer than we wait.
	go func() {
		defer close(hungUp)
		i.client.Kill()
	}()
	select {
	case <-hungUp:
	case <-time.After(bound):
		err = errors.Join(err, errors.New("the connection to the plugin does not close"))
	}
	// A descendant that left the group but kept the lock must not outlive it.
	lock, lockErr := takeLock(context.Background(), i.dir, i.options.HostID, i.config.Kind, bound)
	if lockErr == nil {
		lock.Close()
	}
	return errors.Join(err, lockErr)
}

// providerDir makes the provider's directory, which only its user can enter.
func providerDir(o *Options, c Config) (string, error) {
	// Others may pass through, as a plugin of another user has to, not look.
	if err := os.MkdirAll(o.SocketDir, 0o711); err != nil {
		return "", fmt.Errorf("making plugin directory: %w", err)
	}
	dir := filepath.Join(o.SocketDir, c.Kind)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("making plugin directory: %w", err)
	}
	if c.UID != 0 {
		if err := os.Lchown(dir, int(c.UID), int(c.GID)); err != nil {
			return "", fmt.Errorf("giving plugin directory to uid %d: %w", c.UID, err)
		}
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("checking plugin directory: %w", err)
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("checking plugin directory %q: not a directory of one user (%s)", dir, info.Mode())
	}
	return dir, nil
}

// clearSockets removes the socket directories of starts that ended with their
// daemon. The caller holds the lock: none of them is in use.
func clearSockets(dir string) error {
	left, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("clearing plugin directory: %w", err)
	}
	for _, d := range left {
		if !strings.HasPrefix(d.Name(), "plugin-dir") {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, d.Name())); err != nil {
			return fmt.Errorf("clearing plugin directory: %w", err)
		}
	}
	return nil
}

func logPath(o *Options, c Config) string {
	if o.LogDir != "" {
		return filepath.Join(o.LogDir, c.Kind+".log")
	}
	return filepath.Join(o.SocketDir, c.Kind, "stderr.log")
}

// clip bounds a message that ends up in records and replies.
func clip(s string) string {
	if len(s) <= sandbox.MaxDetailBytes {
		return s
	}
	return strings.ToValidUTF8(s[:sandbox.MaxDetailBytes-3], "") + "…"
}
