package host

import (
	"time"

	"github.com/berthd/berth/plugins/sandbox"
)

// State is where a provider's plugin is in its life.
type State string

// The closed set of states. Only Ready takes calls.
const (
	// Starting: a start is under way.
	Starting State = "starting"
	// Ready: the plugin runs and has described itself.
	Ready State = "ready"
	// Backoff: the last start or run failed; another start is due at NextTry.
	Backoff State = "backoff"
	// CircuitOpen: so many failed in a row that the provider is given up but
	// for one try at a time, at NextTry.
	CircuitOpen State = "circuit_open"
	// Stopped: the host is not started, or closed.
	Stopped State = "stopped"
)

// Status is the state of one provider.
type Status struct {
	Kind string
	Path string
	// Version and Capabilities are what the plugin last said of itself; empty
	// until it first did.
	Version      string
	Capabilities sandbox.Capabilities
	// PID is the plugin's process; 0 when none runs.
	PID   int
	State State
	// Since is when State began, by the wall clock.
	Since time.Time
	// NextTry is when the next start is due; zero unless one is.
	NextTry time.Time
	// Restarts counts the starts after the first.
	Restarts int
	// LastError is why the last start or run ended; "" when none failed yet.
	LastError string
}
