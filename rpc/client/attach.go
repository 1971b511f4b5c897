package client

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/berthd/berth/rpc"
)

// sendTimeout bounds writing one terminal frame.
const sendTimeout = 30 * time.Second

// Terminal is an attached terminal: frames both ways, see rpc.TerminalConn.
type Terminal struct {
	*rpc.TerminalConn
	stop func() bool
}

// Attach joins a session's terminal. The end of ctx closes it; so does Close,
// which is how to detach.
func (c *Client) Attach(ctx context.Context, session string, q rpc.AttachQuery) (*Terminal, error) {
	if err := rpc.CheckSessionID(session); err != nil {
		return nil, err
	}
	m := rpc.MethodNamed("attach")
	url := "http://berth" + m.Expand(session) + "?" + rpc.EncodeQuery(q)
	req, err := http.NewRequestWithContext(ctx, m.HTTP, url, nil)
	if err != nil {
		return nil, fmt.Errorf("making the request: %w", err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", rpc.TerminalProtocol)
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, c.unreachable(ctx, &dialError{err})
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	r := bufio.NewReaderSize(conn, 32<<10)
	if err := req.Write(conn); err != nil {
		conn.Close()
		return nil, c.unreachable(ctx, err)
	}
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		conn.Close()
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer conn.Close()
		return nil, c.refusal(ctx, resp)
	}
	return &Terminal{TerminalConn: rpc.NewTerminalConn(conn, r, sendTimeout), stop: stop}, nil
}

// Close detaches.
func (t *Terminal) Close() error {
	t.stop()
	return t.TerminalConn.Close()
}
