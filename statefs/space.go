package statefs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnknown is a file system that does not answer. It says nothing about the
// room on it.
var ErrUnknown = errors.New("the file system does not answer")

// maxIdlePaths is how many paths a Prober remembers before it drops those
// whose readings have become too old to be of use.
const maxIdlePaths = 256

// Space is a reading of the room on one file system, by statfs(2) on the very
// directory that was asked for: a project quota on it is in the numbers, as
// far as the file system shows it there (xfs and ext4 do, btrfs does not).
type Space struct {
	// Device is the file system's number as /proc/self/mountinfo has it
	// (unix.Mkdev): the st_dev of what is on it, except that all subvolumes of
	// a btrfs have one. Reservations on one Device add up.
	Device uint64
	// FreeBytes is what an unprivileged process may still use: f_bavail × f_frsize.
	FreeBytes, TotalBytes uint64
	// FreeInodes counts only where TotalInodes is not 0: file systems that
	// make inodes as needed (btrfs) report 0 of 0, which is not a shortage.
	FreeInodes, TotalInodes uint64
	// ReadOnly says that the file system is mounted read-only.
	ReadOnly bool
	// At is when the measurement began, CLOCK_BOOTTIME since boot; Age is how
	// long ago that was when Probe returned.
	At, Age time.Duration
}

// Prober measures room. Calls that can hang in the kernel run in workers: at
// most one for each path, and at most one for each file system is in the
// kernel at any time, so a dead file system holds one thread whoever asks for
// whatever on it, and delays nobody who asks for another. Its methods may be
// called at once from several goroutines.
type Prober struct {
	wait   time.Duration
	maxAge time.Duration
	mounts mountWatch
	done   chan struct{}
	runs   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	paths   map[string]*probed
	devices map[uint64]chan struct{} // full while a worker is on the device
}

// probed is what is known of a path.
type probed struct {
	last Space        // the last good reading; At 0 = none
	run  *measurement // what is being done, if anything
}

// measurement is one worker's errand.
type measurement struct {
	began time.Duration // when it was sent, CLOCK_BOOTTIME
	done  chan struct{} // closed when the fields below are set
	space Space
	err   error
}

// NewProber makes a Prober. A call of Probe waits at most wait for a new
// reading, then takes an old one that began at most maxAge ago.
func NewProber(wait, maxAge time.Duration) *Prober {
	return &Prober{
		wait: wait, maxAge: maxAge, done: make(chan struct{}),
		paths: map[string]*probed{}, devices: map[uint64]chan struct{}{},
	}
}

// Close ends the workers that wait for their turn and waits at most the
// Prober's wait for the others. A worker that the kernel holds ends when the
// kernel lets it go. Calls of Probe fail from now on.
func (p *Prober) Close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	close(p.done)
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() { // ends with the last worker
		p.runs.Wait()
		p.mounts.close()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(p.wait):
	}
}

// Probe measures the file system that holds the directory or file at path
// (absolute; links in it are followed). The reading began after the call did,
// unless the file system has not answered in time: then it is the last one,
// with its age. What is mounted there now counts, not what was when the path
// was last asked for.
//
// Errors: ErrUnknown when there is no answer and no reading that is young
// enough; ctx's; otherwise the operating system's, as fs.ErrNotExist.
func (p *Prober) Probe(ctx context.Context, path string) (Space, error) {
	s, err := p.probe(ctx, path)
	if err != nil {
		return Space{}, fmt.Errorf("measuring the room at %q: %w", path, err)
	}
	s.Age = boottime() - s.At
	return s, nil
}

func (p *Prober) probe(ctx context.Context, path string) (Space, error) {
	began := boottime()
	for {
		r, err := p.join(path)
		if err != nil {
			return Space{}, err
		}
		// Who finds a worker that is overdue need not wait once more.
		patience := time.NewTimer(p.wait - (boottime() - min(began, r.began)))
		defer patience.Stop() // at most two of them: see below
		select {
		case <-r.done:
			// A worker that was out before this call may have measured before
			// it: a deletion that the caller has waited for would not show.
			// The next worker has not.
			if r.err != nil || r.space.At >= began {
				return r.space, r.err
			}
		case <-patience.C:
			return p.lastReading(path)
		case <-ctx.Done():
			return Space{}, context.Cause(ctx)
		}
	}
}

// join returns the worker that is out for path, or sends one.
func (p *Prober) join(path string) (*measurement, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.New("the prober is closed")
	}
	state := p.paths[path]
	if state == nil {
		p.forgetOldLocked()
		state = &probed{}
		p.paths[path] = state
	}
	if state.run == nil {
		state.run = &measurement{began: boottime(), done: make(chan struct{})}
		r := state.run
		p.runs.Go(func() { p.work(path, state, r) }) // owned by Close
	}
	return state.run, nil
}

func (p *Prober) work(path string, state *probed, r *measurement) {
	r.space, r.err = p.measure(path)
	p.mu.Lock()
	if r.err == nil {
		state.last = r.space
	}
	state.run = nil
	p.mu.Unlock()
	close(r.done)
}

func (p *Prober) lastReading(path string) (Space, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := p.paths[path]
	if state == nil || state.last.At == 0 {
		return Space{}, fmt.Errorf("%w within %v, and never has", ErrUnknown, p.wait)
	}
	age := boottime() - state.last.At
	if age > p.maxAge {
		return Space{}, fmt.Errorf("%w since %v", ErrUnknown, age.Round(time.Millisecond))
	}
	return state.last, nil
}

func (p *Prober) forgetOldLocked() {
	if len(p.paths) < maxIdlePaths {
		return
	}
	now := boottime()
	for path, state := range p.paths {
		if state.run == nil && now-state.last.At > p.maxAge {
			delete(p.paths, path)
		}
	}
}

// errClosed ends a worker that waits for its turn.
var errClosed = errors.New("the prober was closed")

// onDevice calls f while no other worker is on the device.
func (p *Prober) onDevice(device uint64, f func() error) error {
	p.mu.Lock()
	turn := p.devices[device]
	if turn == nil {
		turn = make(chan struct{}, 1)
		p.devices[device] = turn
	}
	p.mu.Unlock()
	select {
	case turn <- struct{}{}:
	case <-p.done:
		return errClosed
	}
	defer func() { <-turn }()
	return f()
}

// errMoved is a mount that came or went while its file system was asked.
var errMoved = errors.New("the mounts there keep changing")

// measure resolves path and asks the file system. Before each step the mount
// table tells which file system the step will touch.
func (p *Prober) measure(path string) (s Space, err error) {
	for range 3 {
		if s, err = p.measureOnce(path); !errors.Is(err, errMoved) {
			break
		}
	}
	return s, err
}

func (p *Prober) measureOnce(path string) (Space, error) {
	real, err := p.resolve(path)
	if err != nil {
		return Space{}, err
	}
	m, err := p.mounts.holding(real)
	if err != nil {
		return Space{}, err
	}
	s := Space{Device: m.device}
	err = p.onDevice(m.device, func() error {
		s.At = boottime()
		var st unix.Statfs_t
		if err := eintr(func() error { return unix.Statfs(real, &st) }); err != nil {
			return err
		}
		s.fill(&st)
		return nil
	})
	if err != nil {
		return Space{}, err
	}
	if again, err := p.mounts.holding(real); err != nil || again.id != m.id {
		return Space{}, errMoved // the numbers may be another device's
	}
	return s, nil
}

func (s *Space) fill(st *unix.Statfs_t) {
	unit := uint64(st.Frsize)
	if st.Frsize <= 0 {
		unit = uint64(st.Bsize)
	}
	s.FreeBytes = multiply(notNegative(st.Bavail), unit)
	s.TotalBytes = multiply(st.Blocks, unit)
	// The kernel has one number; statvfs(3) calls it f_favail as well.
	s.FreeInodes, s.TotalInodes = notNegative(st.Ffree), st.Files
	s.ReadOnly = st.Flags&unix.ST_RDONLY != 0
}

// notNegative is for file systems that have used more than they may.
func notNegative(n uint64) uint64 {
	if n > math.MaxInt64 {
		return 0
	}
	return n
}

func multiply(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	if hi != 0 {
		return math.MaxUint64
	}
	return lo
}

// boottime is the time since boot with suspension, CLOCK_BOOTTIME.
func boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("internal error: CLOCK_BOOTTIME: " + err.Error()) // Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}
