package discover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/daemon/internal/tally"
)

var (
	// ErrStalled: so many readers are blocked in the kernel already that none is risked any more.
	ErrStalled = errors.New("too many processes block their readers")
	// ErrOpaque: the process lives and its markers cannot be seen.
	ErrOpaque = errors.New("process cannot be judged")
)

// UIDRange is a range of uids, both ends included.
type UIDRange struct{ First, Last uint32 }

// Options of a Scanner.
type Options struct {
	Root   string // the proc file system; "" is /proc
	HostID string // ours: 32 hex characters

	// UIDs are those that the daemon can own: processes of others are not looked at, they are not ours.
	// nil is every uid, right for root; otherwise the daemon's own and its mapped sub-uids.
	UIDs []UIDRange

	LegacyRules []LegacyRule

	// CgroupBases are the paths of our trees in the v2 hierarchy, as /proc/PID/cgroup prints them. Zombies
	// below them are reported.
	CgroupBases []string

	// Stall is how long one process may hold up a scan; 0 is 2 s.
	Stall time.Duration
}

// Scanner reads a proc file system. Its methods may be called by several goroutines at once. The zero
// value is not usable.
type Scanner struct {
	root  string
	scope []UIDRange
	match matcher
	bases []string
	stall time.Duration

	times      *tally.Times // of scans that came to their end
	failures   atomic.Uint64
	proven     atomic.Bool  // SelfTest has succeeded
	anyStalled atomic.Int32 // sum of stalled, read without mu for each process

	mu      sync.Mutex
	idle    []*reader   // kept between calls, one for each lane
	stalled map[int]int // pid to number of readers that are blocked on it
}

// NewScanner checks the options and returns a Scanner. It opens nothing.
func NewScanner(opt Options) (*Scanner, error) {
	if !isHex32([]byte(opt.HostID)) {
		return nil, fmt.Errorf("making a scanner: host id %q is not 32 hex characters", opt.HostID)
	}
	match, err := newMatcher(opt.HostID, opt.LegacyRules)
	if err != nil {
		return nil, fmt.Errorf("making a scanner: %w", err)
	}
	for _, u := range opt.UIDs {
		if u.First > u.Last {
			return nil, fmt.Errorf("making a scanner: uids from %d to %d are none", u.First, u.Last)
		}
	}
	s := &Scanner{root: opt.Root, scope: opt.UIDs, match: match, bases: opt.CgroupBases, stall: opt.Stall, stalled: map[int]int{}}
	s.times = tally.NewTimes(time.Millisecond, 2*time.Millisecond, 5*time.Millisecond, 10*time.Millisecond, 20*time.Millisecond,
		50*time.Millisecond, 100*time.Millisecond, 500*time.Millisecond, 2*time.Second, 10*time.Second)
	if s.root == "" {
		s.root = "/proc"
	}
	if s.stall <= 0 {
		s.stall = stallAfter
	}
	return s, nil
}

func (s *Scanner) inScope(uid uint32) bool {
	for _, u := range s.scope {
		if uid >= u.First && uid <= u.Last {
			return true
		}
	}
	return s.scope == nil
}

// cannotOwn decides by the owner of a process's directory. The kernel gives those of processes that are
// not dumpable to root (proc_pid_make_inode), so root may stand for one of ours.
func (s *Scanner) cannotOwn(uid uint32) bool { return uid != 0 && !s.inScope(uid) }

// Scans tells how long the scans so far have taken, and how many have come to
// no answer.
func (s *Scanner) Scans() (times *tally.Times, failures uint64) { return s.times, s.failures.Load() }

// take returns a reader for the caller alone; give takes it back.
func (s *Scanner) take() (*reader, error) {
	s.mu.Lock()
	var r *reader
	if n := len(s.idle); n > 0 {
		r, s.idle = s.idle[n-1], s.idle[:n-1]
	}
	n := len(s.stalled)
	s.mu.Unlock()
	if n >= maxStalled {
		s.give(r)
		return nil, fmt.Errorf("reading %q: %w", s.root, ErrStalled)
	}
	if r == nil {
		r = newReader(s)
	}
	if err := r.open(); err != nil {
		s.give(r)
		return nil, err
	}
	return r, nil
}

func (s *Scanner) give(r *reader) {
	if r == nil {
		return
	}
	r.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) < maxLanes {
		s.idle = append(s.idle, r)
	}
}

func (s *Scanner) isStalled(pid int) bool {
	if s.anyStalled.Load() == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stalled[pid] > 0
}

func (s *Scanner) markStalled(pid, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.anyStalled.Add(int32(by))
	if s.stalled[pid] += by; s.stalled[pid] == 0 {
		delete(s.stalled, pid)
	}
}

// Look reads one process with all its facts; Kind is Unmarked when it carries no marker. The result is
// one process even if the pid changes hands. fs.ErrNotExist when there is none, or only a zombie
// outside the tree; ErrOpaque when it lives and cannot be judged, or is out of scope.
func (s *Scanner) Look(ctx context.Context, pid int) (Proc, error) {
	return bounded(ctx, s, pid, func(r *reader) (Proc, error) {
		o := r.examine(pid)
		switch o.what {
		case plain:
			p, errno := r.proc(pid, pid)
			if errno == 0 || p.StartTicks != 0 {
				return p, nil
			}
		case hit:
			return *o.proc, nil
		case fatal:
			return Proc{}, o.err
		case blind:
			return Proc{}, fmt.Errorf("reading process %d: %v: %w", pid, o.opaque.Reason, ErrOpaque)
		case outOfScope:
			return Proc{}, fmt.Errorf("reading process %d: out of scope: %w", pid, ErrOpaque)
		}
		return Proc{}, fmt.Errorf("reading process %d: %w", pid, fs.ErrNotExist)
	})
}

// bounded runs f with a reader of its own. When ctx ends or the stall bound passes first, f is left
// behind; pid counts as stalled until f returns.
func bounded[T any](ctx context.Context, s *Scanner, pid int, f func(*reader) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	if s.isStalled(pid) {
		return none, fmt.Errorf("reading process %d: %v: %w", pid, Stalled, ErrOpaque)
	}
	r, err := s.take()
	if err != nil {
		return none, err
	}
	var over atomic.Bool // f has returned or was left behind, whichever came first
	answered := make(chan answer, 1)
	go func() { // owned by this call; outlives it only while the kernel blocks f
		v, err := f(r)
		s.give(r)
		if !over.CompareAndSwap(false, true) {
			s.markStalled(pid, -1)
		}
		answered <- answer{v, err}
	}()
	timer := time.NewTimer(s.stall)
	defer timer.Stop()
	cause := ErrOpaque
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
		cause = ctx.Err()
	case <-timer.C:
	}
	s.markStalled(pid, 1)
	if !over.CompareAndSwap(false, true) { // it has just returned
		s.markStalled(pid, -1)
		a := <-answered
		return a.value, a.err
	}
	return none, fmt.Errorf("reading process %d: %v: %w", pid, Stalled, cause)
}
