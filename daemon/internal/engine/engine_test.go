package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/daemon/internal/admit"
	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
	"github.com/hashicorp/go-hclog"
)

var room = admit.Room{FreeBytes: 1 << 40, TotalBytes: 1 << 40, FreeInodes: 1 << 30, TotalInodes: 1 << 30, Known: true}

func newWorld(t *testing.T, seed uint64) *world {
	return &world{
		t: t, rng: rand.New(rand.NewPCG(seed, seed)), j: &memJournal{},
		live: map[WrapperKey]*fake{}, used: map[string]uint64{}, erased: map[string]bool{},
		exits: map[WrapperKey]wire.Exit{},
	}
}

// boot replays the journal and runs a new daemon; the function kills it as
// kill -9 does: from then on nothing that it does has an effect.
func (w *world) boot(epoch string) (kill func()) {
	loaded := NewLoaded()
	w.j.dead = false
	for _, r := range w.j.records {
		if err := loaded.Replay(r); err != nil {
			w.t.Fatal(err)
		}
	}
	loaded.Recovered(journal.Recovery{LastSeq: w.j.last})
	return w.run(epoch, w.j, loaded)
}

// run runs a daemon on what was loaded.
func (w *world) run(epoch string, j Journal, loaded *Loaded) (kill func()) {
	w.mu.Lock()
	w.daemon++
	f := &effects{w: w, daemon: w.daemon}
	w.mu.Unlock()
	rules := lease.DefaultRules()
	rules.RecheckEvery = time.Minute
	e := New(Options{
		HostID: "0123456789abcdef0123456789abcdef", Epoch: epoch, UID: 1, Journal: j, Effects: f, Rules: rules,
		Settings: Settings{
			StartupTimeout: cmp.Or(w.startup, time.Minute), ReconnectWindow: 90 * time.Second, AdoptPatience: 2 * time.Second,
			RelistEvery: 10 * time.Second, TombstoneFor: 30 * 24 * time.Hour, OperationFor: 30 * 24 * time.Hour,
			EventsKept: 1000, OperationsMax: 1000, TombstonesMax: 1000, Marks: admit.DefaultMarks(), StateMarks: admit.RootMarks(),
		},
		Now: func() time.Duration {
			if !w.bootAt.IsZero() {
				return time.Since(w.bootAt)
			}
			return time.Since(epochStart)
		},
		Answer: func(kind string, end Ending) []byte {
			if end.Tombstone != nil {
				return fmt.Appendf(nil, "{%q:%d}", kind, end.Tombstone.LastGeneration)
			}
			return fmt.Appendf(nil, "{%q:%d}", kind, end.View.State.NextGeneration)
		},
		Leaf:   func(string, uint64) (string, uint64) { return "", 0 },
		LeafAt: func(string) (string, uint64) { return "", 0 },
		GenerationDir: func(s string, g uint64) string {
			return fmt.Sprintf("/state/%s/g%d", s, g)
		},
		WorkspaceDir: func(s string) string { return "/ws/" + s },
		Logger:       hclog.NewNullLogger(),
	}, loaded)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	w.mu.Lock()
	w.e = e
	w.mu.Unlock()
	return func() {
		w.mu.Lock()
		w.daemon++
		w.e = nil
		w.mu.Unlock()
		w.j.mu.Lock()
		w.j.dead = true
		w.j.mu.Unlock()
		cancel()
		<-done
	}
}

// epochStart is where the boot clock of the tests begins; synctest's time
// starts in 2000.
var epochStart = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)

func spec(session string) *record.Spec {
	s := &record.Spec{Session: session, Digest: "d", Command: []string{"true"}, Provider: "process", Grace: -1}
	if session == "s1" || session == "s3" { // of the walk
		s.Source = &record.Source{Copy: "/somewhere"}
	}
	return s
}

func (w *world) start(session, key string) (Started, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return w.e.Start(ctx, StartRequest{
		Caller: Caller{Session: session, Key: key, Digest: session, Any: true}, Spec: spec(session), Room: room, StateRoom: room, OwnerUID: 7,
	})
}

// TestWalk lets everything go wrong at random: launches that fail before and
// after the spawn, wrappers that say nothing or survive stops, witnesses that
// do not know, busy providers, a daemon that is killed at any effect. The world
// checks each effect; at the end, when nothing goes wrong any more, everything
// must come to rest. No exit and no lost connection is ever announced to the
// daemon: what it knows of ends it has from looking.
// case T02, T04, T07, T09, T28, T29, T31, T32, T41, A7, B7, C5
func TestWalk(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { walk(t, seed) })
		})
	}
}

func walk(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	rng := rand.New(rand.NewPCG(seed, 99)) // the walk's own, the world's is under its lock
	kill := w.boot("epoch")
	promised := map[string]uint64{} // generations that were answered
	deleted := map[string]bool{}
	for range 80 {
		session := fmt.Sprintf("s%d", rng.IntN(4))
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(20_000))*time.Millisecond)
		e := w.e
		switch rng.IntN(9) {
		case 0, 1, 2:
			s, err := e.Start(ctx, StartRequest{
				Caller: Caller{Session: session, Digest: session, Any: true}, Spec: spec(session), Room: room, StateRoom: room, OwnerUID: 7,
			})
			if err == nil {
				if deleted[session] {
					t.Errorf("%q was started after its deletion was acknowledged", session)
				}
				if s.Generation < promised[session] {
					t.Errorf("%q was answered generation %d after %d", session, s.Generation, promised[session])
				}
				promised[session] = s.Generation
			}
		case 3:
			_ = errOf(e.Stop(ctx, StopRequest{Caller: Caller{Session: session, Any: true, By: "test"}}))
		case 4:
			if rng.IntN(3) == 0 && errOf(e.Delete(ctx, DeleteRequest{Caller: Caller{Session: session, Any: true, By: "test"}})) == nil {
				deleted[session] = true
			}
		case 5:
			w.die()
		case 6:
			kill()
			kill = w.boot("epoch")
		case 7:
			time.Sleep(time.Duration(rng.IntN(30)) * time.Second)
		case 8:
			_, _ = e.Reclaim(ctx, session, "room is needed")
		}
		cancel()
	}
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	w.rest(promised, deleted)
	kill()
	w.mu.Lock()
	w.live = map[WrapperKey]*fake{} // lets their goroutines end
	w.mu.Unlock()
	time.Sleep(time.Minute)
}

// die ends one wrapper, as a crash of it would.
func (w *world) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.live {
		delete(w.live, key)
		if w.rng.IntN(2) == 0 {
			w.exits[key] = wire.Exit{Kind: "code", Code: 1}
		}
		return
	}
}

// rest waits for everything to settle and compares it with what was promised.
func (w *world) rest(promised map[string]uint64, deleted map[string]bool) {
	time.Sleep(3 * time.Hour)
	w.e.Snapshot().Sessions.Root().Walk(func(id []byte, v *View) bool {
		if v.Lease.Reclaim != "" && v.State.Vacant() {
			w.t.Errorf("the workspace of %q is being given up for ever", id)
		}
		return false
	})
	for session, generation := range promised {
		v, ok := w.e.View(session)
		tomb, buried := w.e.Snapshot().Tombstones.Get([]byte(session))
		switch {
		case deleted[session] && ok && v.State.Kind == lease.Quarantined: // held up until somebody decides
		case deleted[session] && ok:
			w.t.Errorf("%q was deleted and is %s, deletion %+v", session, v.State.Kind, v.Lease.Deletion)
		case deleted[session] && (!buried || tomb.LastGeneration < generation):
			w.t.Errorf("%q was deleted at generation %d, its tombstone is %+v", session, generation, tomb)
		case !deleted[session] && !ok && !buried:
			w.t.Errorf("%q is lost", session)
		case ok && v.State.NextGeneration <= generation:
			w.t.Errorf("%q would use generation %d again", session, v.State.NextGeneration)
		}
	}
	w.e.Snapshot().Sessions.Root().Walk(func(_ []byte, v *View) bool {
		w.mu.Lock()
		lives := false
		for key := range w.live {
			lives = lives || key.Session == v.Lease.Session
		}
		w.mu.Unlock()
		switch v.State.Kind {
		case lease.Vacant:
			if lives {
				w.t.Errorf("%q is vacant and a wrapper lives", v.Lease.Session)
			}
		case lease.Active:
			if !lives {
				w.t.Errorf("%q is active and nothing lives", v.Lease.Session)
			}
		case lease.Quarantined: // allowed: a look will free it, an operator may
		default:
			w.t.Errorf("%q has not come to rest: %s, %+v", v.Lease.Session, v.State.Kind, v.State.Stop)
		}
		return false
	})
}

// TestOneWrapper: 50 starts at once of one session are one start. case T11
func TestOneWrapper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.calm = true
		kill := w.boot("epoch")
		answers := make(chan Started, 50)
		for i := range 50 {
			go func() {
				s, err := w.start("x", fmt.Sprintf("key%d", i%25))
				if err != nil {
					t.Error(err)
				}
				answers <- s
			}()
		}
		first := <-answers
		for range 49 {
			if s := <-answers; s != first {
				t.Errorf("answers differ: %+v and %+v", first, s)
			}
		}
		if w.launchN != 1 {
			t.Errorf("%d launches", w.launchN)
		}
		// The recorded answer is given again, also by another daemon and after the end.
		kill()
		kill = w.boot("epoch")
		if s, err := w.start("x", "key7"); err != nil || s != first {
			t.Errorf("replayed %+v, %v, want %+v", s, err, first)
		}
		w.finish(kill)
	})
}

// finish ends a test's world.
func (w *world) finish(kill func()) {
	kill()
	w.mu.Lock()
	w.live = map[WrapperKey]*fake{}
	w.mu.Unlock()
	time.Sleep(time.Minute)
}

// TestLedger: a key is one request; another request under it is a conflict that
// is counted; a retryable refusal leaves no row.
func TestLedger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.calm = true
		kill := w.boot("epoch")
		if _, err := w.start("x", "k"); err != nil {
			t.Fatal(err)
		}
		var r *Refusal
		if _, err := w.start("y", "k"); !errors.As(err, &r) || r.Code != codeOperationConflict {
			t.Errorf("another request under the key: %v", err)
		}
		if _, ok := w.e.View("y"); ok {
			t.Error("a refused request has made a session")
		}
		if _, err := w.start("y", "k"); !errors.As(err, &r) || r.Details["conflicts"] != uint64(2) {
			t.Errorf("conflicts are not counted: %v %v", err, r.Details)
		}
		full := room
		full.FreeBytes = 0
		_, err := w.e.Start(context.Background(), StartRequest{Caller: Caller{Session: "z", Key: "kz", Digest: "z", Any: true}, Spec: spec("z"), Room: full, StateRoom: room})
		if !errors.As(err, &r) || r.Code != codeCapacityRejected || !r.Retryable {
			t.Errorf("no room: %v", err)
		}
		if _, err := w.start("z", "kz"); err != nil {
			t.Errorf("the retry of a refused start: %v", err)
		}
		w.finish(kill)
	})
}

// TestFullDisk: starts are refused, stops and deletes go through. case T45
func TestFullDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.calm = true
		kill := w.boot("epoch")
		if _, err := w.start("x", ""); err != nil {
			t.Fatal(err)
		}
		w.j.full = true
		var r *Refusal
		if _, err := w.start("y", ""); !errors.As(err, &r) || r.Code != codeFilesystemUnusable {
			t.Errorf("start on a full disk: %v", err)
		}
		if err := errOf(w.e.Delete(context.Background(), DeleteRequest{Caller: Caller{Session: "x", Any: true}})); err != nil {
			t.Errorf("delete on a full disk: %v", err)
		}
		if _, gone, err := w.e.Await(context.Background(), "x", func(*View) bool { return false }); !gone || err != nil {
			t.Errorf("the deletion does not end: %v", err)
		}
		w.finish(kill)
	})
}

// TestJournalFails: nothing is acknowledged any more, reads go on.
func TestJournalFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.calm = true
		kill := w.boot("epoch")
		if _, err := w.start("x", ""); err != nil {
			t.Fatal(err)
		}
		w.j.mu.Lock()
		w.j.failed = errors.New("input/output error")
		w.j.mu.Unlock()
		var r *Refusal
		if err := errOf(w.e.Stop(context.Background(), StopRequest{Caller: Caller{Session: "x", Any: true}})); !errors.As(err, &r) || r.Code != codeJournal {
			t.Errorf("stop after the journal has failed: %v", err)
		}
		if v, ok := w.e.View("x"); !ok || v.State.Kind != lease.Active || w.e.Err() == nil {
			t.Errorf("read after the journal has failed: %v", v)
		}
		w.j.mu.Lock()
		w.j.failed = nil // a disk that has come back does not mend the writer
		w.j.mu.Unlock()
		if err := errOf(w.e.Stop(context.Background(), StopRequest{Caller: Caller{Session: "x", Any: true}})); !errors.As(err, &r) {
			t.Errorf("the writer acknowledges again: %v", err)
		}
		w.finish(kill)
	})
}

// TestNewEpoch: a new epoch proves every wrapper dead, and nothing is launched
// on the daemon's own authority. case T47, T03
func TestNewEpoch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.calm = true
		kill := w.boot("epoch one")
		first, err := w.start("x", "")
		if err != nil {
			t.Fatal(err)
		}
		kill()
		w.mu.Lock()
		w.live = map[WrapperKey]*fake{}
		w.mu.Unlock()
		kill = w.boot("epoch two")
		time.Sleep(time.Hour)
		v, _ := w.e.View("x")
		if v.State.Kind != lease.Vacant || v.Lease.Exit == nil || v.Lease.Exit.Unknown != "host_restarted" {
			t.Errorf("after a reboot: %s, exit %+v", v.State.Kind, v.Lease.Exit)
		}
		if w.launchN != 1 {
			t.Errorf("%d launches, want the one that was asked for", w.launchN)
		}
		if s, err := w.start("x", ""); err != nil || s.Generation <= first.Generation {
			t.Errorf("start after a reboot: %+v, %v", s, err)
		}
		w.finish(kill)
	})
}
