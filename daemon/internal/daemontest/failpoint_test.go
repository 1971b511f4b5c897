package daemontest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
)

var hits = flag.Int("hits", 1, "at how many hits of each point TestFailpoints kills the daemon")

// failing is a host whose daemon can be made to die or fail at a point.
type failing struct {
	*Host
	file   string // see package failpoint
	source string // a git repository
}

func newFailing(t *testing.T) *failing {
	t.Helper()
	if os.Getenv(BinEnv) != "" {
		t.Skipf("needs programs of its own: %s is set", BinEnv)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "failpoints")
	bin, err := build("grpcnotrace,failpoints", "-s -w -X github.com/berthd/berth/statefs/failpoint.File="+file)
	t.Cleanup(func() { os.RemoveAll(bin) })
	if err != nil {
		t.Fatal(err)
	}
	h := New(t, Options{Config: "[stop]\ndelays = [\"20ms\", \"50ms\", \"100ms\"]\n" + Sessions() + "grace = \"200ms\"\n", Programs: bin})
	source := filepath.Join(dir, "source")
	script := "git -c init.defaultBranch=main init -q " + source + " && cd " + source +
		" && echo one >file && git add file && git -c user.name=a -c user.email=a@localhost commit -qm first"
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for d := source; len(d) > len(os.TempDir()); d = filepath.Dir(d) { // sessions are nobody's
		os.Chmod(d, 0o755)
	}
	return &failing{h, file, source}
}

// arm makes the daemon's next start do terms at each of the points.
func (f *failing) arm(terms string, points ...string) {
	f.t.Helper()
	var text strings.Builder
	for _, point := range points {
		fmt.Fprintf(&text, "berthd %s = %s\n", point, terms)
	}
	if err := os.WriteFile(f.file, []byte(text.String()), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// seen are the points that any program has come by so far.
func (f *failing) seen() []string {
	data, _ := os.ReadFile(f.file + ".hits") // none yet
	return strings.Fields(string(data))
}

// allPoints is the list that package failpoint keeps.
func allPoints(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../../../statefs/failpoint/points.txt")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(data))
}

// life is what one session goes through, step by step. A step that was not
// answered is tried again with the same key, one that was refused with another.
type life struct {
	f          *failing
	id         string
	step       int
	tries      int
	generation uint64
}

var (
	// errDied: the daemon is gone, the life can go on with the next one.
	errDied = errors.New("the daemon has died")
	// errNotYet: what was asked for is accepted and under way.
	errNotYet = errors.New("not yet")
)

// lifeBound is how long a step may take to succeed, over all its tries.
const lifeBound = time.Minute

// run does what is left of the life.
func (l *life) run() error {
	steps := []func(ctx context.Context, key string) error{
		l.start, l.send, l.stop, l.start, l.stop, l.delete,
	}
	for ; l.step < len(steps); l.step++ {
		end := time.Now().Add(lifeBound)
		for {
			ctx, cancel := context.WithDeadline(context.Background(), end)
			err := steps[l.step](ctx, fmt.Sprintf("%s-%d-%d", l.id, l.step, l.tries))
			cancel()
			var refused *rpc.Error
			switch {
			case err == nil:
			case !errors.As(err, &refused) && !l.f.survives():
				return errDied
			case time.Now().After(end):
				return fmt.Errorf("step %d of %s: %w", l.step, l.id, err)
			case errors.As(err, &refused) && refused.Code == rpc.CodeJournal:
				return errDied // nothing can be changed until a restart
			case errors.As(err, &refused), errors.Is(err, errNotYet):
				l.tries++
				time.Sleep(10 * time.Millisecond) // a client's pause between two tries
				continue
			default:
				return fmt.Errorf("step %d of %s: %w", l.step, l.id, err)
			}
			break
		}
		l.tries = 0
	}
	return nil
}

// survives reports whether the daemon outlives a connection that broke.
func (f *failing) survives() bool {
	for range 200 {
		if !f.Running() {
			return false
		}
		if _, err := f.Client.Status(context.Background()); err == nil {
			return true
		}
		time.Sleep(5 * time.Millisecond) // the poll's period
	}
	return true
}

func (l *life) start(ctx context.Context, key string) error {
	reply, err := l.f.Client.Start(ctx, l.id, rpc.StartRequest{Key: key, Spec: &rpc.SessionSpec{
		Source:  &rpc.Source{Clone: l.f.source},
		Setup:   []string{"test -e file && touch set-up"},
		Command: []string{"sh", "-c", "test -e set-up && mkdir -p d/e && echo work >d/e/f; while read line; do echo got $line; done"},
	}})
	if err != nil {
		return err
	}
	if reply.Generation <= l.generation {
		return fmt.Errorf("generation %d after %d", reply.Generation, l.generation)
	}
	for { // the agent has to have work that a deletion may lose
		if _, err := os.Stat(filepath.Join(reply.Workspace, "d/e/f")); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the agent of generation %d writes nothing", reply.Generation)
		}
		time.Sleep(time.Millisecond) // the poll's period
	}
}

func (l *life) send(ctx context.Context, key string) error {
	_, err := l.f.Client.Send(ctx, l.id, rpc.SendRequest{Message: key, Data: []byte("x\n")})
	return err
}

func (l *life) stop(ctx context.Context, key string) error {
	_, err := l.f.Client.Stop(ctx, l.id, rpc.StopRequest{Key: key, Wait: true})
	if err != nil {
		return err
	}
	s, err := l.f.Client.Get(ctx, l.id)
	if err != nil {
		return err
	}
	if s.State != "vacant" {
		return fmt.Errorf("stopped and waited for, and %s", s.State)
	}
	l.generation = s.NextGeneration - 1
	return nil
}

func (l *life) delete(ctx context.Context, key string) error {
	reply, err := l.f.Client.Delete(ctx, l.id, rpc.DeleteRequest{Key: key, Salvage: true, Wait: true})
	var refused *rpc.Error
	if errors.As(err, &refused) && refused.Code == rpc.CodeSessionDeleted {
		return nil // by a try that was not answered
	}
	if err != nil {
		return err
	}
	if reply.Tombstone == nil {
		return errNotYet // it is held up, and goes on by itself
	}
	if reply.Tombstone.LastGeneration < l.generation || reply.Tombstone.Saved == "" {
		return fmt.Errorf("deleted and waited for: %+v, generation was %d", *reply.Tombstone, l.generation)
	}
	return nil
}

// check proves, after its end, that the life has left what it must and nothing else.
func (l *life) check() error {
	for _, dir := range []string{"workspaces", "sessions"} {
		if _, err := os.Lstat(filepath.Join(l.f.State, dir, l.id)); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s of the deleted session %s: %v", dir, l.id, err)
		}
	}
	saved, err := filepath.Glob(filepath.Join(l.f.State, "salvage*", l.id+"-*"))
	if err != nil || len(saved) != 1 {
		return fmt.Errorf("salvages of %s: %v, %v", l.id, saved, err)
	}
	return os.RemoveAll(saved[0])
}

// TestFailpoints has the daemon die at each point between two steps, at its
// first hits in the life of a session: the life goes on after a restart, no
// session ever has two wrappers, nothing acknowledged is undone, nothing is left.
// case T07, T08, T09, A1, A7
func TestFailpoints(t *testing.T) {
	t.Parallel()
	needGit(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: the invariants are sampled from the cgroup tree")
	}
	f := newFailing(t)
	f.arm("")
	f.Start()
	sampler := f.Sample()
	f.Kill()
	points, lives, deaths := allPoints(t), 0, 0
	for _, point := range points {
		for hit := range *hits {
			lives++
			f.arm(fmt.Sprintf("%d*off->1*kill", hit), point)
			died, err := f.live(fmt.Sprintf("l%d", lives))
			if err != nil {
				t.Errorf("killed at hit %d of %s: %v\n%s", hit+1, point, err, f.Log())
			}
			if !died {
				break // it is not hit that often
			}
			deaths++
		}
	}
	t.Logf("%d lives, %d deaths", lives, deaths)
	f.arm("")
	f.StartAsync()
	f.grow()
	for _, point := range points {
		if !slices.Contains(f.seen(), point) {
			t.Errorf("nothing has come by point %s", point)
		}
	}
	_, faults := sampler.Stop()
	for _, fault := range faults {
		t.Error(fault)
	}
}

// TestFailingSteps has each step fail once, those of one layer in one life: what
// can be tried again is, what cannot is refused, and the life comes to its end.
func TestFailingSteps(t *testing.T) {
	t.Parallel()
	needGit(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: the points of cgroups are hit by root only")
	}
	f := newFailing(t)
	layers := map[string][]string{}
	for _, point := range allPoints(t) {
		layer, _, _ := strings.Cut(point, ".")
		layers[layer] = append(layers[layer], point)
	}
	for layer, points := range layers {
		for _, errno := range []string{"EIO", "ENOSPC"} {
			f.arm("1*error("+errno+")", points...)
			if _, err := f.live(layer + "-" + errno); err != nil {
				t.Errorf("%s at each point of %s: %v\n%s", errno, layer, err, f.Log())
			}
		}
	}
}

// live leads one life to its end, over the deaths of the daemon, and kills the
// daemon at last.
func (f *failing) live(id string) (died bool, err error) {
	l := &life{f: f, id: id}
	f.StartAsync()
	for {
		err = errDied
		if f.survives() {
			err = l.run()
		}
		if !errors.Is(err, errDied) {
			break
		}
		died = true
		if f.Running() {
			f.Kill()
		}
		f.arm("")
		f.Start()
	}
	if err == nil {
		err = l.check()
	}
	if f.Running() {
		f.Kill()
	}
	return died, err
}

// grow makes the journal so long that it writes snapshots and drops old files.
func (f *failing) grow() {
	f.t.Helper()
	f.untilAnswers()
	var env []string
	for i := range 6 {
		env = append(env, fmt.Sprintf("PAD%d=%s", i, strings.Repeat("x", 10<<10)))
	}
	for i := range 400 {
		id := fmt.Sprintf("grow%d", i)
		_, err := f.Client.Start(bounded(f.t), id, rpc.StartRequest{Spec: &rpc.SessionSpec{Command: []string{"true"}, Env: env}})
		if err == nil {
			_, err = f.Client.Delete(bounded(f.t), id, rpc.DeleteRequest{Discard: true, Wait: true})
		}
		if err != nil {
			f.t.Fatal(err)
		}
		if slices.Contains(f.seen(), "journal.drop.snapshot") && slices.Contains(f.seen(), "journal.drop.log") {
			return
		}
	}
}
