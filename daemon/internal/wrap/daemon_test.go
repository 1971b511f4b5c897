package wrap

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthd/berth/rpc/wire"
)

// fakeDaemon is the daemon's end of the wrapper socket.
type fakeDaemon struct {
	t        *testing.T
	path     string
	listener *net.UnixListener
	hellos   chan *fakeConn // every connection, after its hello
	mute     bool           // never answers a hello
	reject   bool
	hang     bool // welcomes, and reads nothing more
	wg       sync.WaitGroup
	closed   chan struct{}
}

// fakeConn is one connection of a wrapper.
type fakeConn struct {
	t      *testing.T
	conn   *net.UnixConn
	hello  wire.Hello
	frames chan wire.Frame // what is no reply; closed at the end
	ended  chan struct{}   // closed at the end
	beats  atomic.Int64    // heartbeats so far
	mu     sync.Mutex
	nextID uint64
	waits  map[uint64]chan wire.Frame
}

func newDaemon(t *testing.T, path string) *fakeDaemon {
	t.Helper()
	d := &fakeDaemon{t: t, path: path, hellos: make(chan *fakeConn, 64), closed: make(chan struct{})}
	d.listen()
	t.Cleanup(d.close)
	return d
}

func (d *fakeDaemon) listen() {
	d.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.path, Net: "unix"})
	if err != nil {
		d.t.Fatal(err)
	}
	d.listener = l
	d.wg.Add(1)
	go func() {
		defer d.wg.Done()
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			d.wg.Add(1)
			go func() {
				defer d.wg.Done()
				d.serve(c)
			}()
		}
	}()
}

func (d *fakeDaemon) close() {
	close(d.closed)
	d.listener.Close()
	for {
		select {
		case c := <-d.hellos:
			c.conn.Close()
			continue
		default:
		}
		break
	}
	d.wg.Wait()
}

func (d *fakeDaemon) serve(conn *net.UnixConn) {
	defer conn.Close()
	r := wire.NewReader(conn, 0)
	f, err := r.ReadFrame()
	if err != nil || f.Kind != wire.KindHello {
		return
	}
	c := &fakeConn{t: d.t, conn: conn, hello: *f.Hello, frames: make(chan wire.Frame, 4096), ended: make(chan struct{}), waits: map[uint64]chan wire.Frame{}}
	defer close(c.frames)
	defer close(c.ended)
	d.t.Cleanup(func() { conn.Close() })
	switch {
	case d.reject:
		c.send(wire.Frame{Kind: wire.KindReject, Error: "not yours"})
	case !d.mute:
		c.send(wire.Frame{Kind: wire.KindWelcome})
	}
	d.hellos <- c
	if d.hang {
		<-d.closed
		return
	}
	for {
		f, err := r.ReadFrame()
		if err != nil {
			return
		}
		if f.Kind == wire.KindReply {
			c.mu.Lock()
			w := c.waits[f.ID]
			c.mu.Unlock()
			if w != nil {
				w <- f
			}
			continue
		}
		if f.Kind == wire.KindStatus {
			c.beats.Add(1)
			select { // nobody waits for most of them
			case c.frames <- f:
			default:
			}
			continue
		}
		select {
		case c.frames <- f:
		case <-d.closed:
			return
		}
	}
}

// next returns the next connection.
func (d *fakeDaemon) next() *fakeConn {
	d.t.Helper()
	select {
	case c := <-d.hellos:
		return c
	case <-time.After(patience):
		d.t.Fatal("no hello")
		return nil
	}
}

func (c *fakeConn) send(f wire.Frame) {
	c.conn.SetWriteDeadline(time.Now().Add(patience))
	_ = wire.WriteFrame(c.conn, &f) // the wrapper may be gone
}

// request sends f and returns the error text of its reply.
func (c *fakeConn) request(f wire.Frame) string {
	c.t.Helper()
	c.mu.Lock()
	c.nextID++
	f.ID = c.nextID
	w := make(chan wire.Frame, 1)
	c.waits[f.ID] = w
	c.mu.Unlock()
	c.send(f)
	select {
	case r := <-w:
		return r.Error
	case <-c.ended:
		return "the connection was closed"
	case <-time.After(patience):
		c.t.Fatalf("no reply to %s", f.Kind)
		return ""
	}
}

func (c *fakeConn) input(text string) string {
	c.t.Helper()
	return c.request(wire.Frame{Kind: wire.KindInput, Input: &wire.Input{Data: []byte(text)}})
}

// await returns the next frame of kind.
func (c *fakeConn) await(kind wire.Kind) wire.Frame {
	c.t.Helper()
	late := time.After(patience)
	for {
		select {
		case f, ok := <-c.frames:
			if !ok {
				c.t.Fatalf("connection ended before a %s frame", kind)
			}
			if f.Kind == kind {
				return f
			}
		case <-late:
			c.t.Fatalf("no %s frame", kind)
		}
	}
}
