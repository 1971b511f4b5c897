package cli

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/rpc"
)

// signalText is a signal's name, as SIGTERM.
func signalText(n int) string {
	if name := unix.SignalName(syscall.Signal(n)); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", n)
}

// agentCode is the exit code of a process that wants to end as the agent did:
// 128 + N for signal N, as a shell has it. It is an error when nobody knows.
func agentCode(x *rpc.Exit) (int, error) {
	if x == nil {
		return 0, fmt.Errorf("how the agent ended is not known (no exit record)")
	}
	switch x.Kind {
	case "code":
		return x.Code, nil
	case "signal":
		return 128 + x.Signal, nil
	case "oom":
		return 128 + int(syscall.SIGKILL), nil
	}
	return 0, fmt.Errorf("how the agent ended is not known (%s)", x.Unknown)
}
