package serve

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/berthd/berth/plugins/sandbox"
)

// client is the daemon's end of the service. It adds no bound and no retry.
type client struct {
	conn grpc.ClientConnInterface
}

// Describe asks the provider for its account of itself.
func (c *client) Describe(ctx context.Context) (sandbox.Description, error) {
	return invoke[sandbox.Description](ctx, c.conn, "Describe", struct{}{})
}

// Prepare asks the provider to make a sandbox ready.
func (c *client) Prepare(ctx context.Context, q sandbox.PrepareRequest) (sandbox.Recipe, error) {
	return invoke[sandbox.Recipe](ctx, c.conn, "Prepare", q)
}

// Observe asks whether anything of a sandbox exists.
func (c *client) Observe(ctx context.Context, h sandbox.Handle) (sandbox.Observation, error) {
	return invoke[sandbox.Observation](ctx, c.conn, "Observe", handleRequest{h})
}

// Release asks the provider to give back what it made.
func (c *client) Release(ctx context.Context, h sandbox.Handle) (sandbox.ReleaseResult, error) {
	return invoke[sandbox.ReleaseResult](ctx, c.conn, "Release", handleRequest{h})
}

// invoke calls one method. The error is a *sandbox.Error when the provider
// answered with one, a gRPC status when the call did not come through, and a
// plain error when the answer could not be read.
func invoke[A any](ctx context.Context, conn grpc.ClientConnInterface, name string, q any) (A, error) {
	var none A
	b, err := json.Marshal(q)
	if err != nil {
		return none, fmt.Errorf("writing the request: %w", err)
	}
	out := new(wrapperspb.BytesValue)
	err = conn.Invoke(ctx, "/"+serviceName+"/"+name, wrapperspb.Bytes(b), out,
		grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes))
	if err != nil {
		return none, err
	}
	var a answer[A]
	if err := json.Unmarshal(out.GetValue(), &a); err != nil {
		return none, fmt.Errorf("reading the answer: %w", err)
	}
	switch {
	case a.Error != nil:
		return none, a.Error
	case a.Result == nil:
		return none, fmt.Errorf("reading the answer: neither result nor error in %d bytes", len(out.GetValue()))
	}
	return *a.Result, nil
}
