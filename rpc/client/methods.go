package client

import (
	"context"
	"io"
	"iter"

	"github.com/berthd/berth/rpc"
)

// Start starts a session; it answers when the wrapper is verified.
func (c *Client) Start(ctx context.Context, session string, req rpc.StartRequest) (rpc.StartReply, error) {
	return invoke[rpc.StartReply](ctx, c, "start", session, req)
}

// List lists the sessions that the caller may see.
func (c *Client) List(ctx context.Context) (rpc.ListReply, error) {
	return invoke[rpc.ListReply](ctx, c, "list", "", nil)
}

// Get returns one session.
func (c *Client) Get(ctx context.Context, session string) (rpc.Session, error) {
	return invoke[rpc.Session](ctx, c, "get", session, nil)
}

// Explain returns every witness of a session.
func (c *Client) Explain(ctx context.Context, session string) (rpc.ExplainReply, error) {
	return invoke[rpc.ExplainReply](ctx, c, "explain", session, nil)
}

// Send gives bytes to the agent's input.
func (c *Client) Send(ctx context.Context, session string, req rpc.SendRequest) (rpc.SendReply, error) {
	return invoke[rpc.SendReply](ctx, c, "send", session, req)
}

// Stop stops a session.
func (c *Client) Stop(ctx context.Context, session string, req rpc.StopRequest) (rpc.StopReply, error) {
	return invoke[rpc.StopReply](ctx, c, "stop", session, req)
}

// Delete deletes a session for good.
func (c *Client) Delete(ctx context.Context, session string, req rpc.DeleteRequest) (rpc.DeleteReply, error) {
	return invoke[rpc.DeleteReply](ctx, c, "delete", session, req)
}

// Wait returns when the session owns no instance any more.
func (c *Client) Wait(ctx context.Context, session string) (rpc.WaitReply, error) {
	return invoke[rpc.WaitReply](ctx, c, "wait", session, nil)
}

// Resolve settles a lease that berth cannot settle.
func (c *Client) Resolve(ctx context.Context, session string, req rpc.ResolveRequest) (rpc.Session, error) {
	return invoke[rpc.Session](ctx, c, "resolve", session, req)
}

// Gc judges every workspace: whether it would be reclaimed, and why not.
func (c *Client) Gc(ctx context.Context) (rpc.GCReply, error) {
	return invoke[rpc.GCReply](ctx, c, "gc", "", nil)
}

// Drain has nothing started any more, until Undrain.
func (c *Client) Drain(ctx context.Context, req rpc.DrainRequest) (rpc.DrainReply, error) {
	return invoke[rpc.DrainReply](ctx, c, "drain", "", req)
}

// Undrain lets sessions be started again.
func (c *Client) Undrain(ctx context.Context, req rpc.UndrainRequest) (rpc.DrainReply, error) {
	return invoke[rpc.DrainReply](ctx, c, "undrain", "", req)
}

// Operations returns what operation keys were used for, and the answers.
func (c *Client) Operations(ctx context.Context, q rpc.OperationsQuery) (rpc.OperationsReply, error) {
	return invokeQuery[rpc.OperationsReply](ctx, c, "operations", q)
}

// Capacity returns the room on the file systems that berth uses.
func (c *Client) Capacity(ctx context.Context) (rpc.CapacityReply, error) {
	return invoke[rpc.CapacityReply](ctx, c, "capacity", "", nil)
}

// Scan lists what the host runs.
func (c *Client) Scan(ctx context.Context) (rpc.ScanReply, error) {
	return invoke[rpc.ScanReply](ctx, c, "scan", "", nil)
}

// Providers lists the sandbox providers.
func (c *Client) Providers(ctx context.Context) (rpc.ProvidersReply, error) {
	return invoke[rpc.ProvidersReply](ctx, c, "providers", "", nil)
}

// Status returns the daemon's account of itself.
func (c *Client) Status(ctx context.Context) (rpc.StatusReply, error) {
	return invoke[rpc.StatusReply](ctx, c, "status", "", nil)
}

// Version returns the versions of the daemon's programs and protocols.
func (c *Client) Version(ctx context.Context) (rpc.VersionReply, error) {
	return invoke[rpc.VersionReply](ctx, c, "version", "", nil)
}

// Logs yields the output of one generation, see rpc.LogsQuery. An error is
// the last thing that it yields; without one the stream is complete. After an
// *UnreachableError the caller may go on from the sequence number after its last.
func (c *Client) Logs(ctx context.Context, session string, q rpc.LogsQuery) iter.Seq2[rpc.LogRecord, error] {
	return records[rpc.LogRecord](ctx, c, "logs", session, q)
}

// Events yields events after q.After, as Logs yields output.
func (c *Client) Events(ctx context.Context, q rpc.EventsQuery) iter.Seq2[rpc.Event, error] {
	return records[rpc.Event](ctx, c, "events", "", q)
}

// OpenAPI returns the daemon's OpenAPI document.
func (c *Client) OpenAPI(ctx context.Context) ([]byte, error) {
	resp, err := c.do(ctx, "openapi", "", nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return data, nil
}
