package daemontest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
)

var (
	rounds   = flag.Int("rounds", 5, "how often TestCrash kills the daemon")
	sessions = flag.Int("sessions", 50, "how many session ids TestCrash uses at once")
	busy     = flag.Duration("busy", time.Second, "the longest time that TestCrash lets its clients work before it kills the daemon")
	seed     = flag.Uint64("seed", 0, "seed of TestCrash's choices; 0 = a new one")
)

func TestMain(m *testing.M) {
	code := m.Run()
	Cleanup()
	os.Exit(code)
}

// TestCrash kills the daemon at random moments while clients start, feed, stop
// and delete sessions, and checks after each restart that every acknowledged
// request holds, that no session ever has two wrappers, that none is lost and
// none leaks. case T07, T08, T09, A1, A7, A14, C4
func TestCrash(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the invariants are sampled from the cgroup tree")
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("seed %d, %d rounds, %d sessions", *seed, *rounds, *sessions)
	h := New(t, Options{Config: "[stop]\ndelays = [\"100ms\", \"200ms\", \"500ms\"]\n" + Sessions() + "grace = \"200ms\"\n"})
	h.Start()
	sampler := h.Sample()
	rng := rand.New(rand.NewPCG(*seed, 1))
	load := newLoad(h, *seed)
	begin := time.Now()
	for round := range *rounds {
		load.run()
		time.Sleep(time.Duration(rng.Int64N(int64(*busy)))) // the random moment
		h.Kill()
		load.pause()
		h.Start()
		if err := load.check(); err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, h.Log())
		}
	}
	samples, faults := sampler.Stop()
	for _, f := range faults {
		t.Error(f)
	}
	took := time.Since(begin)
	t.Logf("%d rounds in %s (%s a round), %d samples, %s", *rounds, took.Round(time.Millisecond),
		(took / time.Duration(*rounds)).Round(time.Millisecond), samples, load.counts())
}

// load is a set of clients, each of which owns some session ids and remembers
// what the daemon has acknowledged of them.
type load struct {
	h       *Host
	clients []*loadClient
	wg      sync.WaitGroup
	cancel  context.CancelFunc
}

// loadClient works on its sessions one request at a time, so that it knows what
// must hold: an unanswered request may or may not have happened.
type loadClient struct {
	h     *Host
	rng   *rand.Rand
	known []*acknowledged
	made  int // ids so far, since a deleted one is spent
	name  string

	starts, stops, deletes, sends int
	refused                       map[rpc.Code]int
}

// acknowledged is what the daemon has promised of one session.
type acknowledged struct {
	id         string
	generation uint64 // highest that was answered
	instance   string
	running    bool // the last answer was a start, and nothing after it is in doubt
	stopped    bool // the last answer was a stop
	deleted    bool
	doubt      bool // a request is unanswered
}

func newLoad(h *Host, seed uint64) *load {
	l := &load{h: h}
	const clients = 10
	for i := range clients {
		c := &loadClient{h: h, rng: rand.New(rand.NewPCG(seed, uint64(i)+2)), name: fmt.Sprintf("c%d", i), refused: map[rpc.Code]int{}}
		for range max(*sessions/clients, 1) {
			c.known = append(c.known, c.fresh())
		}
		l.clients = append(l.clients, c)
	}
	return l
}

func (c *loadClient) fresh() *acknowledged {
	c.made++
	return &acknowledged{id: fmt.Sprintf("%s-%d", c.name, c.made)}
}

// run lets the clients work until pause.
func (l *load) run() {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	for _, c := range l.clients {
		l.wg.Go(func() {
			for ctx.Err() == nil && c.step(ctx) {
			}
		})
	}
}

func (l *load) pause() {
	l.cancel()
	l.wg.Wait()
}

func (l *load) counts() string {
	var starts, stops, deletes, sends int
	refused := map[rpc.Code]int{}
	for _, c := range l.clients {
		starts, stops, deletes, sends = starts+c.starts, stops+c.stops, deletes+c.deletes, sends+c.sends
		for code, n := range c.refused {
			refused[code] += n
		}
	}
	return fmt.Sprintf("acknowledged: %d starts, %d stops, %d deletes, %d sends; refused: %v", starts, stops, deletes, sends, refused)
}

// step makes one request; false when the daemon is gone.
func (c *loadClient) step(ctx context.Context) bool {
	i := c.rng.IntN(len(c.known))
	a := c.known[i]
	if a.deleted {
		c.known[i] = c.fresh()
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var err error
	switch p := c.rng.IntN(10); {
	case p < 5:
		err = c.start(ctx, a)
	case p < 7:
		err = c.send(ctx, a)
	case p < 9:
		err = c.stop(ctx, a)
	default:
		err = c.delete(ctx, a)
	}
	var refused *rpc.Error
	if errors.As(err, &refused) {
		c.refused[refused.Code]++
		a.deleted = a.deleted || refused.Code == rpc.CodeSessionDeleted && a.doubt
		return true
	}
	return err == nil
}

func (c *loadClient) start(ctx context.Context, a *acknowledged) error {
	command := "while read line; do echo got $line; done"
	if len(a.id)%2 == 0 { // half of them ignore TERM and leave children
		command = "trap '' TERM; sleep 1000 & while :; do read line && echo got $line || sleep 1; done"
	}
	a.doubt, a.running, a.stopped = true, false, false
	reply, err := c.h.Client.Start(ctx, a.id, rpc.StartRequest{Spec: &rpc.SessionSpec{Command: []string{"sh", "-c", command}}})
	if err != nil {
		return err
	}
	a.generation, a.instance = reply.Generation, reply.Instance
	a.doubt, a.running, a.stopped = false, true, false
	c.starts++
	return nil
}

func (c *loadClient) send(ctx context.Context, a *acknowledged) error {
	_, err := c.h.Client.Send(ctx, a.id, rpc.SendRequest{Message: fmt.Sprint(c.rng.Uint64()), Data: []byte("x\n")})
	if err == nil {
		c.sends++
	}
	return err
}

func (c *loadClient) stop(ctx context.Context, a *acknowledged) error {
	a.doubt, a.running = true, false
	_, err := c.h.Client.Stop(ctx, a.id, rpc.StopRequest{Wait: c.rng.IntN(2) == 0})
	if err != nil {
		return err
	}
	a.doubt, a.stopped = false, true
	c.stops++
	return nil
}

func (c *loadClient) delete(ctx context.Context, a *acknowledged) error {
	a.doubt, a.running, a.stopped = true, false, false
	reply, err := c.h.Client.Delete(ctx, a.id, rpc.DeleteRequest{Discard: true, Wait: c.rng.IntN(2) == 0})
	if err != nil {
		return err
	}
	if reply.Tombstone != nil && reply.Tombstone.LastGeneration < a.generation {
		return fmt.Errorf("session %s: tombstone says generation %d, answered was %d", a.id, reply.Tombstone.LastGeneration, a.generation)
	}
	a.doubt, a.deleted = false, true
	c.deletes++
	return nil
}

// check compares what the daemon says after a restart with what it has
// promised before.
func (l *load) check() error {
	for _, c := range l.clients {
		for _, a := range c.known {
			if err := l.checkOne(a); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *load) checkOne(a *acknowledged) error {
	s, err := l.h.Client.Get(context.Background(), a.id)
	var refused *rpc.Error
	switch {
	case errors.As(err, &refused):
		gone := refused.Code == rpc.CodeDeleting || refused.Code == rpc.CodeSessionDeleted
		if a.generation > 0 && !gone {
			return fmt.Errorf("session %s with generation %d is lost: %w", a.id, a.generation, err)
		}
		if gone && !a.deleted && !a.doubt {
			return fmt.Errorf("session %s is gone and nobody has deleted it: %w", a.id, err)
		}
		return nil
	case err != nil:
		return err
	case a.deleted:
		return fmt.Errorf("session %s was deleted and is %s", a.id, s.State)
	case s.NextGeneration <= a.generation:
		return fmt.Errorf("session %s: the next generation is %d, %d was answered", a.id, s.NextGeneration, a.generation)
	case s.State == "quarantined":
		return fmt.Errorf("session %s is quarantined: %s", a.id, s.Problem)
	case a.running && (s.State != "active" || s.Instance != a.instance):
		return fmt.Errorf("session %s was answered running as %s/g%d and is %s %s/g%d, exit %+v",
			a.id, a.instance, a.generation, s.State, s.Instance, s.Generation, s.Exit)
	case a.stopped && s.State == "active":
		return fmt.Errorf("session %s was answered stopped and is active, generation %d", a.id, s.Generation)
	}
	return nil
}
