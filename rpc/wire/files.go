package wire

import (
	"encoding/json"
	"fmt"
	"time"
)

// Names inside a generation's directory (Launch.Dir).
const (
	LockName   = "lock"        // the live wrapper holds an OFD write lock on it
	StatusName = "status.json" // StatusFile
	ExitName   = "exit.json"   // ExitFile
	SpoolName  = "spool"       // directory, see statefs/spool
)

// FilesVersion is the version of StatusFile and ExitFile.
const FilesVersion = 1

// Phases of Status and StatusFile.
const (
	PhaseStarting = "starting"
	PhaseRunning  = "running"
	PhaseExited   = "exited"
)

// Kinds of Exit.
const (
	ExitCode    = "code"
	ExitSignal  = "signal"
	ExitOOM     = "oom"
	ExitUnknown = "unknown"
)

// StatusFile is status.json: who holds the generation's lock and where its
// agent is. It is written before the agent starts and again once it runs. It
// holds no secret.
type StatusFile struct {
	Version    int    `json:"version"`
	Host       string `json:"host"`
	Session    string `json:"session"`
	Instance   string `json:"instance"`
	Generation uint64 `json:"generation"`
	// Epoch is that of PID and AgentPID: boot id, ":", pid namespace inode.
	Epoch      string `json:"epoch"`
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"start_ticks"`
	Phase      string `json:"phase"`
	// AgentPID and AgentStartTicks are 0 before the agent runs.
	AgentPID        int    `json:"agent_pid,omitempty"`
	AgentStartTicks uint64 `json:"agent_start_ticks,omitempty"`
	// At is wall time, for people.
	At time.Time `json:"at"`
}

// ExitFile is exit.json: how the agent of an instance ended. It may be written
// twice, first with Draining when output is still being read, then whole.
type ExitFile struct {
	Version    int    `json:"version"`
	Host       string `json:"host"`
	Session    string `json:"session"`
	Instance   string `json:"instance"`
	Generation uint64 `json:"generation"`
	Epoch      string `json:"epoch"`
	PID        int    `json:"pid"`
	AgentPID   int    `json:"agent_pid,omitempty"`
	// StartError is set when there never was an agent.
	StartError string `json:"start_error,omitempty"`
	// Draining says that Exit.LastSeq is not final.
	Draining bool `json:"draining,omitempty"`
	Exit     Exit `json:"exit"`
}

// ParseStatusFile decodes status.json. A version that is not known is an error.
func ParseStatusFile(data []byte) (StatusFile, error) {
	var f StatusFile
	if err := parseFile(data, &f, &f.Version); err != nil {
		return StatusFile{}, fmt.Errorf("parsing %s: %w", StatusName, err)
	}
	return f, nil
}

// ParseExitFile decodes exit.json. A version that is not known is an error: an
// exit that is not understood is unknown, never a guess.
func ParseExitFile(data []byte) (ExitFile, error) {
	var f ExitFile
	if err := parseFile(data, &f, &f.Version); err != nil {
		return ExitFile{}, fmt.Errorf("parsing %s: %w", ExitName, err)
	}
	if !f.Exit.Valid() {
		return ExitFile{}, fmt.Errorf("parsing %s: exit of kind %q does not say how", ExitName, f.Exit.Kind)
	}
	return f, nil
}

func parseFile(data []byte, into any, version *int) error {
	if err := json.Unmarshal(data, into); err != nil {
		return &SyntaxError{Reason: jsonReason(err)}
	}
	if *version != FilesVersion {
		return fmt.Errorf("version %d, this program reads %d", *version, FilesVersion)
	}
	return nil
}

// Valid reports whether e describes one way to end.
func (e *Exit) Valid() bool {
	switch e.Kind {
	case ExitCode:
		return e.Signal == 0 && e.Unknown == ""
	case ExitSignal, ExitOOM:
		return e.Signal > 0 && e.Unknown == ""
	case ExitUnknown:
		return e.Unknown != ""
	}
	return false
}
