// Package client calls berthd on its operators' socket. It owns the transport
// and the shapes of errors; it refuses to know retries, output and sessions'
// meaning, which are its callers': berthctl, control planes, tests.
//
// A refusal of the daemon is an *rpc.Error. That the daemon cannot be reached,
// or went away before it answered, is an *UnreachableError. Every method is
// safe for concurrent use and is bounded by its context alone.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/berthd/berth/rpc"
)

const (
	// idleTimeout is below the server's, so that a kept connection is not
	// closed under a request.
	idleTimeout = time.Minute
	// maxReply bounds a reply that is no stream, in bytes.
	maxReply = 64 << 20
	// maxError bounds a refusal, in bytes.
	maxError = 1 << 20
)

// Client calls one daemon.
type Client struct {
	socket string
	http   *http.Client
	stall  time.Duration // see stallTimeout
}

// UnreachableError says that there was no answer: the daemon is not there, may
// not be reached by this user, or went away first. In the last case (Sent) the
// request may have been carried out; repeating it with the same operation key
// or message id is safe.
type UnreachableError struct {
	Socket string
	Sent   bool
	Err    error
}

// Error names the socket and the cause.
func (e *UnreachableError) Error() string {
	if e.Sent {
		return fmt.Sprintf("losing the daemon at %q: %v", e.Socket, e.Err)
	}
	return fmt.Sprintf("reaching the daemon at %q: %v", e.Socket, e.Err)
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// dialError marks errors of connecting among those of a request.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// New makes a client of the daemon that listens on the Unix socket at path. It
// connects when it is used.
func New(path string) *Client {
	c := &Client{socket: path, stall: stallTimeout}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := c.dial(ctx)
				if err != nil {
					return nil, &dialError{err}
				}
				return conn, nil
			},
			DisableCompression: true,
			IdleConnTimeout:    idleTimeout,
			MaxIdleConns:       16,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// Socket returns the path that New was given.
func (c *Client) Socket() string { return c.socket }

// Close closes connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	if err := rpc.CheckSocketPath(c.socket); err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.socket)
	if err != nil {
		return nil, innermost(err) // the texts around it repeat the path
	}
	return conn, nil
}

// unreachable gives an error of the transport its shape.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("waiting for the daemon: %w", context.Cause(ctx))
	}
	var de *dialError
	return &UnreachableError{Socket: c.socket, Sent: !errors.As(err, &de), Err: plain(err)}
}

// do sends one request of the table's method and returns a reply of status 200.
func (c *Client) do(ctx context.Context, method, session string, query, body any) (*http.Response, error) {
	m := rpc.MethodNamed(method)
	if m == nil {
		return nil, fmt.Errorf("internal error: no method %q", method)
	}
	if m.Path != m.Expand("") { // before a path is made of it
		if err := rpc.CheckSessionID(session); err != nil {
			return nil, err
		}
	}
	url := "http://berth" + m.Expand(session)
	if query != nil {
		url += "?" + rpc.EncodeQuery(query)
	}
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encoding the request: %w", err)
		}
		if len(data) > rpc.DefaultBodyBytes {
			return nil, rpc.Errorf(rpc.CodeTooLarge, "the request is %d bytes long; the daemon takes %d", len(data), rpc.DefaultBodyBytes)
		}
		reader = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, m.HTTP, url, reader)
	if err != nil {
		return nil, fmt.Errorf("making the request: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, c.refusal(ctx, resp)
	}
	return resp, nil
}

// refusal reads the *rpc.Error of a reply.
func (c *Client) refusal(ctx context.Context, resp *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	if err != nil {
		return c.unreachable(ctx, err)
	}
	e := new(rpc.Error)
	if err := json.Unmarshal(data, e); err != nil || e.Code == "" {
		if len(data) > 200 {
			data = data[:200]
		}
		return fmt.Errorf("what listens on %q is not berthd: it answered %s %q", c.socket, resp.Status, bytes.TrimSpace(data))
	}
	return e
}

// invoke calls a method whose reply is one object.
func invoke[R any](ctx context.Context, c *Client, method, session string, body any) (R, error) {
	return call[R](ctx, c, method, session, nil, body)
}

// invokeQuery is invoke for a method of the host that takes query parameters.
func invokeQuery[R any](ctx context.Context, c *Client, method string, query any) (R, error) {
	return call[R](ctx, c, method, "", query, nil)
}

func call[R any](ctx context.Context, c *Client, method, session string, query, body any) (R, error) {
	var reply R
	resp, err := c.do(ctx, method, session, query, body)
	if err != nil {
		return reply, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return reply, c.unreachable(ctx, err)
	}
	if err := json.Unmarshal(data, &reply); err != nil {
		var none R
		return none, fmt.Errorf("decoding the reply of %s: %w", method, err)
	}
	return reply, nil
}

// plain takes the method and the made-up URL out of a transport's error.
func plain(err error) error {
	var de *dialError
	if errors.As(err, &de) {
		return de.err
	}
	return innermost(err)
}

func innermost(err error) error {
	for {
		u := errors.Unwrap(err)
		if u == nil {
			return err
		}
		err = u
	}
}
