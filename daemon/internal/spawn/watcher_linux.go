package spawn

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/berthd/berth/daemon/internal/sys"
	"golang.org/x/sys/unix"
)

// Exit is the end of one watched process.
type Exit struct {
	Key    any
	Status Status // Unknown when the kernel tells nobody but the parent, and we are not
}

var (
	// ErrWatched: the key is watched already.
	ErrWatched = errors.New("key is watched already")
	// ErrClosed: the watcher was closed.
	ErrClosed = errors.New("watcher is closed")
)

// statusGrace is how long an exit that somebody else has to reap is held back in the hope of its status,
// where the kernel keeps it. An init that does its job needs a fraction of a millisecond.
const statusGrace = 20 * time.Millisecond

// Watcher reports the exits of any number of processes, each exactly once, and reaps those that are
// children of this one. An event is a hint to look, not the truth: callers look now and then as well.
// All methods may be called concurrently.
type Watcher struct {
	poller  *os.File // the epoll; itself waited for by the runtime's poller, so no thread is tied up
	conn    syscall.RawConn
	events  chan Exit
	queued  chan struct{} // capacity 1: there is something in queue
	stop    chan struct{}
	running sync.WaitGroup
	grace   time.Duration // statusGrace but in tests

	mu      sync.Mutex
	closed  bool
	last    uint64 // token
	watches map[uint64]*watch
	byKey   map[any]*watch
	queue   []Exit
}

type watch struct {
	token uint64
	pidfd int // our own duplicate
	key   any
	// dropped: nobody wants to know any more, it is here to be reaped.
	dropped bool
	// giveUp is when an exit without a status is reported; 0 while the process runs. Owned by loop.
	giveUp time.Duration
}

// NewWatcher starts a watcher with two goroutines, whatever the number of processes; Close ends them.
func NewWatcher() (*Watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a watcher: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("making a watcher: %w", err)
	}
	w := &Watcher{
		poller:  os.NewFile(uintptr(fd), "exits"),
		events:  make(chan Exit),
		queued:  make(chan struct{}, 1),
		stop:    make(chan struct{}),
		grace:   statusGrace,
		watches: map[uint64]*watch{},
		byKey:   map[any]*watch{},
	}
	if w.conn, err = w.poller.SyscallConn(); err != nil {
		w.poller.Close()
		return nil, fmt.Errorf("making a watcher: %w", err)
	}
	w.running.Add(2)
	go w.watchLoop()   // ended by Close, which closes poller
	go w.deliverLoop() // ended by Close, which closes stop
	return w, nil
}

// Events returns the channel of exits, in the order in which they were seen. It is closed by Close. A
// receiver that is slow holds up neither reaping nor Add.
func (w *Watcher) Events() <-chan Exit { return w.events }

// Len returns how many processes are watched, those that only wait to be reaped included.
func (w *Watcher) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.watches)
}

// Add watches the process of a pidfd under a key, which must be comparable. A process that has exited
// already is reported at once. The watcher keeps a duplicate, the descriptor stays the caller's.
// ErrWatched, ErrClosed.
func (w *Watcher) Add(pidfd int, key any) error {
	dup, err := unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("watching %v: %w", key, err)
	}
	if err := w.add(dup, key); err != nil {
		unix.Close(dup)
		return fmt.Errorf("watching %v: %w", key, err)
	}
	return nil
}

func (w *Watcher) add(pidfd int, key any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return ErrClosed
	}
	if w.byKey[key] != nil {
		return ErrWatched
	}
	w.last++
	x := &watch{token: w.last, pidfd: pidfd, key: key}
	w.watches[x.token], w.byKey[key] = x, x // before the kernel can report it
	// Edge-triggered: a pidfd stays readable for good once its process has exited, and a zombie that
	// somebody else has to reap would keep the loop spinning.
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(uint32(x.token)), Pad: int32(uint32(x.token >> 32))}
	if err := w.control(unix.EPOLL_CTL_ADD, pidfd, &ev); err != nil {
		delete(w.watches, x.token)
		delete(w.byKey, key)
		return err
	}
	return nil
}

// control calls epoll_ctl(2), unless the poller is closed.
func (w *Watcher) control(op, fd int, ev *unix.EpollEvent) error {
	var err error
	if cerr := w.conn.Control(func(ep uintptr) { err = unix.EpollCtl(int(ep), op, fd, ev) }); cerr != nil {
		return cerr
	}
	return err
}

// Remove forgets a key: no exit is reported under it from now on, except one that is on its way to the
// receiver already. A child of ours stays watched, unreported, so that it does not become a zombie. An
// unknown key is ignored.
func (w *Watcher) Remove(key any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.byKey[key]
	if x == nil {
		return
	}
	delete(w.byKey, key)
	x.dropped = true
	if !isChild(x.pidfd) {
		w.discardLocked(x)
	}
}

// discardLocked ends a watch and releases its descriptor.
func (w *Watcher) discardLocked(x *watch) {
	if w.watches[x.token] != x {
		return
	}
	delete(w.watches, x.token)
	_ = w.control(unix.EPOLL_CTL_DEL, x.pidfd, nil)
	unix.Close(x.pidfd)
}

// Close ends the watcher and its goroutines and closes the channel of events; what was not received is
// lost. Processes are left alone: children that exit from now on stay zombies for as long as we live.
func (w *Watcher) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	for _, x := range w.watches {
		w.discardLocked(x)
	}
	w.mu.Unlock()
	close(w.stop)
	err := w.poller.Close()
	w.running.Wait()
	return err
}

func (w *Watcher) watchLoop() {
	defer w.running.Done()
	buf := make([]unix.EpollEvent, 128)
	undecided := map[uint64]*watch{} // exited, waiting for somebody else to reap them
	for {
		n, ok := w.wait(buf, undecided)
		if !ok {
			return
		}
		for _, ev := range buf[:n] {
			token := uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32
			w.mu.Lock()
			x := w.watches[token]
			w.mu.Unlock()
			if x != nil {
				w.examine(x, ev.Events&unix.EPOLLHUP != 0, undecided)
			}
		}
		for _, x := range undecided {
			if sys.Now() >= x.giveUp {
				w.finish(x, Status{}, undecided)
			}
		}
	}
}

// wait returns the events that there are, none when an undecided exit has waited long enough, and
// false when the watcher was closed.
func (w *Watcher) wait(buf []unix.EpollEvent, undecided map[uint64]*watch) (n int, ok bool) {
	var deadline time.Time
	if len(undecided) > 0 {
		next := time.Duration(1<<63 - 1)
		for _, x := range undecided {
			next = min(next, x.giveUp)
		}
		deadline = time.Now().Add(next - sys.Now())
	}
	if err := w.poller.SetReadDeadline(deadline); err != nil {
		return 0, false
	}
	err := w.conn.Read(func(fd uintptr) bool {
		var err error
		n, err = unix.EpollWait(int(fd), buf, 0)
		n = max(n, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
	return n, err == nil || errors.Is(err, os.ErrDeadlineExceeded)
}

// examine looks at a process that the kernel calls exited.
func (w *Watcher) examine(x *watch, hungUp bool, undecided map[uint64]*watch) {
	w.mu.Lock()
	current := w.watches[x.token] == x // else its descriptor is closed and its number may be another's
	var status Status
	var r reaping
	if current {
		status, r = reap(x.pidfd)
		if r == notChild {
			if wait, ok := sys.ReapedStatus(x.pidfd); ok {
				status, r = statusOf(wait), reaped
			}
		}
	}
	w.mu.Unlock()
	switch {
	case !current, r == running:
	case r == reaped, hungUp, !sys.HasExitInfo():
		w.finish(x, status, undecided)
	case undecided[x.token] == nil:
		x.giveUp = sys.Now() + w.grace
		undecided[x.token] = x
	}
}

// finish ends a watch and queues its exit.
func (w *Watcher) finish(x *watch, status Status, undecided map[uint64]*watch) {
	delete(undecided, x.token)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watches[x.token] != x {
		return
	}
	w.discardLocked(x)
	if x.dropped {
		return
	}
	delete(w.byKey, x.key)
	w.queue = append(w.queue, Exit{Key: x.key, Status: status})
	select {
	case w.queued <- struct{}{}:
	default:
	}
}

func (w *Watcher) deliverLoop() {
	defer w.running.Done()
	defer close(w.events)
	for {
		select {
		case <-w.stop:
			return
		case <-w.queued:
		}
		w.mu.Lock()
		batch := w.queue
		w.queue = nil
		w.mu.Unlock()
		for _, e := range batch {
			select {
			case <-w.stop:
				return
			case w.events <- e:
			}
		}
	}
}
