// Package serve carries the sandbox contract over go-plugin, in both
// directions: a provider's main calls Main, plugins/host dispenses the client
// side from Plugins.
//
// It owns the transport: handshake, gRPC service, message form, how a plugin
// notices that its daemon is gone. It refuses to know what a sandbox is, or
// how plugin processes are found and supervised.
//
// The gRPC service is four unary methods whose messages are one bytes field
// holding JSON (sandbox.proto). The contract's types carry JSON tags already,
// because the daemon hands the same recipe to the wrapper as JSON; a second
// schema would have to be kept equal by hand. A provider in another language
// needs no generated code, only a JSON library and the well-known type
// BytesValue. The cost is some 10 µs a call next to 80 µs of gRPC, for calls
// that happen once per session start.
//
// There is no TLS between daemon and plugin: both ends of the socket are one
// user's processes in a directory that only that user can enter, the daemon
// checks who listens, and AutoMTLS would add 15 ms to each start.
package serve

import (
	"context"
	"os"

	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/berthd/berth/plugins/sandbox"
)

// Name is the one plugin that each provider process serves.
const Name = "sandbox"

// MaxMessageBytes bounds a request or a reply. A recipe's strings go through
// one execve(2), which takes about 2 MiB.
const MaxMessageBytes = 4 << 20

// Handshake lets a provider binary tell that a daemon started it, and a daemon
// that the binary speaks this contract. It keeps accidents apart, not enemies.
func Handshake() plugin.HandshakeConfig {
	return plugin.HandshakeConfig{
		ProtocolVersion:  sandbox.Version,
		MagicCookieKey:   "BERTH_SANDBOX_PLUGIN",
		MagicCookieValue: "c2d1b61f6a3b4f0e9f7d",
	}
}

// Plugins is the versioned plugin set of both sides. A provider passes itself;
// the daemon passes nil, then dispenses Name and gets a sandbox.Provider whose
// errors are *sandbox.Error when the provider answered, and a gRPC status when
// it could not.
func Plugins(p sandbox.Provider) map[int]plugin.PluginSet {
	return map[int]plugin.PluginSet{sandbox.Version: {Name: &bridge{provider: p}}}
}

// bridge joins go-plugin to the two halves of the service.
type bridge struct {
	plugin.NetRPCUnsupportedPlugin
	provider sandbox.Provider
	log      *os.File // server side: see server.begin
}

// GRPCServer registers the provider.
func (b *bridge) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	s.RegisterService(&service, &server{provider: b.provider, log: b.log})
	return nil
}

// GRPCClient returns a sandbox.Provider that calls over conn.
func (b *bridge) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return &client{conn: conn}, nil
}
