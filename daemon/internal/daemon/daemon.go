// Package daemon puts berthd together: it opens what the configuration names,
// in the order that the crash argument needs (lock, replay, publish, listen,
// adopt), serves until it is told to end, and closes in reverse. Wrappers live
// on when it ends.
//
// It makes no decision about sessions. daemon/cmd/berthd is its only caller.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/daemon/internal/api"
	"github.com/berthd/berth/daemon/internal/appraise"
	"github.com/berthd/berth/daemon/internal/config"
	"github.com/berthd/berth/daemon/internal/discover"
	"github.com/berthd/berth/daemon/internal/effect"
	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/daemon/internal/keep"
	"github.com/berthd/berth/daemon/internal/link"
	"github.com/berthd/berth/daemon/internal/reclaim"
	"github.com/berthd/berth/daemon/internal/spawn"
	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/daemon/internal/workspace"
	"github.com/berthd/berth/plugins/host"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs"
	"github.com/berthd/berth/statefs/cgroupfs"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/systemd/notify"
	"golang.org/x/sys/unix"
)

const (
	// legacyDelay is when, after the start, wrappers of older software are
	// looked for.
	legacyDelay = 3 * time.Second
	// lookBound bounds how long everything else is kept waiting at start.
	lookBound = 2 * time.Second
	// selfTestBound bounds the proof that other processes can be read.
	selfTestBound = 30 * time.Second
	// shutdownBound bounds the end of what the operators' socket still serves.
	shutdownBound = 5 * time.Second
	// pluginBound bounds the plugins' end.
	pluginBound = 10 * time.Second
)

// Daemon is one berthd between its start and its end.
type Daemon struct {
	cfg     config.Config // changed by reloads only, once serving
	flags   Flags         // where cfg comes from
	log     *Log
	version string

	epoch    string
	dir      *statefs.Dir
	journal  *journal.Journal
	recovery journal.Recovery
	loaded   *engine.Loaded
	trees    *cgroupfs.Trees
	scopes   *scopes
	scanner  *discover.Scanner
	prober   *evidence.Prober
	watcher  *spawn.Watcher
	keeper   *keep.Keeper
	plugins  *host.Host
	works    *appraise.Appraiser
	links    *link.Server
	host     *effect.Host
	engine   *engine.Engine
	cleaner  *reclaim.Cleaner
	api      *api.API
	server   *rpc.Server
	measured http.Handler
	scraped  net.Listener // metrics' own address; nil = none
	scrapes  *http.Server

	passed              *notify.Environment
	manager             *notify.Manager
	note                atomic.Pointer[string] // in front of the status line
	operators, wrappers net.Listener
	closers             []func() error
}

// SocketPath is the operators' socket of a configuration.
func SocketPath(c *config.Config) string { return filepath.Join(c.RunDir, "berth.sock") }

// Options is what a daemon is started with.
type Options struct {
	Config  config.Config
	Version string
	Log     *Log
	// Passed is what the service manager has passed, the daemon's from then on.
	Passed *notify.Environment
	// Reload asks for the configuration to be read again, as Flags say.
	Reload <-chan os.Signal
	Flags  Flags
}

// Run starts the daemon and serves until ctx ends.
func Run(ctx context.Context, o Options) (err error) {
	d := &Daemon{
		cfg: o.Config, flags: o.Flags, log: o.Log, version: o.Version, passed: o.Passed, manager: o.Passed.Manager,
	}
	defer func() { err = errors.Join(err, d.close()) }()
	started := time.Now()
	ready := d.working()
	defer func() { ready() }()
	// A log whose reader has gone is no reason to end: without a handler the
	// runtime would (os/signal). To ignore the signal would be inherited.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, unix.SIGPIPE)
	defer signal.Stop(broken)
	if err := d.open(); err != nil {
		return err
	}
	if err := d.build(started); err != nil {
		return err
	}
	if err := d.listen(); err != nil {
		return err
	}
	ready()
	ready = func() {}
	return d.serve(ctx, started, o.Reload)
}

// open takes the state directory's lock first, then replays the journal.
func (d *Daemon) open() (err error) {
	if d.epoch, err = sys.Epoch(); err != nil {
		return err
	}
	if d.dir, err = statefs.Open(d.cfg.StateDir); err != nil {
		return err
	}
	d.closers = append(d.closers, d.dir.Close)
	d.log.ofHost(d.dir.HostID())
	if d.dir.MachineSource() == "" {
		d.log.Warn("this machine has no id: a copy of the state directory on another machine would not be noticed")
	}
	d.loaded = engine.NewLoaded()
	d.journal, d.recovery, err = journal.Open(d.dir.Journal(), journal.Options{}, d.loaded.Replay)
	if err != nil {
		return err
	}
	d.closers = append(d.closers, d.journal.Close)
	d.loaded.Recovered(d.recovery)
	if d.cfg.Sessions.Allocation == config.AllocationRetired {
		d.log.Warn("sessions.allocation is retired: each session gets a sandbox of its own", "value", config.AllocationRetired)
	}
	for _, p := range d.loaded.Problems() {
		d.log.Warn("recovering the journal", "problem", p)
	}
	return d.openTrees()
}

// build makes the parts; nothing of it touches a session yet.
func (d *Daemon) build(started time.Time) (err error) {
	if d.scanner, err = discover.NewScanner(discover.Options{
		HostID: d.dir.HostID(), UIDs: ownUIDs(), CgroupBases: d.bases(),
	}); err != nil {
		return err
	}
	d.keeper = keep.New(d.manager, d.passed.Stored(keep.Prefix), d.log.Named("keep"))
	if d.prober, err = evidence.NewProber(evidence.Options{
		Trees: d.trees, Scanner: d.scanner, StateDir: d.dir.Path(), Kept: d.keeper.Observe,
	}); err != nil {
		return err
	}
	d.closers = append(d.closers, d.prober.Close)
	if d.watcher, err = spawn.NewWatcher(); err != nil {
		return err
	}
	d.closers = append(d.closers, d.watcher.Close)
	if d.plugins, err = d.newPlugins(); err != nil {
		return err
	}
	d.links = link.New(link.Options{
		HostID: d.dir.HostID(), Owner: (*owner)(d), Lost: d.cfg.Wrapper.LostAfter.D(),
		CgroupOf: d.trees.PathOf,
		Logger:   d.log.Named("link"),
	})
	d.works = appraise.New(appraise.Options{
		Program: d.cfg.WorkspacePath(), UID: uint32(os.Geteuid()), Tree: d.trees.Subtree(), Dir: d.dir,
		KeepFree:  d.cfg.Capacity.StateLowBytes,
		StepLimit: d.cfg.Workspaces.StepLimit.D(), StepQuiet: d.cfg.Workspaces.StepQuiet.D(), Cache: d.cfg.Workspaces.CloneCache,
		Logger: d.log.Named("appraise"),
	})
	if _, err := os.Stat(d.cfg.WorkspacePath()); err != nil {
		d.log.Warn("workspaces can neither be filled nor looked at before a deletion: the program for it is missing", "error", err)
	}
	d.host = d.effects()
	d.engine = engine.New(d.engineOptions(), d.loaded)
	d.loaded = nil // the engine has it; keep no second copy
	return d.newAPI(started)
}

// ownUIDs is the uids whose processes the daemon can own: all for root, else
// its own.
func ownUIDs() []discover.UIDRange {
	if os.Geteuid() == 0 {
		return nil
	}
	uid := uint32(os.Geteuid())
	return []discover.UIDRange{{First: uid, Last: uid}}
}

// listen opens both sockets.
func (d *Daemon) listen() (err error) {
	if err := os.MkdirAll(d.cfg.RunDir, 0o755); err != nil {
		return fmt.Errorf("making the runtime directory: %w", err)
	}
	if d.wrappers, err = rpc.Listen(d.wrapSocket(), 0o600, -1); err != nil {
		return err
	}
	d.closers = append(d.closers, d.wrappers.Close)
	if d.operators, err = d.listenOperators(); err != nil {
		return err
	}
	d.closers = append(d.closers, ignoreClosed(d.operators.Close))
	return d.listenMetrics()
}

// listenOperators takes the socket that the service manager has passed, whose
// mode and group are the manager's, or makes one.
func (d *Daemon) listenOperators() (net.Listener, error) {
	l, err := d.passed.Listener(OperatorsSocket)
	if unused := d.passed.Close(); len(unused) > 0 {
		d.log.Warn("the service manager has passed descriptors that nothing uses", "names", unused)
		for _, name := range unused { // else they would come back each time; what is no stored descriptor stays
			d.told(d.manager.Unstore(name))
		}
	}
	if l != nil || err != nil {
		return l, err
	}
	gid, err := d.socketGroup()
	if err != nil {
		return nil, err
	}
	return rpc.Listen(SocketPath(&d.cfg), os.FileMode(d.cfg.Socket.Mode), gid)
}

func (d *Daemon) wrapSocket() string { return filepath.Join(d.cfg.RunDir, "wrap.sock") }

func ignoreClosed(f func() error) func() error {
	return func() error {
		if err := f(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// serve runs everything until ctx ends, then ends it in reverse.
func (d *Daemon) serve(ctx context.Context, started time.Time, reload <-chan os.Signal) error {
	engineCtx, stopEngine := context.WithCancel(context.WithoutCancel(ctx))
	defer stopEngine()
	failures := make(chan error, 4)
	engineDone := make(chan error, 1)
	endAudit := d.audit()
	defer endAudit()                                      // the engine has ended by then
	go func() { engineDone <- d.engine.Run(engineCtx) }() // ended below
	go d.exits()                                          // ends with the watcher
	go func() { failures <- d.serveWrappers() }()         // ends with the listener
	go func() { failures <- d.server.Serve(d.operators) }()
	if d.scraped != nil {
		d.serveMetrics(d.measured)
		defer d.endMetrics()
	}
	go d.tend(engineCtx)
	go d.keeper.Run(engineCtx)
	go d.sweepKept(engineCtx)
	go d.cleaner.Run(engineCtx) // ends with the context
	go d.announce(engineCtx)
	go d.reloads(engineCtx, reload)
	go d.watchdog(engineCtx, d.manager, d.passed.Watchdog)
	d.scopes.running.Go(func() { d.scopes.run(engineCtx) })
	d.log.Info("serving", "event", "daemon_started", "socket", d.operators.Addr().String(), "host", d.dir.HostID(), "cgroup", d.trees.Mode().String(), "leaves", d.leavesStatus().Kind,
		"sessions", d.engine.Snapshot().Sessions.Len(), "took", time.Since(started).Round(time.Microsecond).String())

	var failure error
	select {
	case <-ctx.Done():
	case failure = <-failures:
	case failure = <-engineDone:
		engineDone <- failure
	}
	d.log.Info("ending; wrappers live on", "event", "daemon_ended")
	d.told(d.manager.Stopping())
	defer d.working()()
	return errors.Join(failure, d.shutdown(stopEngine, engineDone))
}

// serveWrappers lets wrappers call once those of an earlier daemon have been
// looked at. They wait in the listener's queue meanwhile.
func (d *Daemon) serveWrappers() error {
	d.awaitLooks()
	return d.links.Serve(d.wrappers)
}

// tend does what must not compete with those looks.
func (d *Daemon) tend(ctx context.Context) {
	d.awaitLooks()
	d.plugins.Start(ctx)
	go d.prove(ctx) // bounded
	go d.sweepTrash(ctx)
	go d.works.Sweep() // bounded
	d.ageSalvages(ctx, d.cfg.Keep.Salvages.D())
}

// awaitLooks waits until every wrapper of an earlier daemon has been looked at,
// which takes a tenth of a millisecond each, for a bounded time.
func (d *Daemon) awaitLooks() {
	select {
	case <-d.engine.Looked():
	case <-time.After(lookBound):
	}
}

func (d *Daemon) shutdown(stopEngine func(), engineDone <-chan error) error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownBound)
	defer cancel()
	serverErr := d.server.Shutdown(ctx)
	if errors.Is(serverErr, context.DeadlineExceeded) { // a client's fault, not a failure to end
		d.log.Warn("ending: some clients were cut off", "error", serverErr)
		serverErr = nil
	}
	stopEngine()
	engineErr := <-engineDone
	d.wrappers.Close()
	d.links.Close()
	ctx, cancel = context.WithTimeout(context.Background(), pluginBound)
	defer cancel()
	return errors.Join(serverErr, engineErr, d.plugins.Close(ctx))
}

func (d *Daemon) close() error {
	var errs []error
	for i := len(d.closers) - 1; i >= 0; i-- {
		if err := d.closers[i](); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// exits passes the ends of held processes on.
func (d *Daemon) exits() {
	for exit := range d.watcher.Events() {
		d.engine.Exited(exit.Key.(engine.WrapperKey))
	}
}

// owner lets the link server ask the engine.
type owner Daemon

// Claim is what the published lease says of an instance.
func (o *owner) Claim(key engine.WrapperKey) (link.Claim, bool) {
	v, ok := o.engine.View(key.Session)
	if !ok || v.State.Instance.ID != key.Instance || v.State.Instance.Generation != key.Generation {
		return link.Claim{}, false
	}
	claim := link.Claim{TokenHash: v.Lease.Wrapper.TokenHash, Identity: v.Subject.Wrapper}
	if leaf := v.Lease.Wrapper.Leaf; leaf != "" {
		claim.WrapCgroup = filepath.Join(leaf, "wrap")
	}
	return claim, true
}

// Hello passes a proven wrapper to the engine.
func (o *owner) Hello(ctx context.Context, h engine.Hello) error { return o.engine.Hello(ctx, h) }

// LinkDown passes the end of a connection to the engine.
func (o *owner) LinkDown(key engine.WrapperKey, l engine.Link) { o.engine.LinkDown(key, l) }

// effects makes what the engine acts with.
func (d *Daemon) effects() *effect.Host {
	w := d.cfg.Wrapper
	return effect.New(effect.Options{
		HostID: d.dir.HostID(), UID: uint32(os.Geteuid()), Dir: d.dir, Trees: d.trees,
		Watcher: d.watcher, Keeper: d.keeper, Links: d.links, Providers: d.plugins, Prober: d.prober, Scanner: d.scanner,
		Appraiser: d.works,
		Worthless: func(r *workspace.Report) (bool, []string) {
			_, policy := d.cleaner.Policy()
			return reclaim.Worthless(r, policy)
		},
		WrapPath: d.cfg.WrapPath(), Socket: d.wrapSocket(), Launches: d.cfg.Sessions.Launches,
		HeartbeatEvery: w.HeartbeatEvery.D(), SpoolFileBytes: w.SpoolFileBytes, SpoolFiles: w.SpoolFiles,
		DrainTimeout: w.DrainTimeout.D(), KeepGenerations: d.cfg.Keep.Generations, Logger: d.log.Named("effect"),
		Scopes: d.scopes, ScopesOnly: d.cfg.Leaves == config.LeavesScope, Grace: d.cfg.Sessions.Grace.D(),
		JournalSocket: d.agentSocket(), JournalRate: d.cfg.Log.AgentRate,
	})
}
