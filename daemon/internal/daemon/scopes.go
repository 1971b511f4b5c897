package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/berthd/berth/daemon/internal/config"
	"github.com/berthd/berth/daemon/internal/effect"
	"github.com/berthd/berth/statefs/cgroupfs"
	"github.com/berthd/berth/systemd/scope"
	"github.com/hashicorp/go-hclog"
)

const (
	// scopesStartBound bounds what the daemon's start waits for systemd.
	scopesStartBound = 2 * time.Second
	// scopesRetry is how often systemd is asked again that was not to be had.
	scopesRetry = 5 * time.Second
)

// scopes keeps the slice that scopes lie in and knows whether there can be any:
// what the daemon does depends on PID 1 for nothing but that.
type scopes struct {
	wanted         string // the configuration's word
	hostID         string
	manager        *scope.Manager
	trees          *cgroupfs.Trees
	log            hclog.Logger
	poked          chan struct{} // has room for one
	running        sync.WaitGroup
	path, procPath string // of the slice; empty where there can be none

	mu      sync.Mutex
	none    string       // why no scope can be had now, "" = one can
	refusal string       // why the last one was not made, "" = it was
	logged  string       // what of that the log has
	orphans bool         // there may be scopes without a cgroup
	release func() error // gives the claim on the slice back; nil without one
}

func newScopes(wanted, hostID string, trees *cgroupfs.Trees, log hclog.Logger) *scopes {
	s := &scopes{
		wanted: wanted, hostID: hostID, trees: trees, log: log, orphans: true,
		manager: scope.New(scope.Socket), poked: make(chan struct{}, 1),
	}
	if os.Geteuid() != 0 {
		s.none = "the daemon is not root's"
		return s
	}
	var managed bool
	if s.path, s.procPath, managed = cgroupfs.ManagedSlice(effect.Slice); !managed {
		s.none = "systemd does not manage this system, or not with cgroups of version 2"
	}
	return s
}

// start finds the scopes of an earlier daemon, which takes no help of PID 1, and
// then asks for new ones.
func (s *scopes) start() {
	if s.path == "" {
		if s.wanted == config.LeavesScope {
			s.say("there can be no scopes")
		}
		return
	}
	err := s.open()
	if s.wanted == config.LeavesSubtree {
		s.none = `the configuration says so`
		return
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // no use in asking for more of it
		s.fail(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scopesStartBound)
	defer cancel()
	s.ensure(ctx)
}

// close gives back what is held. It waits for run, and no launch is under way.
func (s *scopes) close() error {
	s.running.Wait()
	s.manager.Close()
	var err error
	if s.release != nil {
		err = s.release()
	}
	return errors.Join(err, s.trees.Slice().Close())
}

// run tries again, until ctx ends, whatever has not worked.
func (s *scopes) run(ctx context.Context) {
	if s.path == "" || s.wanted == config.LeavesSubtree {
		return
	}
	tick := time.NewTicker(scopesRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.poked:
		case <-tick.C:
		}
		if !s.usable() {
			s.ensure(ctx)
		}
		if s.usable() {
			s.bury(ctx)
		}
	}
}

func (s *scopes) poke() {
	select {
	case s.poked <- struct{}{}:
	default:
	}
}

// ensure has the slice started and opens it.
func (s *scopes) ensure(ctx context.Context) {
	started, err := s.manager.StartSlice(ctx, effect.Slice)
	if err == nil && started.ControlGroup != s.procPath {
		err = fmt.Errorf("its cgroup is %q and not %q", started.ControlGroup, s.procPath)
	}
	if err == nil {
		err = s.open()
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return
	}
	s.mu.Lock()
	s.none = ""
	if err != nil {
		s.none = err.Error()
	}
	s.mu.Unlock()
	if err != nil {
		s.say("sessions get plain leaves instead of scopes")
		return
	}
	s.heal()
}

// open opens the slice as it is, unless that is done, and takes it as this
// host's own: a slice that holds another's sessions is left alone.
func (s *scopes) open() error {
	if slice := s.trees.Slice(); slice.Mode() != cgroupfs.None && slice.Current() {
		return nil
	}
	slice, err := cgroupfs.OpenSlice(s.path)
	if err != nil {
		return err
	}
	release, err := claimTree(s.path)
	if err != nil {
		return errors.Join(err, slice.Close())
	}
	owner, mine, err := slice.Mark(s.hostID)
	if err == nil && !mine {
		err = fmt.Errorf("slice %q holds sessions of host %s", s.path, owner)
	}
	if err != nil {
		return errors.Join(err, release(), slice.Close())
	}
	if s.release != nil {
		_ = s.release() // of a directory that is gone
	}
	s.release = release
	s.trees.SetSlice(slice)
	return nil
}

// errStopped is a slice that somebody has stopped.
var errStopped = errors.New("the slice is gone")

// obstacle is why a session that is started now cannot get a scope, empty = it
// can. It changes nothing.
func (s *scopes) obstacle() string {
	s.mu.Lock()
	none := s.none
	s.mu.Unlock()
	if none == "" && !s.trees.Slice().Current() {
		return errStopped.Error()
	}
	return none
}

// usable reports whether a session that is started now can get a scope, and
// has a slice that was stopped started again.
func (s *scopes) usable() bool {
	obstacle := s.obstacle()
	if obstacle == errStopped.Error() {
		s.fail(errStopped)
	}
	return obstacle == ""
}

// problem says what keeps sessions from getting the scopes that they are to
// have, empty = nothing.
func (s *scopes) problem() string {
	if s.wanted == config.LeavesSubtree {
		return ""
	}
	if obstacle := s.obstacle(); obstacle != "" {
		return obstacle
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusal
}

// fail notes that no scope can be had for now.
func (s *scopes) fail(err error) {
	s.mu.Lock()
	s.none = err.Error()
	s.mu.Unlock()
	s.say("sessions get plain leaves instead of scopes")
	s.poke()
}

// say logs what is wrong, unless the log has it.
func (s *scopes) say(message string) {
	s.mu.Lock()
	reason := s.none
	if reason == "" {
		reason = s.refusal
	}
	known := s.logged == reason
	s.logged = reason
	s.mu.Unlock()
	if !known {
		s.log.Warn(message, "why", reason)
	}
}

// heal notes that what was wrong is not any more.
func (s *scopes) heal() {
	s.mu.Lock()
	again := s.logged != "" && s.none == "" && s.refusal == ""
	if again {
		s.logged = ""
	}
	s.mu.Unlock()
	if again {
		s.log.Info("sessions get scopes again")
	}
}

// Adopt implements effect.Scopes. When systemd does not answer, nobody asks it
// again before it has answered to run.
func (s *scopes) Adopt(ctx context.Context, u scope.Unit) error {
	if !s.usable() {
		return errors.New(s.problem())
	}
	err := s.manager.Adopt(ctx, u)
	switch {
	case ctx.Err() != nil:
		return err
	case err == nil, errors.Is(err, scope.ErrRefused): // that may be about this one alone
		s.mu.Lock()
		s.refusal = ""
		if err != nil {
			s.refusal = err.Error()
		}
		s.mu.Unlock()
	default:
		s.fail(err)
		return err
	}
	if err != nil {
		s.say("a session has a plain leaf instead of a scope")
		return err
	}
	s.heal()
	return nil
}

// Orphaned implements effect.Scopes.
func (s *scopes) Orphaned(string) {
	s.mu.Lock()
	s.orphans = true
	s.mu.Unlock()
	s.poke()
}

// bury has systemd stop the scopes whose cgroup is gone: it did not notice that
// they ended. Units are listed before directories, which are made before units:
// what has no directory then has had its end.
func (s *scopes) bury(ctx context.Context) {
	s.mu.Lock()
	due := s.orphans
	s.orphans = false
	s.mu.Unlock()
	if !due {
		return
	}
	units, err := s.manager.Running(ctx, "berth-*.scope")
	if err == nil {
		var dirs []string
		if dirs, err = s.trees.Slice().List(); err == nil {
			err = s.stopWithout(ctx, units, dirs)
		}
	}
	if err != nil && ctx.Err() == nil {
		s.log.Debug("scopes that have ended may be shown as running", "error", err)
		s.mu.Lock()
		s.orphans = true
		s.mu.Unlock()
	}
}

func (s *scopes) stopWithout(ctx context.Context, units, dirs []string) error {
	for _, unit := range units {
		if _, _, ours := cgroupfs.ParseLeafName(unit); !ours || slices.Contains(dirs, unit) {
			continue
		}
		if err := s.manager.Stop(ctx, unit); err != nil {
			return err
		}
	}
	return nil
}
