package rpc

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// upgrade runs an attach. The connection changes its protocol at the
// Service's first Recv or Send: until then a refusal is an HTTP reply with a
// status, afterwards it is a TerminalError frame, "CODE: message".
func (q *request) upgrade(ctx context.Context) error {
	if !upgradeWanted(q.r.Header) {
		return Errorf(CodeInvalidRequest, "%s needs the headers Connection: Upgrade and Upgrade: %s", q.method.Name, TerminalProtocol)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := newLateTerminal(q, cancel)
	q.in.term = t
	q.s.background.Add(1)
	defer q.s.background.Done()
	// The end of the context ends the connection: a Service that waits in Recv returns.
	defer context.AfterFunc(ctx, t.cut)()
	_, err := q.call(ctx)
	if err == nil {
		err = t.Close() // with a 101, where there was none yet
	}
	if q.begun = t.seal(); !q.begun {
		return err
	}
	q.upgraded = true
	if err == nil {
		return nil
	}
	if e := q.refusal(err); e != nil && ctx.Err() == nil {
		t.Send(errorFrame(e))
	}
	t.cut()
	return err
}

func upgradeWanted(h http.Header) bool {
	asked := false
	for _, line := range h.Values("Connection") {
		for word := range strings.SplitSeq(line, ",") {
			asked = asked || strings.EqualFold(strings.TrimSpace(word), "upgrade")
		}
	}
	return asked && strings.EqualFold(h.Get("Upgrade"), TerminalProtocol)
}

// hijack takes the connection from net/http and answers 101.
func (q *request) hijack() (*TerminalConn, error) {
	conn, rw, err := http.NewResponseController(q.w).Hijack()
	if err != nil {
		return nil, fmt.Errorf("taking over the connection: %w", err)
	}
	conn.SetWriteDeadline(time.Now().Add(q.s.cfg.Bounds.WriteTimeout))
	_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", TerminalProtocol)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("answering an upgrade: %w", err)
	}
	return NewTerminalConn(conn, rw.Reader, 0), nil
}

// lateTerminal is the Terminal that a Service gets: it opens at first use.
type lateTerminal struct {
	hijack  func() (*TerminalConn, error)
	gone    func() // the peer has detached
	timeout atomic.Int64
	over    atomic.Bool
	conn    atomic.Pointer[TerminalConn]

	// mu is held while the connection is taken over, which is bounded: nobody
	// can use the terminal meanwhile, and seal must know how it went.
	mu     sync.Mutex
	opened bool
	sealed bool
	err    error
}

func newLateTerminal(q *request, gone func()) *lateTerminal {
	t := &lateTerminal{hijack: q.hijack, gone: gone}
	t.timeout.Store(int64(q.s.cfg.Bounds.WriteTimeout))
	return t
}

// open takes the connection over at its first call.
func (t *lateTerminal) open() (*TerminalConn, error) {
	if c := t.conn.Load(); c != nil {
		return c, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.opened && t.err == nil:
		return t.conn.Load(), nil
	case t.opened:
		return nil, t.err
	case t.sealed:
		return nil, net.ErrClosed
	}
	t.opened = true
	c, err := t.hijack()
	if err != nil {
		t.err = err
		return nil, err
	}
	c.SetSendTimeout(time.Duration(t.timeout.Load()))
	t.conn.Store(c)
	if t.over.Load() { // cut has run before there was anything to cut
		c.Close()
	}
	return c, nil
}

// seal tells whether the connection was taken over. If not it never will be:
// a goroutine of the Service may still be about to use the terminal when the
// Service has answered, and the connection then is net/http's again.
func (t *lateTerminal) seal() (opened bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sealed = true
	return t.opened
}

// Recv returns the peer's next frame; io.EOF when it has detached. Any error
// ends the context of the call.
func (t *lateTerminal) Recv() (TerminalFrame, error) {
	c, err := t.open()
	if err != nil {
		return TerminalFrame{}, err
	}
	f, err := c.Recv()
	if err != nil {
		t.gone()
	}
	return f, err
}

// Send writes one frame; it fails when the peer is too slow or gone.
func (t *lateTerminal) Send(f TerminalFrame) error {
	c, err := t.open()
	if err != nil {
		return err
	}
	return c.Send(f)
}

// SetSendTimeout bounds each Send; the server's WriteTimeout is the default.
func (t *lateTerminal) SetSendTimeout(d time.Duration) {
	t.timeout.Store(int64(d))
	if c := t.conn.Load(); c != nil {
		c.SetSendTimeout(d)
	}
}

// Close ends the conversation, with the answer 101 where there was none yet.
func (t *lateTerminal) Close() error {
	_, err := t.open()
	t.cut()
	return err
}

// cut closes without a word what is open, and whatever is opened later.
func (t *lateTerminal) cut() {
	t.over.Store(true)
	if c := t.conn.Load(); c != nil {
		c.Close()
	}
}
