package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/rpc/wire"
)

// Conn is the connection of one wrapper; it is an engine.Link.
type Conn struct {
	raw    *net.UnixConn
	reader *wire.Reader
	status atomic.Pointer[wire.Status]
	// decoded carries the outcome of one frame from a decoder to readLoop.
	decoded chan error

	writeMu sync.Mutex // one frame at a time; held for at most writeBound

	mu       sync.Mutex
	nextID   uint64
	requests map[uint64]chan wire.Frame
	watchers map[chan struct{}]struct{}
	ended    chan struct{}
	isEnded  bool
}

// ErrEnded is returned for requests on a connection that has ended.
var ErrEnded = errors.New("the wrapper's connection has ended")

func newConn(raw *net.UnixConn) *Conn {
	return &Conn{
		raw: raw, reader: wire.NewReader(raw, wire.MaxFrame), ended: make(chan struct{}),
		decoded:  make(chan error, 1),
		requests: map[uint64]chan wire.Frame{}, watchers: map[chan struct{}]struct{}{},
	}
}

// Status is the newest that the wrapper has said of its agent.
func (c *Conn) Status() wire.Status { return *c.status.Load() }

// Ended is closed when the connection has ended.
func (c *Conn) Ended() <-chan struct{} { return c.ended }

// Send writes one frame. A write that fails ends the connection: half a line
// may be on the wire.
func (c *Conn) Send(f wire.Frame) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	return c.sendLocked(f)
}

func (c *Conn) sendLocked(f wire.Frame) error {
	c.raw.SetWriteDeadline(time.Now().Add(writeBound))
	if err := wire.WriteFrame(c.raw, &f); err != nil {
		var failed *wire.WriteError
		if errors.As(err, &failed) {
			c.raw.Close()
		}
		return err
	}
	return nil
}

// Request sends a frame and waits for its reply; a reply that carries an error
// is returned as one.
func (c *Conn) Request(ctx context.Context, f wire.Frame) (wire.Frame, error) {
	reply := make(chan wire.Frame, 1)
	c.mu.Lock()
	if c.isEnded {
		c.mu.Unlock()
		return wire.Frame{}, ErrEnded
	}
	c.nextID++
	f.ID = c.nextID
	c.requests[f.ID] = reply
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.requests, f.ID)
	}()
	if err := c.Send(f); err != nil {
		return wire.Frame{}, err
	}
	select {
	case r := <-reply:
		if r.Error != "" {
			return r, fmt.Errorf("wrapper: %s", r.Error)
		}
		return r, nil
	case <-c.ended:
		return wire.Frame{}, ErrEnded
	case <-ctx.Done():
		return wire.Frame{}, ctx.Err()
	}
}

// Close ends the connection.
func (c *Conn) Close() error { return c.raw.Close() }

// Watch returns a channel that gets a value when the spool may have grown, and
// the function that ends it. Values are hints and coalesce.
func (c *Conn) Watch() (grown <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	c.mu.Lock()
	c.watchers[ch] = struct{}{}
	first := len(c.watchers) == 1
	c.mu.Unlock()
	if first {
		_ = c.Send(wire.Frame{Kind: wire.KindWatch, Watch: true}) // without it the reader polls
	}
	return ch, func() {
		c.mu.Lock()
		delete(c.watchers, ch)
		last := len(c.watchers) == 0 && !c.isEnded
		c.mu.Unlock()
		if last {
			_ = c.Send(wire.Frame{Kind: wire.KindWatch}) // it may be gone
		}
	}
}

// readLoop has frames decoded as they arrive, until the connection ends or is
// silent for too long.
func (c *Conn) readLoop(lost time.Duration, arrived chan<- *Conn) {
	for {
		c.raw.SetReadDeadline(time.Now().Add(lost))
		c.reader.Wait()
		arrived <- c
		if <-c.decoded != nil {
			return
		}
	}
}

// decode takes the frame that has arrived and tells readLoop about it.
func (c *Conn) decode() {
	f, err := c.reader.ReadFrame()
	var bad *wire.SyntaxError
	switch {
	case err == nil:
		c.take(&f)
	case errors.As(err, &bad):
		err = nil // a newer wrapper's frame; the conversation is in step
	}
	c.decoded <- err
}

func (c *Conn) take(f *wire.Frame) {
	switch f.Kind {
	case wire.KindStatus:
		if f.Status != nil {
			c.status.Store(f.Status)
		}
	case wire.KindExited:
		status := c.Status()
		status.Phase, status.Exit = "exited", f.Exit
		c.status.Store(&status)
		c.wake()
	case wire.KindSpool:
		c.wake()
	case wire.KindReply:
		c.mu.Lock()
		reply := c.requests[f.ID]
		delete(c.requests, f.ID)
		c.mu.Unlock()
		if reply != nil {
			reply <- *f
		}
	}
}

func (c *Conn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ch := range c.watchers {
		select {
		case ch <- struct{}{}:
		default: // it has a hint already
		}
	}
}

// finish wakes everybody who waits for the wrapper.
func (c *Conn) finish() {
	c.raw.Close()
	c.mu.Lock()
	c.isEnded = true
	close(c.ended)
	c.mu.Unlock()
	c.wake()
}
