// Package keep leaves the wrappers' process descriptors with the service
// manager while the daemon is away (systemd's file descriptor store, see
// sd_notify(3)), and takes those of an earlier daemon back. A descriptor that
// was open all the time is of the process that it was opened for, whatever has
// happened to the pid since, also on kernels whose pidfds have no number of
// their own.
//
// It is a help, never a need: what the manager has lost, refused or got from
// somebody else is found and proven as without it. It refuses to know leases;
// effect and evidence ask it, and daemon says which names are in force.
package keep

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// Prefix begins the name of every descriptor that is kept.
const Prefix = "wrapper-"

const (
	// namesMax bounds all names together. The manager passes them in one
	// environment variable, and the kernel runs no program with one above
	// 128 KiB (MAX_ARG_STRLEN, execve(2)): the daemon would not start again.
	namesMax = 96 << 10
	// storeMax is FileDescriptorStoreMax= of berthd.service. The manager puts the
	// descriptors in place under the soft limit of 1024 that a service gets: with
	// 1,500 of them systemd 252 fails to start it ("Failed at step FDS").
	storeMax = 512
	// The manager's socket holds few messages: one that is full is tried again.
	sendEvery = 20 * time.Millisecond
	sendTries = 250
)

// Manager stores descriptors; *notify.Manager is one.
type Manager interface {
	Present() bool
	Store(name string, fd int) error
	Unstore(name string) error
}

// Keeper is the daemon's side of the store. Its methods may be called by
// several goroutines; none waits for the manager. A nil Keeper keeps nothing.
type Keeper struct {
	manager Manager
	log     hclog.Logger

	mu        sync.Mutex
	inherited map[string]int  // by name: descriptors from before, owned
	proven    map[string]bool // those of them that have answered for their wrapper
	kept      map[string]bool
	names     int // bytes of all names in kept, with what separates them
	queue     []errand
	more      chan struct{} // capacity 1: there is something in queue
}

// errand is one message for the manager.
type errand struct {
	name string
	fd   int // owned; -1 = remove
}

// New takes over what an earlier daemon has left, by name.
func New(manager Manager, inherited map[string]*os.File, log hclog.Logger) *Keeper {
	k := &Keeper{
		manager: manager, log: log, inherited: map[string]int{}, proven: map[string]bool{}, kept: map[string]bool{}, more: make(chan struct{}, 1),
	}
	for name, f := range inherited {
		if fd, err := dup(int(f.Fd())); err == nil {
			k.inherited[name] = fd
		}
		_ = f.Close() // nothing was written
		k.noteLocked(name)
	}
	return k
}

func dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3) }

func nameOf(session string, generation uint64) string {
	return Prefix + session + "-g" + strconv.FormatUint(generation, 10)
}

// parse is the inverse of nameOf.
func parse(name string) (session string, generation uint64, ok bool) {
	rest, ok := strings.CutPrefix(name, Prefix)
	i := strings.LastIndex(rest, "-g")
	if !ok || i <= 0 {
		return "", 0, false
	}
	generation, err := strconv.ParseUint(rest[i+2:], 10, 64)
	return rest[:i], generation, err == nil && nameOf(rest[:i], generation) == name
}

// noteLocked counts a name that the manager has, or is to get; false when there
// is no room for it.
func (k *Keeper) noteLocked(name string) bool {
	if k.kept[name] {
		return true
	}
	if len(k.kept) >= storeMax || k.names+len(name)+1 > namesMax {
		return false
	}
	k.kept[name] = true
	k.names += len(name) + 1
	return true
}

// Keep has the manager keep the pidfd of a wrapper, which stays the caller's.
// One that it has already is not sent again.
func (k *Keeper) Keep(session string, generation uint64, pidfd int) {
	if k == nil || !k.manager.Present() {
		return
	}
	name := nameOf(session, generation)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept[name] || !k.noteLocked(name) {
		return
	}
	fd, err := dup(pidfd)
	if err != nil {
		k.dropLocked(name)
		return
	}
	k.sendLocked(errand{name, fd})
}

// Forget has the manager let go of an instance that is gone.
func (k *Keeper) Forget(session string, generation uint64) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgetLocked(nameOf(session, generation))
}

func (k *Keeper) forgetLocked(name string) {
	if fd, ok := k.inherited[name]; ok {
		unix.Close(fd)
		delete(k.inherited, name)
	}
	if k.kept[name] {
		k.dropLocked(name)
		k.sendLocked(errand{name, -1})
	}
}

func (k *Keeper) dropLocked(name string) {
	delete(k.kept, name)
	k.names -= len(name) + 1
}

func (k *Keeper) sendLocked(e errand) {
	k.queue = append(k.queue, e)
	select {
	case k.more <- struct{}{}:
	default:
	}
}

// Kept is how many descriptors the manager has, as far as it was told.
func (k *Keeper) Kept() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.kept)
}

// Observe asks a descriptor from before whether the process that id names
// lives. ok is false without one, or where it is not of that process or cannot
// tell: then it is no witness, and is let go of.
func (k *Keeper) Observe(session string, generation uint64, id sys.Identity) (p sys.Presence, ok bool) {
	fd, ok := k.open(session, generation)
	if !ok {
		return 0, false
	}
	defer unix.Close(fd)
	return k.judge(fd, session, generation, id)
}

func (k *Keeper) judge(fd int, session string, generation uint64, id sys.Identity) (sys.Presence, bool) {
	p, err := sys.ObservePidfd(fd, id)
	if err != nil {
		k.log.Warn("a descriptor from the service manager is not of its wrapper", "session", session, "generation", generation, "error", err)
		k.Forget(session, generation)
		return 0, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.proven[nameOf(session, generation)] = true
	return p, true
}

// Open returns a descriptor from before that is of the process that id names,
// which lives; the caller closes it.
func (k *Keeper) Open(session string, generation uint64, id sys.Identity) (pidfd int, ok bool) {
	fd, ok := k.open(session, generation)
	if !ok {
		return -1, false
	}
	if p, ok := k.judge(fd, session, generation, id); !ok || p != sys.Alive {
		unix.Close(fd)
		return -1, false
	}
	return fd, true
}

// open duplicates, so that nobody closes what another asks.
func (k *Keeper) open(session string, generation uint64) (int, bool) {
	if k == nil {
		return -1, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	fd, ok := k.inherited[nameOf(session, generation)]
	if !ok {
		return -1, false
	}
	fd, err := dup(fd)
	return fd, err == nil
}

// Sweep has the manager let go of what no lease names any more, and closes the
// descriptors from before: who needs one has taken it by then.
func (k *Keeper) Sweep(named func(session string, generation uint64) bool) (used, removed int) {
	k.mu.Lock()
	names := make([]string, 0, len(k.kept))
	for name := range k.kept {
		names = append(names, name)
	}
	k.mu.Unlock()
	for _, name := range names {
		session, generation, ok := parse(name)
		keep := ok && named(session, generation)
		k.mu.Lock()
		fd, inherited := k.inherited[name]
		switch {
		case !keep:
			k.forgetLocked(name)
			removed++
		case inherited:
			unix.Close(fd)
			delete(k.inherited, name)
		}
		if k.proven[name] {
			used++
		}
		k.mu.Unlock()
	}
	return used, removed
}

// Run tells the manager, until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for {
		select {
		case <-k.more:
		case <-ctx.Done():
			return
		}
		k.mu.Lock()
		batch := k.queue
		k.queue = nil
		k.mu.Unlock()
		for _, e := range batch {
			k.tell(ctx, e)
		}
	}
}

// tell sends one message, again while the manager's socket is full.
func (k *Keeper) tell(ctx context.Context, e errand) {
	send := func() error { return k.manager.Unstore(e.name) }
	if e.fd >= 0 {
		defer unix.Close(e.fd)
		send = func() error { return k.manager.Store(e.name, e.fd) }
	}
	for range sendTries {
		err := send()
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ENOBUFS) {
			k.log.Debug("the service manager does not keep a descriptor", "name", e.name, "error", err)
			return
		}
		select {
		case <-time.After(sendEvery): // nothing tells when there is room again
		case <-ctx.Done():
			return
		}
	}
}
