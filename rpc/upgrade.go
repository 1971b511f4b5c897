package rpc

import (
	"context"
	"fmt"
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
	q.begun = t.opened.Load()
	if err != nil && !q.begun {
		return err
	}
	if e := q.refusal(err); err != nil && e != nil && ctx.Err() == nil {
		t.Send(errorFrame(e))
	}
	t.Close()
	q.begun, q.upgraded = true, true
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
	open    func() (*TerminalConn, error) // once
	gone    func()                        // the peer has detached
	timeout atomic.Int64
	opened  atomic.Bool
	over    atomic.Bool
	conn    atomic.Pointer[TerminalConn]
}

func newLateTerminal(q *request, gone func()) *lateTerminal {
	t := &lateTerminal{gone: gone}
	t.timeout.Store(int64(q.s.cfg.Bounds.WriteTimeout))
	t.open = sync.OnceValues(func() (*TerminalConn, error) {
		t.opened.Store(true)
		c, err := q.hijack()
		if err != nil {
			return nil, err
		}
		t.conn.Store(c)
		c.SetSendTimeout(time.Duration(t.timeout.Load()))
		if t.over.Load() { // cut has run before there was anything to cut
			c.Close()
		}
		return c, nil
	})
	return t
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
