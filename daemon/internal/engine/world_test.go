package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// memJournal is a journal in memory: what Append has returned for is durable.
type memJournal struct {
	mu      sync.Mutex
	records []journal.Record
	last    uint64
	full    bool  // Ordinary appends are refused
	failed  error // every append fails, for ever
	dead    bool  // the daemon has been killed: nothing reaches the disk any more
	spent   bool  // the reserve is used up too: every append is refused
	limit   int   // bytes of one append, 0 = any
	needs   bool  // a snapshot is due, and fails
	tried   int   // snapshots
}

func (j *memJournal) Append(class journal.Class, entries ...journal.Entry) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.dead:
		return 0, errors.New("killed")
	case j.failed != nil:
		return 0, j.failed
	case j.spent, j.full && class == journal.Ordinary:
		return 0, journal.ErrFull
	}
	size := 0
	for _, e := range entries {
		size += len(e.Body)
	}
	if j.limit > 0 && size > j.limit {
		return 0, journal.ErrTooLarge
	}
	for _, e := range entries {
		j.last++
		j.records = append(j.records, journal.Record{Seq: j.last, Entry: e})
	}
	return j.last, nil
}

func (j *memJournal) NeedsSnapshot() bool { return j.needs }

func (j *memJournal) Snapshot(context.Context, iter.Seq[journal.Entry], uint64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tried++
	return journal.ErrFull
}

// set changes how the journal behaves.
func (j *memJournal) set(change func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change()
}

// lease is the newest durable lease of a session.
func (j *memJournal) lease(session string) (l record.Lease, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := len(j.records) - 1; i >= 0; i-- {
		r := j.records[i]
		if r.Session == session && record.Type(r.Type) == record.TypeLease {
			l, err := record.DecodeLease(r.Body)
			return l, err == nil
		}
	}
	return l, false
}

// world is the outside of an engine: the processes that live, whoever knows of
// them. It checks what the engine does to it.
type world struct {
	t   *testing.T
	rng *rand.Rand
	j   *memJournal
	e   *Engine

	mu      sync.Mutex
	daemon  int                  // number of the daemon that lives; effects of others do nothing
	live    map[WrapperKey]*fake // wrappers
	used    map[string]uint64    // highest generation that was ever launched
	erased  map[string]bool      // sessions whose files are gone
	exits   map[WrapperKey]wire.Exit
	pid     int
	calm    bool          // nothing goes wrong any more
	onDisk  bool          // the journal is a real one
	busy    bool          // providers release nothing
	mute    bool          // wrappers say nothing
	tough   bool          // wrappers survive every stop
	refuse  string        // why launches fail, empty = they do not
	weak    bool          // there are no leaves, only markers
	startup time.Duration // the startup timeout, 0 = a minute
	bootAt  time.Time     // where the boot clock begins, zero = epochStart
	launchN int
}

// fake is one wrapper.
type fake struct {
	key    WrapperKey
	id     sys.Identity
	silent bool // never says hello
	stuck  int  // stop attempts that it survives
}

type fakeLink struct{}

func (fakeLink) Request(context.Context, wire.Frame) (wire.Frame, error) { return wire.Frame{}, nil }
func (fakeLink) Send(wire.Frame) error                                   { return nil }
func (fakeLink) Close() error                                            { return nil }

// durable is a session's newest lease on disk: in the journal in memory where
// that is used, else what was published, which is never newer.
func (w *world) durable(session string) (record.Lease, bool) {
	if !w.onDisk {
		return w.j.lease(session)
	}
	v, ok := w.e.View(session)
	if !ok {
		return record.Lease{}, false
	}
	return v.Lease, true
}

// chance is true once in n, and never when the world is calm.
func (w *world) chance(n int) bool { return !w.calm && w.rng.IntN(n) == 0 }

// effects are the world as one daemon sees it.
type effects struct {
	w      *world
	daemon int
}

// alive reports, with the world locked, whether the daemon still lives.
func (f *effects) alive() bool { return f.w.daemon == f.daemon }

var errDead = errors.New("the daemon is dead")

// pause lets time pass, during which the daemon may be killed.
func (f *effects) pause(ctx context.Context) error {
	f.w.mu.Lock()
	d := time.Duration(f.w.rng.IntN(50)) * time.Millisecond
	f.w.mu.Unlock()
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *effects) Launch(ctx context.Context, p LaunchPlan) error {
	if err := f.pause(ctx); err != nil {
		return err
	}
	if err := f.fill(ctx, p); err != nil {
		return err
	}
	w := f.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !f.alive() {
		return errDead
	}
	l, ok := w.durable(p.Key.Session)
	if !ok || l.Generation != p.Key.Generation || l.Instance != p.Key.Instance {
		w.t.Errorf("launching %v before its intent is on disk: %+v", p.Key, l)
	}
	if p.Key.Generation <= w.used[p.Key.Session] {
		w.t.Errorf("generation %d of %q is used twice", p.Key.Generation, p.Key.Session)
	}
	if w.erased[p.Key.Session] {
		w.t.Errorf("session %q is launched after its deletion", p.Key.Session)
	}
	if l.Reclaim != "" || l.Preparation != nil && !l.Preparation.Finished {
		w.t.Errorf("launching %v into a workspace that is not ready: %+v, %q", p.Key, l.Preparation, l.Reclaim)
	}
	for key := range w.live {
		if key.Session == p.Key.Session {
			w.t.Errorf("launching %v while %v lives", p.Key, key)
		}
	}
	w.used[p.Key.Session] = p.Key.Generation
	w.launchN++
	if w.refuse != "" {
		return errors.New(w.refuse)
	}
	if w.chance(8) {
		return errors.New("the sandbox cannot be prepared")
	}
	w.pid++
	wrapper := &fake{key: p.Key, id: sys.Identity{PID: 1000 + w.pid, StartTicks: uint64(w.pid), BootID: "boot"}}
	wrapper.silent, wrapper.stuck = w.chance(12), 0
	if w.chance(6) {
		wrapper.stuck = 1 + w.rng.IntN(7)
	}
	w.live[p.Key] = wrapper
	if w.chance(12) {
		return errors.New("the launch failed after the spawn")
	}
	go w.callHome(wrapper)
	return nil
}

// fillSteps is how many steps it takes to fill a workspace of this world.
const fillSteps = 3

// fill fills the workspace, each step once the one before is on disk.
func (f *effects) fill(ctx context.Context, p LaunchPlan) error {
	prep := p.Lease.Preparation
	if prep == nil || prep.Finished {
		return nil
	}
	for i := prep.Done; i < fillSteps; i++ {
		if err := f.pause(ctx); err != nil {
			return err
		}
		r := StepResult{Step: "setup", Number: i + 1, Last: i == fillSteps-1}
		f.w.mu.Lock()
		if f.w.chance(8) {
			r.Failure, r.Code = "exit", 1
		}
		f.w.mu.Unlock()
		if err := p.Stepped(ctx, r); err != nil {
			return err
		}
		if l, ok := f.w.durable(p.Key.Session); ok && f.stillAlive() && l.Generation == p.Key.Generation &&
			(l.Preparation == nil || r.Failure == "" && l.Preparation.Done != i+1) {
			f.w.t.Errorf("step %d of %v is said to be on disk, where %+v is", i+1, p.Key, l.Preparation)
		}
		if r.Failure != "" {
			return errors.New("a step has failed")
		}
	}
	return nil
}

func (f *effects) stillAlive() bool {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return f.alive()
}

// callHome is a wrapper's life: it says hello until somebody takes it.
func (w *world) callHome(f *fake) {
	for {
		time.Sleep(20 * time.Millisecond)
		w.mu.Lock()
		e, alive, silent := w.e, w.live[f.key] == f, f.silent && !w.calm || w.mute
		w.mu.Unlock()
		if !alive {
			return
		}
		if e == nil || silent {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := e.Hello(ctx, Hello{Key: f.key, Identity: f.id, Link: fakeLink{}, Protocol: 1})
		cancel()
		if err == nil {
			w.stay(f, e)
		}
	}
}

// stay returns when the engine that has taken the wrapper is another one.
func (w *world) stay(f *fake, e *Engine) {
	for {
		time.Sleep(time.Second)
		w.mu.Lock()
		same, alive := w.e == e, w.live[f.key] == f
		w.mu.Unlock()
		if !same || !alive {
			return
		}
	}
}

func (f *effects) Stop(ctx context.Context, p StopPlan) StopResult {
	if err := f.pause(ctx); err != nil {
		return StopResult{Err: err}
	}
	w := f.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !f.alive() {
		return StopResult{Err: errDead}
	}
	if l, _ := w.durable(p.Subject.Session); l.Stop == nil || l.Stop.AttemptID != p.AttemptID {
		w.t.Errorf("stopping %q before the attempt is on disk: %+v", p.Subject.Session, l)
	}
	for key, wrapper := range w.live {
		if key.Session != p.Subject.Session {
			continue
		}
		if w.tough {
			return StopResult{Err: fmt.Errorf("%v does not end", key)}
		}
		if wrapper.stuck > 0 && !w.calm {
			wrapper.stuck--
			return StopResult{Err: fmt.Errorf("%v does not end", key)}
		}
		delete(w.live, key)
		w.exits[key] = wire.Exit{Kind: wire.ExitSignal, Signal: 15}
	}
	return StopResult{Absent: true, Report: evidence.Report{Judgement: evidence.Judgement{Verdict: evidence.Absent}}}
}

func (f *effects) Observe(ctx context.Context, s evidence.Subject, _ bool) evidence.Report {
	_ = f.pause(ctx)
	w := f.w
	w.mu.Lock()
	defer w.mu.Unlock()
	r := evidence.Report{Subject: s}
	if !f.alive() || ctx.Err() != nil || w.chance(10) {
		return r
	}
	r.Verdict = evidence.Absent
	for key, wrapper := range w.live {
		if key.Session == s.Session && (s.Instance == "" || key.Instance == s.Instance) {
			r.Verdict, r.Alive, r.Wrapper = evidence.Present, true, &wrapper.id
		}
	}
	return r
}

func (f *effects) Release(ctx context.Context, _ string, _ record.Debt) error {
	if err := f.pause(ctx); err != nil {
		return err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if f.w.busy || f.w.chance(4) {
		return errors.New("the provider is busy")
	}
	return nil
}

func (f *effects) Delete(ctx context.Context, p DeletePlan) (DeleteResult, error) {
	if err := f.pause(ctx); err != nil {
		return DeleteResult{}, err
	}
	w := f.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !f.alive() {
		return DeleteResult{}, errDead
	}
	if l, _ := w.durable(p.Session); l.Deletion == nil || l.State != "vacant" || len(l.Debts) > 0 ||
		l.Deletion.Trash == "" || l.Deletion.Trash != p.Lease.Deletion.Trash {
		w.t.Errorf("erasing %q while its lease is %+v", p.Session, l)
	}
	for key := range w.live {
		if key.Session == p.Session {
			w.t.Errorf("erasing the files of %q while %v lives", p.Session, key)
		}
	}
	if w.chance(4) {
		return DeleteResult{}, errors.New("something is mounted there")
	}
	w.erased[p.Session] = true
	return DeleteResult{}, nil
}

// Reclaim gives up a workspace, or finds something in it.
func (f *effects) Reclaim(ctx context.Context, p ReclaimPlan) (ReclaimResult, error) {
	if err := f.pause(ctx); err != nil {
		return ReclaimResult{}, err
	}
	w := f.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !f.alive() {
		return ReclaimResult{}, errDead
	}
	if l, _ := w.durable(p.Lease.Session); l.Reclaim == "" || l.State != "vacant" {
		w.t.Errorf("giving up the workspace of %q while its lease is %+v", p.Lease.Session, l)
	}
	for key := range w.live {
		if key.Session == p.Lease.Session {
			w.t.Errorf("giving up the workspace of %q while %v lives", p.Lease.Session, key)
		}
	}
	if w.chance(4) {
		return ReclaimResult{Kept: "it has untracked files"}, nil
	}
	return ReclaimResult{Evidence: "nothing"}, nil
}

func (f *effects) Exit(session string, generation uint64) (wire.Exit, bool) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	for key, x := range f.w.exits {
		if key.Session == session && key.Generation == generation {
			return x, true
		}
	}
	return wire.Exit{}, false
}

func (f *effects) Inventory(ctx context.Context) (Inventory, error) {
	if err := f.pause(ctx); err != nil {
		return Inventory{}, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	inv := Inventory{Generations: map[string]uint64{}}
	for key := range f.w.live {
		if f.w.weak {
			inv.Generations[key.Session] = key.Generation
			inv.Strays = append(inv.Strays, StraySeen{Session: key.Session, PID: 1000, UID: 7})
			continue
		}
		inv.Leaves = append(inv.Leaves, LeafSeen{Session: key.Session, Generation: key.Generation, Populated: true})
	}
	return inv, nil
}

func (f *effects) Hold(sys.Identity, WrapperKey, bool) error { return nil }
