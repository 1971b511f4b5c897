// Package engine owns berth's durable state: the leases, specifications,
// operations and tombstones of one host. One goroutine, Run, is the only one
// that changes them. It takes all waiting requests and results as one batch,
// reduces them, appends one group of records to the journal, publishes an
// immutable snapshot, and only then answers callers and starts effects.
//
// It refuses to know sockets, processes, cgroups and plugins: those are behind
// Effects, Link and Journal. daemon/internal/api submits requests and reads
// snapshots; daemon/internal/effect performs the effects.
package engine

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/daemon/internal/admit"
	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
	"github.com/hashicorp/go-hclog"
)

// Journal is where durable facts go; *journal.Journal is one.
type Journal interface {
	Append(class journal.Class, entries ...journal.Entry) (lastSeq uint64, err error)
	NeedsSnapshot() bool
	Snapshot(ctx context.Context, live iter.Seq[journal.Entry], upTo uint64) error
}

// Effects changes and looks at the outside. Each call runs in a goroutine of
// its own, is bounded by its context, and is idempotent by (session,
// generation). A call that returns after its bound is joined before another
// of its kind starts for the same session.
type Effects interface {
	// Launch prepares the sandbox, makes the leaf, spawns the wrapper parked
	// and sends it the recipe. The wrapper's hello follows on its own.
	Launch(ctx context.Context, p LaunchPlan) error
	// Stop runs the stop ladder.
	Stop(ctx context.Context, p StopPlan) StopResult
	// Observe asks the witnesses; full includes the marker scan.
	Observe(ctx context.Context, s evidence.Subject, full bool) evidence.Report
	// Release removes the instance's leaf and gives its sandbox back to its
	// provider.
	Release(ctx context.Context, session string, d record.Debt) error
	// Delete does one step of a deletion.
	Delete(ctx context.Context, p DeletePlan) (DeleteResult, error)
	// Reclaim gives up a workspace to make room, if there is still nothing against
	// it, and says what it has found.
	Reclaim(ctx context.Context, p ReclaimPlan) (ReclaimResult, error)
	// Exit reads the exit record of an instance; the zero Exit when there is
	// none that can be read.
	Exit(session string, generation uint64) (wire.Exit, bool)
	// Inventory lists what exists on the host under berth's names.
	Inventory(ctx context.Context) (Inventory, error)
	// Hold watches the process for its end, reported as Exited with the key,
	// and with poke asks it to call home now.
	Hold(id sys.Identity, key WrapperKey, poke bool) error
}

// Link is the connection of one wrapper.
type Link interface {
	// Request sends a frame and waits for its reply.
	Request(ctx context.Context, f wire.Frame) (wire.Frame, error)
	// Send sends a frame without waiting for an answer.
	Send(f wire.Frame) error
	Close() error
}

// WrapperKey names an instance's wrapper.
type WrapperKey struct {
	Session    string
	Instance   string
	Generation uint64
}

// Settings are the engine's defaults, each a documented configuration key.
type Settings struct {
	StartupTimeout  time.Duration // from allocation to a verified wrapper
	Grace           time.Duration // between TERM and kill
	ReconnectWindow time.Duration // a live wrapper may stay silent that long
	AdoptPatience   time.Duration // present without hello is unknown after it
	RelistEvery     time.Duration // truth is asked again that often
	TombstoneFor    time.Duration
	OperationFor    time.Duration
	Retention       time.Duration // of sessions without activity, 0 = for ever
	OperationsMax   int           // ledger rows of one user
	TombstonesMax   int           // tombstones of one user
	EventsKept      int
	Marks           admit.Marks
	StateMarks      admit.Marks // of the state directory
}

// Options is what an engine needs.
type Options struct {
	HostID   string
	Epoch    string
	UID      uint32 // the daemon's
	Journal  Journal
	Effects  Effects
	Rules    lease.Rules
	Settings Settings
	// Now is CLOCK_BOOTTIME, Wall is wall time; nil = the real clocks.
	Now  func() time.Duration
	Wall func() time.Time
	// NewID makes a random id of 32 hex digits; nil = crypto/rand.
	NewID func() string
	// Leaf names the leaf that an instance is to get; empty without cgroups.
	Leaf func(session string, generation uint64) (path string, parentInode uint64)
	// LeafAt says where a leaf of that name lies today; empty where it can lie
	// nowhere.
	LeafAt func(name string) (path string, parentInode uint64)
	// Paths of a session's directories.
	GenerationDir func(session string, generation uint64) string
	// WorkspaceDir is the directory of a workspace that berth makes.
	WorkspaceDir func(session string) string
	// OwnerOf is whom a directory belongs to; ok is false when that cannot be
	// told. nil = nobody is asked.
	OwnerOf func(dir string) (uid, gid uint32, ok bool)
	// Answer is the JSON that answers an operation of that kind whose outcome is
	// known; it is recorded, and repeats get the same bytes.
	Answer func(kind string, end Ending) []byte
	Logger hclog.Logger
}

// Engine is the single owner of durable state.
type Engine struct {
	opts       Options
	log        hclog.Logger
	inbox      chan command
	snapshot   atomic.Pointer[Snapshot]
	events     *eventLog
	stale      atomic.Uint64
	sums       *Sums
	failed     atomic.Pointer[error] // set for ever once the journal has failed
	done       chan struct{}
	looked     chan struct{} // closed after the first look at everything
	lookedOnce sync.Once
	effects    sync.WaitGroup

	// Owned by Run.
	sessions    map[string]*session
	workspaces  map[string]string // absolute path → session
	host        record.Host
	floorOnDisk uint64 // the host's generation floor as the journal has it
	rooms       rooms  // what is set aside, by file system
	rows        map[uint32]userRows
	startedAt   time.Duration
	ageBase     time.Duration // the host's age at ageFrom, see age
	ageFrom     time.Duration
	due         dueQueue
	barred      []command     // starts that wait for the inventory
	pending     []command     // to be run before the inbox
	refused     []command     // results that a full disk has refused
	pauseUntil  time.Duration // the loop's own work rests until then
	unsettled   int           // sessions whose adoption is under way
	relisting   bool
	queued      []func()        // effects that start once the batch is published
	silent      []silentWrapper // to be asked to call home then
	inventory   bool            // the inventory is in
	nextRelist  time.Duration
	nextSweep   time.Duration // of ledger rows and tombstones
	saving      bool          // a snapshot of the journal is being written
	nextSave    time.Duration // not before, since one has failed
	lastSeq     uint64
	ctx         context.Context // parent of all effects, set by Run
}

// command is one request or result. apply must be repeatable: it changes only
// the transaction, and leaves volatile changes to tx.then.
type command struct {
	class journal.Class
	apply func(t *tx)
	fail  func(error) // tells the caller that nothing was changed; may be nil
	again bool        // the loop comes back to it by itself
}

const (
	inboxSize = 1024
	batchMax  = 256
)

// ErrStopped is returned for requests after Run has ended.
var ErrStopped = errors.New("engine has stopped")

// New makes an engine from what the journal has replayed. It publishes the
// state at once, so that reads may begin, and changes nothing before Run.
func New(opts Options, l *Loaded) *Engine {
	if opts.Now == nil {
		opts.Now = sys.Now
	}
	if opts.Wall == nil {
		opts.Wall = time.Now
	}
	if opts.NewID == nil {
		opts.NewID = newID
	}
	e := &Engine{
		opts: opts, log: opts.Logger, inbox: make(chan command, inboxSize),
		done: make(chan struct{}), looked: make(chan struct{}), sessions: map[string]*session{},
		workspaces: map[string]string{}, rooms: rooms{}, rows: map[uint32]userRows{}, startedAt: opts.Now(),
		host: l.host, floorOnDisk: l.diskFloor, lastSeq: l.lastSeq,
		events: newEventLog(opts.Settings.EventsKept, l.events, l.firstEvent), sums: newSums(),
	}
	e.continueAge(&l.host)
	e.install(l)
	return e
}

// Run owns the state until ctx ends. It returns after every effect that it
// started has returned or has been given up.
func (e *Engine) Run(ctx context.Context) error {
	effectCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	e.ctx = effectCtx
	e.start()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if len(e.pending) > 0 {
			batch := e.pending
			e.pending = nil
			e.batch(batch)
			continue
		}
		select {
		case <-ctx.Done():
			close(e.done)
			cancel()
			e.events.close()
			return e.join()
		case c := <-e.inbox:
			e.batch(e.gather(c))
		case <-timer.C:
			e.tick()
		}
		timer.Reset(e.untilDue())
	}
}

// tick does what time brings: what a full disk has refused is tried again, and
// what is due is done.
func (e *Engine) tick() {
	again := e.refused
	e.refused = nil
	if len(again) > 0 {
		e.batch(again)
	}
	e.batch([]command{{class: journal.Reserved, apply: e.sweep, again: true}})
}

// gather takes everything that waits, first included, up to batchMax.
func (e *Engine) gather(first command) []command {
	batch := []command{first}
	for len(batch) < batchMax {
		select {
		case c := <-e.inbox:
			batch = append(batch, c)
		default:
			return batch
		}
	}
	return batch
}

// join waits for the effects, which have been cancelled, for a bounded time: a
// call that the kernel holds must not hold the daemon's end.
func (e *Engine) join() error {
	joined := make(chan struct{})
	go func() { // ends with the last effect
		e.effects.Wait()
		close(joined)
	}()
	select {
	case <-joined:
		return nil
	case <-time.After(joinBound):
		return errors.New("ending with effects that do not return")
	}
}

// submit hands a command to Run.
func (e *Engine) submit(c command) error {
	select {
	case e.inbox <- c:
		return nil
	case <-e.done:
		return ErrStopped
	}
}

// ask submits a command and waits for its answer or the end of ctx. What was
// asked for goes on when the caller leaves.
func ask[T any](ctx context.Context, e *Engine, class journal.Class, apply func(t *tx, reply func(T, error))) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	var once sync.Once
	reply := func(v T, err error) { once.Do(func() { answers <- answer{v, err} }) }
	c := command{class: class, apply: func(t *tx) { apply(t, reply) }, fail: func(err error) {
		var zero T
		reply(zero, err)
	}}
	var zero T
	if err := e.submit(c); err != nil {
		return zero, err
	}
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		return zero, ctx.Err()
	case <-e.done:
		return zero, ErrStopped
	}
}

// post submits the result of an effect. Results use the journal's reserve: on
// a full disk a stop must still be able to end.
func (e *Engine) post(apply func(t *tx)) {
	_ = e.submit(command{class: journal.Reserved, apply: apply}) // after Run nobody needs it
}

// effect has f run in a goroutine that Run owns and waits for at its end. It
// starts once what led to it is published, see launchEffects.
func (e *Engine) effect(bound time.Duration, f func(ctx context.Context)) context.CancelFunc {
	ctx, cancel := context.WithTimeout(e.ctx, bound)
	e.effects.Add(1)
	e.queued = append(e.queued, func() {
		defer e.effects.Done()
		defer cancel()
		f(ctx)
	})
	return cancel
}

// launchEffects starts the effects that were asked for since the last call.
func (e *Engine) launchEffects() {
	for _, f := range e.queued {
		go f() // waited for by join
	}
	e.queued = nil
}

// Reconfigure takes over rules and settings for all decisions from now on. A
// deadline that is on disk stays; those that follow from a setting move with it.
func (e *Engine) Reconfigure(ctx context.Context, rules lease.Rules, settings Settings) error {
	_, err := ask(ctx, e, journal.Reserved, func(t *tx, reply func(struct{}, error)) {
		t.then(func() {
			e.opts.Rules, e.opts.Settings = rules, settings
			for _, s := range e.sessions { // deadlines that follow from a setting
				e.schedule(s)
			}
		})
		t.answer(func() { reply(struct{}{}, nil) })
	})
	return err
}

// Turn returns once the loop has come round, after everything that was asked
// for before. An error says that it did not, before ctx or Run has ended.
func (e *Engine) Turn(ctx context.Context) error {
	_, err := ask(ctx, e, journal.Reserved, func(t *tx, reply func(struct{}, error)) {
		t.answer(func() { reply(struct{}{}, nil) })
	})
	return err
}

// Err is the journal's final failure, nil while it is healthy.
func (e *Engine) Err() error {
	if p := e.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// StaleEvents counts events that were about another instance, attempt or
// deadline, and so changed nothing.
func (e *Engine) StaleEvents() uint64 { return e.stale.Load() }
