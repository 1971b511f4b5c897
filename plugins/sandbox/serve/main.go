package serve

import (
	"fmt"
	"io"
	"os"
	"time"

	hclog "github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/berthd/berth/plugins/sandbox"
)

const (
	// maxCalls bounds the calls of one connection that run at once, so that
	// handlers which ignore cancellation cannot pile up without end. The
	// daemon's own limits lie below it; go-plugin's three streams count too.
	maxCalls = 64
	// lockDescriptor is where the daemon leaves the lock that says "this
	// provider has a living process" (plugins/host).
	lockDescriptor = 3
	// graceful bounds how long running calls may take to notice their
	// cancellation once the daemon has gone.
	graceful = time.Second
)

// Exit statuses of Main.
const (
	exitOK    = 0
	exitHung  = 1 // a call outlived the daemon by more than graceful
	exitUsage = 2 // not started by a daemon
)

// Main serves p to the daemon that started this process, and returns the exit
// status for main. It returns when the daemon shuts it down, or closes this
// process's standard input, or dies: standard input is the read end of a pipe
// whose only writer is the daemon, so that its end shows as end of file, on
// whichever thread and however it died. (PR_SET_PDEATHSIG fires when the
// *thread* that forked ends, which in a Go daemon is any time.)
//
// Calls still running then are cancelled. The process must be a plain child of
// the daemon: start nothing from it that has to outlive it.
func Main(p sandbox.Provider) int {
	h := Handshake()
	if os.Getenv(h.MagicCookieKey) != h.MagicCookieValue {
		fmt.Fprintf(os.Stderr, "%s is a sandbox provider: berthd starts it, see berth-plugin(7).\n", os.Args[0])
		return exitUsage
	}
	// What this process starts must not hold the daemon's lock for it.
	unix.CloseOnExec(lockDescriptor)

	log := os.Stderr
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  h,
		VersionedPlugins: map[int]plugin.PluginSet{sandbox.Version: {Name: &bridge{provider: p, log: log}}},
		Logger:           hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: log}),
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			s := grpc.NewServer(append(opts,
				grpc.MaxRecvMsgSize(MaxMessageBytes), grpc.MaxConcurrentStreams(maxCalls))...)
			go outlive(os.Stdin, s)
			return s
		},
	})
	return exitOK
}

// outlive waits for the daemon's end of the pipe to close, then stops s, which
// cancels the running calls and makes Main return. It belongs to Main and lives
// as long as the process.
func outlive(pipe io.Reader, s *grpc.Server) {
	// Any error reads as the end, too: a pipe that cannot be read can no longer
	// say that the daemon lives.
	_, _ = io.Copy(io.Discard, pipe)
	time.AfterFunc(graceful, func() { os.Exit(exitHung) })
	s.Stop()
}
