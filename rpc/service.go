package rpc

import (
	"context"
	"io"
	"time"
)

// Peer is who is on the other end of a connection, by SO_PEERCRED.
type Peer struct {
	PID  int    `json:"pid"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	Name string `json:"name,omitempty"` // login name, for the audit log
	Role Role   `json:"role"`
}

// Role is what a peer may do. The zero value may do nothing.
type Role uint8

// The roles, each including the ones above it for its own sessions.
const (
	// RoleReader reads everything and changes nothing.
	RoleReader Role = iota + 1
	// RoleUser starts, feeds, stops and deletes sessions of its own uid, and
	// sees only those.
	RoleUser
	// RoleOperator does everything with every session.
	RoleOperator
)

// Service is what the server calls: berthd's api package implements it. Every
// error that is not an *Error is reported as CodeInternal. The server has
// checked the role that the method's row asks for; whose session it is, the
// service checks.
type Service interface {
	Start(ctx context.Context, p Peer, session string, req StartRequest) (StartReply, error)
	List(ctx context.Context, p Peer) (ListReply, error)
	Get(ctx context.Context, p Peer, session string) (Session, error)
	Explain(ctx context.Context, p Peer, session string) (ExplainReply, error)
	Send(ctx context.Context, p Peer, session string, req SendRequest) (SendReply, error)
	Stop(ctx context.Context, p Peer, session string, req StopRequest) (StopReply, error)
	Delete(ctx context.Context, p Peer, session string, req DeleteRequest) (DeleteReply, error)
	Wait(ctx context.Context, p Peer, session string) (WaitReply, error)
	Resolve(ctx context.Context, p Peer, session string, req ResolveRequest) (Session, error)
	// Logs calls emit for each record from q.Since on; with q.Follow until the
	// instance has ended and its spool is drained.
	Logs(ctx context.Context, p Peer, session string, q LogsQuery, emit func(LogRecord) error) error
	// Events calls emit for each event after q.After; with q.Follow for ever.
	Events(ctx context.Context, p Peer, q EventsQuery, emit func(Event) error) error
	// Attach joins t to the session's terminal until either side ends.
	Attach(ctx context.Context, p Peer, session string, q AttachQuery, t Terminal) error
	Drain(ctx context.Context, p Peer, req DrainRequest) (DrainReply, error)
	Undrain(ctx context.Context, p Peer, req UndrainRequest) (DrainReply, error)
	Capacity(ctx context.Context, p Peer) (CapacityReply, error)
	GC(ctx context.Context, p Peer) (GCReply, error)
	Scan(ctx context.Context, p Peer) (ScanReply, error)
	Providers(ctx context.Context, p Peer) (ProvidersReply, error)
	Operations(ctx context.Context, p Peer, q OperationsQuery) (OperationsReply, error)
	Status(ctx context.Context, p Peer) (StatusReply, error)
	Version(ctx context.Context, p Peer) (VersionReply, error)
}

// LogsQuery selects a part of a session's output.
type LogsQuery struct {
	// Generation 0 = the newest.
	Generation uint64
	// Since is the first sequence number wanted; 0 or 1 = from the start.
	Since  uint64
	Follow bool
}

// EventsQuery selects events.
type EventsQuery struct {
	// After is the last sequence number that the caller has; 0 = from the oldest kept.
	After   uint64
	Session string // empty = all that the peer may see
	Follow  bool
}

// OperationsQuery selects rows of the operation ledger; what is empty selects all.
type OperationsQuery struct {
	Key, Kind, Session string
}

// AttachQuery opens a terminal.
type AttachQuery struct {
	// Rows and Cols are the size at open; 0 = keep the session's.
	Rows, Cols uint16
	// Since replays output from this sequence number on; 0 = only new output
	// after a bounded replay of the last screenful.
	Since uint64
	// ReadOnly watches; otherwise this peer becomes the writer, and an earlier
	// writer is told and becomes a watcher.
	ReadOnly bool
}

// Terminal is the server's end of an upgraded attach connection.
type Terminal interface {
	// Recv returns the peer's next frame; io.EOF when it has detached.
	Recv() (TerminalFrame, error)
	// Send writes one frame; it fails when the peer is too slow or gone.
	Send(TerminalFrame) error
	io.Closer
	// SetSendTimeout bounds each Send.
	SetSendTimeout(time.Duration)
}

// TerminalFrame is one frame of an attach connection: bytes on the wire.
type TerminalFrame struct {
	Kind TerminalKind
	// Data is the bytes (TerminalData), a JSON Size (TerminalResize), or a JSON
	// Exit (TerminalExit), or text (TerminalNotice, TerminalError).
	Data []byte
	// Seq is the spool sequence number of TerminalData from the agent.
	Seq uint64
}

// TerminalKind says what a terminal frame is. Zero is invalid.
type TerminalKind uint8

// The kinds of terminal frames.
const (
	TerminalData   TerminalKind = 1 // both ways
	TerminalResize TerminalKind = 2 // to the daemon
	TerminalExit   TerminalKind = 3 // from the daemon: the agent has ended
	TerminalNotice TerminalKind = 4 // from the daemon: writer lost, gap
	TerminalError  TerminalKind = 5 // from the daemon: final
)
