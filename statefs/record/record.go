// Package record is what berth keeps in its journal, as data: the lease of a
// session, its specification, the operation ledger's rows, tombstones and the
// host's own facts, with their binary encoding and its versions.
//
// It owns names, shapes and encodings of persisted facts. It refuses to know
// how they are ordered, written or changed: statefs/journal carries them as
// opaque bodies, daemon/internal/engine is the only writer, berthctl decodes
// them for people. Encodings are additive: fields are never renumbered, a
// reader keeps unknown fields out of its way. A golden file per version is
// kept for ever.
package record

import "time"

// Type says what a journal entry's body is. Zero is invalid.
type Type uint16

// The record types. Values are part of the format.
const (
	TypeHost      Type = 1 // Host, key: none
	TypeSpec      Type = 2 // Spec, key: session
	TypeLease     Type = 3 // Lease, key: session
	TypeOperation Type = 4 // Operation, key: uid, kind, key (inside the body)
	TypeTombstone Type = 5 // Tombstone, key: session; ends Spec and Lease of it
	TypeForget    Type = 6 // no body, key: session; ends everything of it
)

// Host is what the daemon remembers of itself.
type Host struct {
	HostID string `json:"host_id"`
	// GenerationFloor is a generation that no session that is new to the
	// journal may start at or below.
	GenerationFloor uint64 `json:"generation_floor"`
	// Epoch is the epoch of the last start; see sys.Epoch.
	Epoch string `json:"epoch"`
	// ScanProven is the epoch in which reading other processes' environments
	// was proven to work.
	ScanProven string `json:"scan_proven,omitempty"`
	// Draining: no instance is started until an operator says otherwise. By,
	// Why and Wall are who asked for it, the reason given, and when.
	Draining  bool      `json:"draining,omitempty"`
	DrainBy   string    `json:"drain_by,omitempty"`
	DrainWhy  string    `json:"drain_why,omitempty"`
	DrainWall time.Time `json:"drain_wall,omitzero"`
	// Age is how long the host has been running since berth came to it, as far as
	// a daemon has seen it: it only grows, and no clock that somebody sets is in
	// it. It was that at AgeAt on the boot clock of Epoch.
	Age   time.Duration `json:"age,omitempty"`
	AgeAt time.Duration `json:"age_at,omitempty"`
}

// Spec is what a client asked a session to be. It changes only when a vacant
// session is started with another one.
type Spec struct {
	Session string `json:"session"`
	// Digest is the hex SHA-256 of the canonical JSON of the fields below.
	Digest  string   `json:"digest"`
	Command []string `json:"command"`
	Env     []string `json:"env,omitempty"`
	// Workspace is an absolute path; empty = one that berth makes and owns.
	Workspace string `json:"workspace,omitempty"`
	Provider  string `json:"provider"`
	Terminal  bool   `json:"terminal,omitempty"`
	Rows      uint16 `json:"rows,omitempty"`
	Cols      uint16 `json:"cols,omitempty"`
	// Grace is the time between TERM and kill; negative = the default.
	Grace time.Duration `json:"grace"`
	// ReserveBytes and ReserveInodes are the room that is set aside.
	ReserveBytes  uint64 `json:"reserve_bytes"`
	ReserveInodes uint64 `json:"reserve_inodes"`
	// Limits as in sandbox.Limits; zero = none.
	MaxProcesses   uint64 `json:"max_processes,omitempty"`
	MaxMemoryBytes uint64 `json:"max_memory_bytes,omitempty"`
	MaxCPUPercent  uint64 `json:"max_cpu_percent,omitempty"`
	MaxOpenFiles   uint64 `json:"max_open_files,omitempty"`
	// Source is what the workspace is filled from, nil = nothing; then each of
	// Setup is given to a shell in it, in order.
	Source *Source  `json:"source,omitempty"`
	Setup  []string `json:"setup,omitempty"`
	// Pinned: the workspace is never reclaimed.
	Pinned bool `json:"pinned,omitempty"`
	// Allocation is the kind of what the session's sandbox is part of: empty or
	// "dedicated" = its own. AllocationShared is retired: such a session is
	// listed, stopped and deleted, and never started.
	Allocation string `json:"allocation,omitempty"`
	// Retention is how long the session is kept after its last activity, on the
	// host's age; 0 = the daemon's setting, negative = for ever.
	Retention time.Duration `json:"retention,omitempty"`
}

// AllocationShared is one sandbox for several sessions. No berth makes it any
// more; records may name it for ever.
const AllocationShared = "shared"

// Source is where the content of a workspace comes from: one of Copy and Clone.
type Source struct {
	Copy  string `json:"copy,omitempty"`  // an absolute path of a directory
	Clone string `json:"clone,omitempty"` // a URL, or an absolute path of a repository
	// Branch is checked out, empty = the repository's own choice. WorkBranch is
	// then checked out, and made where the repository has none of that name.
	Branch     string `json:"branch,omitempty"`
	WorkBranch string `json:"work_branch,omitempty"`
	Depth      uint64 `json:"depth,omitempty"` // of the history; 0 = all of it
}

// Lease is the durable record of one session: which instance it may have and
// what is still owed. It holds all that is needed to find and stop its wrapper.
// Times named …At without a unit are CLOCK_BOOTTIME of Epoch.
type Lease struct {
	Session string `json:"session"`
	// Owner of the session.
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
	// Epoch is the epoch in which this value was written.
	Epoch string `json:"epoch"`
	// Event is the name of the event that led here, for the audit log; Wall is
	// when, in wall time.
	Event string    `json:"event"`
	Wall  time.Time `json:"wall"`

	// State, as lease.State.
	State          string        `json:"state"`
	NextGeneration uint64        `json:"next_generation"`
	Instance       string        `json:"instance,omitempty"`
	Generation     uint64        `json:"generation,omitempty"`
	Reuse          bool          `json:"reuse,omitempty"`
	Deadline       time.Duration `json:"deadline,omitempty"`
	Frozen         bool          `json:"frozen,omitempty"`
	FrozenAt       time.Duration `json:"frozen_at,omitempty"`
	LinkLostAt     time.Duration `json:"link_lost_at,omitempty"`
	Stop           *Stop         `json:"stop,omitempty"`

	// Wrapper is where the instance's process is to be found.
	Wrapper Wrapper `json:"wrapper"`
	// Workspace is the session's directory; WorkspaceMade says that berth made
	// it and deletes it.
	Workspace     string `json:"workspace,omitempty"`
	WorkspaceMade bool   `json:"workspace_made,omitempty"`
	// ReservedBytes and ReservedInodes are the room set aside now.
	ReservedBytes  uint64 `json:"reserved_bytes,omitempty"`
	ReservedInodes uint64 `json:"reserved_inodes,omitempty"`
	// ReservedDevice is the file system that the room is on, as statefs.Space
	// has it. It means nothing in another epoch, nor does the reservation.
	ReservedDevice uint64 `json:"reserved_device,omitempty"`
	// Deletion is set from the moment that a delete was accepted.
	Deletion *Deletion `json:"deletion,omitempty"`
	// Debts are releases owed to providers.
	Debts []Debt `json:"debts,omitempty"`
	// Exit is how the last instance ended.
	Exit *Exit `json:"exit,omitempty"`
	// ReleasedWall is when the session last became vacant, wall time.
	ReleasedWall time.Time `json:"released_wall,omitzero"`
	// Unreadable says that this lease stands for a record that did not decode,
	// and why.
	Unreadable string `json:"unreadable,omitempty"`
	// Preparation is how far the filling of the workspace has come, nil where
	// there is nothing to fill it with.
	Preparation *Preparation `json:"preparation,omitempty"`
	// ReleasedAt is ReleasedWall on the boot clock of the boot ReleasedBoot.
	ReleasedAt   time.Duration `json:"released_at,omitempty"`
	ReleasedBoot string        `json:"released_boot,omitempty"`
	// Reclaim is set while the workspace is being given up to make room: the name
	// that it gets in the trash.
	Reclaim string `json:"reclaim,omitempty"`
	// Note is what Event was about where no other field says it.
	Note string `json:"note,omitempty"`
	// Abandoned is what an operator has given up without proof, who that was and
	// why. It goes into the tombstone.
	Abandoned []string `json:"abandoned,omitempty"`
	// ActiveAge is the host's age when the session last owned an instance.
	ActiveAge time.Duration `json:"active_age,omitempty"`
}

// Preparation is how far the filling of a workspace has come. Until it is
// Finished no agent has been in the workspace.
type Preparation struct {
	// Done is how many steps have ended well, of those that the specification
	// asks for; Finished says that all have.
	Done     int  `json:"done"`
	Finished bool `json:"finished"`
	// Again: the workspace was reclaimed, and is made a second time.
	Again bool `json:"again,omitempty"`
	// Step is the one that has ended last: copy, clone, checkout or setup, of
	// which it is the Number-th, from 1. Failure is empty when it ended well.
	Step    string        `json:"step,omitempty"`
	Number  int           `json:"number,omitempty"`
	Failure string        `json:"failure,omitempty"`
	Code    int           `json:"code,omitempty"` // of its program's end
	Signal  int           `json:"signal,omitempty"`
	Took    time.Duration `json:"took,omitempty"`
}

// Stop is the owed stop of a lease in a stopping state, as lease.Stop.
type Stop struct {
	Instance        string        `json:"instance,omitempty"` // empty = the whole session
	Generation      uint64        `json:"generation,omitempty"`
	Reason          string        `json:"reason"`
	RequestedAt     time.Duration `json:"requested_at"`
	NextAttemptAt   time.Duration `json:"next_attempt_at,omitempty"`
	Attempts        int           `json:"attempts"`
	LastError       string        `json:"last_error,omitempty"`
	AttemptID       string        `json:"attempt_id,omitempty"`
	AttemptStart    time.Duration `json:"attempt_started_at,omitempty"`
	AttemptDeadline time.Duration `json:"attempt_deadline,omitempty"`
	// JoinBy is when a cancelled attempt's worker must have returned; Stuck
	// says that it did not.
	JoinBy        time.Duration `json:"join_by,omitempty"`
	Stuck         bool          `json:"stuck,omitempty"`
	ExhaustedAt   time.Duration `json:"exhausted_at,omitempty"`
	NextRecheckAt time.Duration `json:"next_recheck_at,omitempty"`
	By            string        `json:"by,omitempty"`
	Why           string        `json:"why,omitempty"`
}

// Wrapper is the physical side of an instance.
type Wrapper struct {
	// PID, StartTicks, PidfdInode and BootID identify the process; 0 before
	// the wrapper was verified.
	PID        int    `json:"pid,omitempty"`
	StartTicks uint64 `json:"start_ticks,omitempty"`
	PidfdInode uint64 `json:"pidfd_inode,omitempty"`
	BootID     string `json:"boot_id,omitempty"`
	// Leaf is the leaf's directory, LeafParentInode the inode of the directory
	// above it; empty = no cgroup (weak evidence).
	Leaf            string `json:"leaf,omitempty"`
	LeafParentInode uint64 `json:"leaf_parent_inode,omitempty"`
	// Extra are cgroup directories in other hierarchies.
	Extra []string `json:"extra,omitempty"`
	// TokenHash is the hex SHA-256 of the wrapper's token.
	TokenHash string `json:"token_hash,omitempty"`
	// RecipeDigest is the hex SHA-256 of the recipe that was sent.
	RecipeDigest string `json:"recipe_digest,omitempty"`
	Provider     string `json:"provider,omitempty"`
	Handle       string `json:"handle,omitempty"`
	Protocol     int    `json:"protocol,omitempty"`
	AgentPID     int    `json:"agent_pid,omitempty"`
	// Since is when the instance was allocated, CLOCK_BOOTTIME of the lease's
	// epoch: no older process can belong to it.
	Since time.Duration `json:"since,omitempty"`
}

// Deletion is the intent to delete a session, and how far it has come.
type Deletion struct {
	Reason  string    `json:"reason"` // explicit, retention_expired, recovery
	By      string    `json:"by,omitempty"`
	Wall    time.Time `json:"wall"`
	Discard bool      `json:"discard"`
	// Step is the next step to do: stop, release, trash, purge.
	Step string `json:"step"`
	// Trash is the name that the workspace got in the trash directory.
	Trash     string        `json:"trash,omitempty"`
	Attempts  int           `json:"attempts,omitempty"`
	NextAt    time.Duration `json:"next_at,omitempty"`
	LastError string        `json:"last_error,omitempty"`
	// Salvage asks for work in the workspace to be saved first; Saved is the path of
	// what was saved.
	Salvage bool   `json:"salvage,omitempty"`
	Saved   string `json:"saved,omitempty"`
}

// Debt is one release that a provider still owes.
type Debt struct {
	Provider   string        `json:"provider"`
	Handle     string        `json:"handle"`
	Generation uint64        `json:"generation"`
	Attempts   int           `json:"attempts,omitempty"`
	NextAt     time.Duration `json:"next_at,omitempty"`
	LastError  string        `json:"last_error,omitempty"`
}

// Exit is how an instance ended, as wire.Exit.
type Exit struct {
	Instance   string    `json:"instance"`
	Generation uint64    `json:"generation"`
	Kind       string    `json:"kind"`
	Code       int       `json:"code,omitempty"`
	Signal     int       `json:"signal,omitempty"`
	Unknown    string    `json:"unknown,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	By         string    `json:"by,omitempty"`
	Wall       time.Time `json:"wall,omitzero"`
}

// Operation is one row of the operation ledger.
type Operation struct {
	UID     uint32 `json:"uid"`
	Kind    string `json:"kind"` // start, stop, delete, …
	Key     string `json:"key"`
	Session string `json:"session"`
	// Digest is the hex SHA-256 of the canonical request.
	Digest string `json:"digest"`
	// Done says that Result is final; otherwise the operation is in flight.
	Done bool `json:"done"`
	// Result is the JSON answer, at most 4 KiB; ErrorCode is set instead of a
	// good answer when it failed for good.
	Result    []byte    `json:"result,omitempty"`
	ErrorCode string    `json:"error_code,omitempty"`
	Conflicts uint64    `json:"conflicts,omitempty"`
	Wall      time.Time `json:"wall"`
	// Generation is the generation that the operation made, if any.
	Generation uint64 `json:"generation,omitempty"`
	// Age is the host's age at Wall; rows expire by it.
	Age time.Duration `json:"age,omitempty"`
	// Allocation is what the request asked for, as Spec has it.
	Allocation string `json:"allocation,omitempty"`
}

// Tombstone is what stays of a deleted session.
type Tombstone struct {
	Session        string    `json:"session"`
	UID            uint32    `json:"uid"`
	LastGeneration uint64    `json:"last_generation"`
	Wall           time.Time `json:"wall"`
	Reason         string    `json:"reason"`
	By             string    `json:"by,omitempty"`
	// Evidence is the JSON of the evidence report that proved absence.
	Evidence []byte `json:"evidence,omitempty"`
	// Saved is the path of what was saved from the workspace, empty = nothing was.
	Saved string `json:"saved,omitempty"`
	// Abandoned is the lease's.
	Abandoned []string `json:"abandoned,omitempty"`
	// Age is the host's age at Wall; tombstones expire by it.
	Age time.Duration `json:"age,omitempty"`
}
