// Package wire is the conversation between berthd and its wrappers: one JSON
// object per line, both ways, on one lasting connection to the daemon's
// wrapper socket, and the one Launch object that a parked wrapper reads from
// descriptor 3.
//
// It owns the frames, their codec and its limits. It refuses to know sockets,
// processes and sandboxes, and imports neither net/http nor anything of
// berth's own. rpc/PROTOCOL.md describes the same for authors of wrappers in
// other languages.
package wire

import (
	"encoding/json"
	"time"
)

// Version is the wrapper protocol's version. A daemon speaks Version and
// Version-1.
const Version = 1

// Kind names a frame. The zero value is invalid.
type Kind string

// Frames that a wrapper sends.
const (
	KindHello  Kind = "hello"  // first frame on every connection
	KindStatus Kind = "status" // heartbeat
	KindExited Kind = "exited" // the agent has ended; Exit says how
	KindSpool  Kind = "spool"  // the spool has grown (only while watched)
	KindReply  Kind = "reply"  // answer to a request, by ID
)

// Frames that the daemon sends.
const (
	KindWelcome Kind = "welcome" // the hello is accepted
	KindReject  Kind = "reject"  // the hello is refused; the wrapper keeps trying
	KindInput   Kind = "input"   // bytes for the agent's input
	KindResize  Kind = "resize"  // new terminal size
	KindWatch   Kind = "watch"   // switch KindSpool frames on or off
	KindStop    Kind = "stop"    // the daemon is stopping this instance
	KindSignal  Kind = "signal"  // send a signal to the agent's process group
)

// Frame is one line of the conversation. Which fields are set follows from
// Kind; unknown fields are ignored, an unknown Kind is answered with an error
// reply when it carries an ID and ignored otherwise.
type Frame struct {
	Kind Kind `json:"kind"`
	// ID pairs a request (input, resize, signal, stop) with its reply.
	ID uint64 `json:"id,omitempty"`

	Hello  *Hello  `json:"hello,omitempty"`
	Status *Status `json:"status,omitempty"`
	Exit   *Exit   `json:"exit,omitempty"`
	Input  *Input  `json:"input,omitempty"`
	Resize *Size   `json:"resize,omitempty"`
	Stop   *Stop   `json:"stop,omitempty"`

	// Watch is the wanted state for KindWatch.
	Watch bool `json:"watch,omitempty"`
	// Signal is a signal number for KindSignal.
	Signal int `json:"signal,omitempty"`
	// LastSeq is the spool's last sequence number (KindSpool).
	LastSeq uint64 `json:"last_seq,omitempty"`
	// Error is the failure of a reply or the cause of a reject; empty = success.
	Error string `json:"error,omitempty"`
}

// Hello introduces a wrapper. Token proves it; the daemon also checks that the
// peer is the process that it spawned.
type Hello struct {
	Version    int    `json:"version"`
	Host       string `json:"host"`
	Session    string `json:"session"`
	Instance   string `json:"instance"`
	Generation uint64 `json:"generation"`
	Token      string `json:"token"`
	PID        int    `json:"pid"`
	// Status is the wrapper's state at this moment.
	Status Status `json:"status"`
}

// Status is what a wrapper knows of its agent.
type Status struct {
	// Phase is "starting", "running" or "exited".
	Phase string `json:"phase"`
	// AgentPID is 0 before the agent runs.
	AgentPID int `json:"agent_pid,omitempty"`
	// StartError is why the agent could not be started; final.
	StartError string `json:"start_error,omitempty"`
	// LastSeq is the last sequence number of the spool.
	LastSeq uint64 `json:"last_seq,omitempty"`
	// Dropped counts output bytes that could not be kept.
	DroppedBytes uint64 `json:"dropped_bytes,omitempty"`
	// JournalDropped counts entries of output that journald did not take.
	JournalDropped uint64 `json:"journal_dropped,omitempty"`
	// Exit is set in phase "exited".
	Exit *Exit `json:"exit,omitempty"`
}

// Exit says how an agent ended. Exactly one of Code, Signal and Unknown
// describes it: an exit that nobody saw is unknown, never code 0.
type Exit struct {
	// Kind is "code", "signal", "oom" or "unknown".
	Kind string `json:"kind"`
	Code int    `json:"code,omitempty"`
	// Signal is the signal's number.
	Signal int `json:"signal,omitempty"`
	// Unknown is the reason why nothing is known.
	Unknown string `json:"unknown,omitempty"`
	// Reason and By are the stop that was asked for before the end, if any.
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
	// At is wall time, for people.
	At time.Time `json:"at"`
	// LastSeq is the spool's last sequence number after the output was drained.
	LastSeq uint64 `json:"last_seq,omitempty"`
}

// Input carries bytes for the agent's standard input or terminal.
type Input struct {
	// Message identifies the input; one that was taken before is acknowledged
	// again and not written again. Empty = no de-duplication.
	Message string `json:"message,omitempty"`
	Data    []byte `json:"data"`
	// EOF closes the agent's standard input after Data (pipes only).
	EOF bool `json:"eof,omitempty"`
}

// Size is a terminal's size in character cells.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Stop tells the wrapper that its instance is being stopped, so that the exit
// record can say who asked and why. Where there is no cgroup the wrapper also
// runs the ladder on its own descendants: TERM, Grace, KILL.
type Stop struct {
	Reason string        `json:"reason"`
	By     string        `json:"by,omitempty"`
	Grace  time.Duration `json:"grace"`
	// Signal asks the wrapper to signal its descendants itself (no cgroup).
	Signal bool `json:"signal,omitempty"`
}

// Launch is the object that a parked wrapper reads from descriptor 3; end of
// file without one means that it was abandoned. It is the only carrier of
// secrets and of the token.
type Launch struct {
	Version    int    `json:"version"`
	Host       string `json:"host"`
	Session    string `json:"session"`
	Instance   string `json:"instance"`
	Generation uint64 `json:"generation"`
	Token      string `json:"token"`
	// Recipe is a sandbox.Recipe.
	Recipe json.RawMessage `json:"recipe"`
	// Dir is the generation's directory: lock, status.json, exit.json, spool/.
	Dir string `json:"dir"`
	// Socket is the daemon's wrapper socket.
	Socket string `json:"socket"`
	// WorkCgroup is the directory of the leaf's work cgroup; empty = no cgroup.
	WorkCgroup string `json:"work_cgroup,omitempty"`
	// Terminal asks for a pseudo terminal of Size; otherwise pipes.
	Terminal bool `json:"terminal,omitempty"`
	Size     Size `json:"size"`
	// HeartbeatEvery is the period of KindStatus frames.
	HeartbeatEvery time.Duration `json:"heartbeat_every"`
	// SpoolFileBytes and SpoolFiles bound the spool: files are rotated at
	// SpoolFileBytes, the newest SpoolFiles are kept.
	SpoolFileBytes int64 `json:"spool_file_bytes"`
	SpoolFiles     int   `json:"spool_files"`
	// JournalSocket is where journald listens that gets a copy of the output;
	// empty = none. JournalRate bounds it in lines a second, with ten seconds'
	// worth in a burst, 0 = no bound. Provider is a field of every entry.
	JournalSocket string `json:"journal_socket,omitempty"`
	JournalRate   int    `json:"journal_rate,omitempty"`
	Provider      string `json:"provider,omitempty"`
	// DrainTimeout bounds reading the output of a dead agent whose descendants
	// keep its pipes open.
	DrainTimeout time.Duration `json:"drain_timeout"`
}
