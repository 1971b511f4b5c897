// Package link is the daemon's end of the wrapper socket: it accepts wrappers,
// proves who they are, and keeps one connection to each.
//
// A wrapper is believed when it knows the token whose hash the lease holds and
// when its process is the one that was spawned: by its pidfd identity where
// that is recorded or expected, else, after a crash between the spawn and its
// record, by its place in the leaf's own cgroup, where only the daemon puts
// processes. Where the hash is lost, an operator has adopted the process: then
// its identity alone counts, once. The package knows no states and decides no fate: the engine does.
package link

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/failpoint"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// Claim is what the published lease says about an instance.
type Claim struct {
	TokenHash string       // empty when it is lost
	Identity  sys.Identity // zero before it was verified
	// WrapCgroup is the cgroup directory of the wrapper; empty without cgroups.
	WrapCgroup string
}

// Owner decides about wrappers; the daemon's engine with its snapshot is one.
type Owner interface {
	// Claim returns what is known of an instance, false when no lease names it.
	Claim(key engine.WrapperKey) (Claim, bool)
	Hello(ctx context.Context, h engine.Hello) error
	LinkDown(key engine.WrapperKey, l engine.Link)
}

// Options is what a server needs.
type Options struct {
	HostID string
	Owner  Owner
	// Lost is the time without a frame after which a connection is lost.
	Lost time.Duration
	// CgroupOf returns the v2 cgroup directory of a process.
	CgroupOf func(pid int) (string, error)
	Logger   hclog.Logger
}

// Server accepts wrappers. Its methods may be called concurrently.
type Server struct {
	opts Options

	mu       sync.Mutex
	expected map[place]expectation
	conns    map[*Conn]struct{}
	closed   bool

	wg sync.WaitGroup
	// arrived holds connections on which a frame has arrived, for the decoders.
	arrived chan *Conn
}

// decoders is how many goroutines decode frames. They are few so that the
// goroutines of the connections, of which there are many, need little stack.
const decoders = 2

// place names an instance by what is known of it for as long as it is owed
// anything; generations are never used again.
type place struct {
	session    string
	generation uint64
}

// expectation is what a launch of this daemon knows before the wrapper calls.
type expectation struct {
	instance     string
	identity     sys.Identity
	recipeDigest string
}

const (
	// helloBound bounds the wait for the first frame.
	helloBound = 5 * time.Second
	// acceptBound bounds the engine's answer to a hello.
	acceptBound = 30 * time.Second
	// writeBound bounds one frame's write; a wrapper that does not read for
	// that long is cut off, it will call again.
	writeBound = 5 * time.Second
)

// New returns a server without a socket; see Serve.
func New(opts Options) *Server {
	return &Server{
		opts: opts, expected: map[place]expectation{}, conns: map[*Conn]struct{}{},
		arrived: make(chan *Conn),
	}
}

// Expect tells which process will call for an instance. It is called between
// the spawn and the go.
func (s *Server) Expect(key engine.WrapperKey, id sys.Identity, recipeDigest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expected[place{key.Session, key.Generation}] = expectation{key.Instance, id, recipeDigest}
}

// Forget ends an expectation: the wrapper has called, its launch has failed, or
// the instance is gone.
func (s *Server) Forget(session string, generation uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.expected, place{session, generation})
}

// Serve accepts wrappers on l until l is closed, which is the caller's to do.
func (s *Server) Serve(l net.Listener) error {
	for range decoders {
		go func() { // ends with Close
			for c := range s.arrived {
				c.decode()
			}
		}()
	}
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			s.opts.Logger.Warn("accepting a wrapper failed", "error", err)
			time.Sleep(100 * time.Millisecond) // out of descriptors: do not spin
			continue
		}
		s.wg.Go(func() { s.handle(c.(*net.UnixConn)) })
	}
}

// Close ends every connection and waits for their goroutines.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.raw.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	close(s.arrived)
}

// handle proves one connection and hands it to a goroutine with a fresh, small
// stack, which serves it until it ends.
func (s *Server) handle(raw *net.UnixConn) {
	c := newConn(raw)
	if !s.track(c) {
		raw.Close()
		return
	}
	h, err := s.introduce(c)
	var welcomed error
	if err == nil {
		err, welcomed = s.welcome(c, h)
	}
	if err != nil {
		defer s.untrack(c)
		s.opts.Logger.Debug("wrapper refused", "session", h.Key.Session, "generation", h.Key.Generation, "error", err)
		_ = c.Send(wire.Frame{Kind: wire.KindReject, Error: err.Error()}) // it may be gone
		return
	}
	key := h.Key
	s.wg.Go(func() {
		defer s.untrack(c)
		if welcomed == nil {
			c.readLoop(s.opts.Lost, s.arrived)
		}
		c.finish()
		s.opts.Owner.LinkDown(key, c)
	})
}

func (s *Server) track(c *Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) untrack(c *Conn) {
	c.raw.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// introduce reads the hello and proves it.
func (s *Server) introduce(c *Conn) (engine.Hello, error) {
	peer, err := peerIdentity(c.raw) // first: a new wrapper connects before its hello is due
	if err != nil {
		return engine.Hello{}, err
	}
	c.raw.SetReadDeadline(time.Now().Add(helloBound))
	f, err := c.reader.ReadFrame()
	if err != nil {
		return engine.Hello{}, fmt.Errorf("reading the hello: %w", err)
	}
	if f.Kind != wire.KindHello || f.Hello == nil {
		return engine.Hello{}, fmt.Errorf("first frame is %q, want a hello", f.Kind)
	}
	said := f.Hello
	key := engine.WrapperKey{Session: said.Session, Instance: said.Instance, Generation: said.Generation}
	h := engine.Hello{Key: key, Status: said.Status, Protocol: said.Version, Link: c}
	if said.Version > wire.Version || said.Version < wire.Version-1 {
		return h, fmt.Errorf("wrapper speaks version %d, this daemon %d", said.Version, wire.Version)
	}
	if said.Host != s.opts.HostID {
		return h, fmt.Errorf("wrapper belongs to host %q", said.Host)
	}
	if err := failpoint.Hit("link.hello"); err != nil {
		return h, err
	}
	claim, ok := s.opts.Owner.Claim(key)
	if !ok {
		return h, engine.ErrNotExpected
	}
	sum := sha256.Sum256([]byte(said.Token))
	h.Identity, h.TokenHash = peer, hex.EncodeToString(sum[:])
	adopted := claim.TokenHash == "" && claim.Identity.PID != 0 && said.Token != ""
	if !adopted && subtle.ConstantTimeCompare([]byte(h.TokenHash), []byte(claim.TokenHash)) != 1 {
		return h, errors.New("the token is not this instance's")
	}
	h.RecipeDigest, err = s.identify(peer, key, claim)
	return h, err
}

// welcome hands a proven wrapper to the owner and, when that takes it, says so.
// The connection is held back meanwhile: it is the session's link as soon as the
// owner has it, and a wrapper refuses what comes before the welcome.
func (s *Server) welcome(c *Conn, h engine.Hello) (refused, failed error) {
	c.status.Store(&h.Status)
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), acceptBound)
	defer cancel()
	if err := s.opts.Owner.Hello(ctx, h); err != nil {
		return err, nil
	}
	s.Forget(h.Key.Session, h.Key.Generation)
	if err := failpoint.Hit("link.welcome"); err != nil {
		return nil, err
	}
	return nil, c.sendLocked(wire.Frame{Kind: wire.KindWelcome})
}

// identify proves that the peer is the process that was spawned, and returns the
// digest of the recipe that this daemon has given it.
func (s *Server) identify(peer sys.Identity, key engine.WrapperKey, claim Claim) (recipeDigest string, err error) {
	s.mu.Lock()
	want, launched := s.expected[place{key.Session, key.Generation}]
	s.mu.Unlock()
	launched = launched && want.instance == key.Instance
	recorded := claim.Identity.PID != 0
	switch {
	case recorded && claim.Identity != peer:
		return "", fmt.Errorf("peer is %v, the lease names %v", peer, claim.Identity)
	case !recorded && launched && want.identity != peer:
		return "", fmt.Errorf("peer is %v, launched was %v", peer, want.identity)
	case recorded, launched:
		return want.recipeDigest, nil
	case claim.WrapCgroup == "":
		return "", nil // no cgroups: the token is all there is, evidence is weak
	}
	dir, err := s.opts.CgroupOf(peer.PID)
	if err != nil {
		return "", fmt.Errorf("finding the peer's cgroup: %w", err)
	}
	if dir != claim.WrapCgroup {
		return "", fmt.Errorf("peer is in %q, not in its leaf", dir)
	}
	return "", nil
}

// peerIdentity identifies the process on the other end by SO_PEERPIDFD where
// the kernel has it (6.5), else by the pid of SO_PEERCRED; see unix(7).
func peerIdentity(c *net.UnixConn) (sys.Identity, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return sys.Identity{}, err
	}
	var id sys.Identity
	var failure error
	err = raw.Control(func(fd uintptr) {
		if pidfd, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
			defer unix.Close(pidfd)
			id, failure = sys.IdentityOfPidfd(pidfd)
			return
		}
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			failure = err
			return
		}
		id, failure = sys.IdentityOf(int(cred.Pid))
	})
	if err != nil {
		return id, fmt.Errorf("identifying the peer: %w", err)
	}
	return id, failure
}
