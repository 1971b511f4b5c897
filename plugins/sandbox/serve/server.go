package serve

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/berthd/berth/plugins/sandbox"
)

// serviceName is the gRPC service; it holds the version (sandbox.proto).
const serviceName = "berth.sandbox.v1.Provider"

// service describes sandbox.proto to gRPC. Messages are a well-known type, so
// there is nothing to generate.
var service = grpc.ServiceDesc{
	ServiceName: serviceName,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		method("Describe", func(ctx context.Context, p sandbox.Provider, _ struct{}) (sandbox.Description, error) {
			return p.Describe(ctx)
		}),
		method("Prepare", func(ctx context.Context, p sandbox.Provider, q sandbox.PrepareRequest) (sandbox.Recipe, error) {
			if err := q.Validate(); err != nil {
				return sandbox.Recipe{}, err
			}
			return p.Prepare(ctx, q)
		}),
		method("Observe", func(ctx context.Context, p sandbox.Provider, q handleRequest) (sandbox.Observation, error) {
			if err := q.Handle.Validate(); err != nil {
				return sandbox.Observation{}, err
			}
			return p.Observe(ctx, q.Handle)
		}),
		method("Release", func(ctx context.Context, p sandbox.Provider, q handleRequest) (sandbox.ReleaseResult, error) {
			if err := q.Handle.Validate(); err != nil {
				return sandbox.ReleaseResult{}, err
			}
			return p.Release(ctx, q.Handle)
		}),
	},
	Metadata: "sandbox.proto",
}

// handleRequest is what Observe and Release are asked.
type handleRequest struct {
	Handle sandbox.Handle `json:"handle"`
}

// answer is the form of every reply: exactly one of the two is set.
type answer[A any] struct {
	Result *A             `json:"result,omitempty"`
	Error  *sandbox.Error `json:"error,omitempty"`
}

// server is the provider's end of the service.
type server struct {
	provider sandbox.Provider
	once     sync.Once
	log      *os.File // nil leaves the standard files alone
}

// method makes one unary method out of a call of the contract.
//
// A panic in call is not caught: it ends the process, which the daemon then
// starts anew, with the panic in its log. A provider that went on with a mutex
// left locked would be worse than one that is back in 10 ms.
func method[Q, A any](name string, call func(context.Context, sandbox.Provider, Q) (A, error)) grpc.MethodDesc {
	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			s := srv.(*server)
			s.begin()
			in := new(wrapperspb.BytesValue)
			if err := decode(in); err != nil {
				return nil, err
			}
			var q Q
			if err := json.Unmarshal(in.GetValue(), &q); err != nil {
				return reply(answer[A]{Error: &sandbox.Error{
					Reason: sandbox.InvalidRequest, Message: "reading the request: " + err.Error(),
				}})
			}
			a, err := call(ctx, s.provider, q)
			if err != nil {
				failure, err := failed(ctx, err)
				if err != nil {
					return nil, err
				}
				return reply(answer[A]{Error: failure})
			}
			return reply(answer[A]{Result: &a})
		},
	}
}

func reply[A any](a answer[A]) (*wrapperspb.BytesValue, error) {
	b, err := json.Marshal(a)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "writing the reply: %v", err)
	}
	return wrapperspb.Bytes(b), nil
}

// failed turns a provider's error into what travels: a *sandbox.Error whole, a
// cancelled or expired call as its gRPC status, anything else as
// infrastructure_failed, retryable.
func failed(ctx context.Context, err error) (*sandbox.Error, error) {
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e, nil
	}
	if cause := ctx.Err(); cause != nil && errors.Is(err, cause) {
		return nil, status.FromContextError(cause).Err()
	}
	return &sandbox.Error{Reason: sandbox.InfrastructureFailed, Message: err.Error(), Retryable: true}, nil
}

// begin points os.Stdout and os.Stderr back at the log file, once. go-plugin
// replaces both by pipes that it drains into the daemon's connection, on which
// a provider's careless print would block for ever when nobody reads it.
// It runs before the first call, after go-plugin's replacement.
func (s *server) begin() {
	s.once.Do(func() {
		if s.log != nil {
			os.Stdout, os.Stderr = s.log, s.log
		}
	})
}
