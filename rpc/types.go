package rpc

import (
	"encoding/json"
	"time"
)

// SessionSpec is what a client asks a session to be.
type SessionSpec struct {
	// Command is the agent's argv, at least one element.
	Command []string `json:"command"`
	// Env is added to the agent's environment, as "NAME=value". Ids and
	// settings only: secrets do not belong here.
	Env []string `json:"env,omitempty"`
	// Workspace is an absolute path of an existing directory that the session
	// works in; it must belong to the owner and to no other session. Empty = an
	// empty directory that berth makes, owns and deletes with the session.
	Workspace string `json:"workspace,omitempty"`
	// Source fills a workspace that berth makes, once, before the first start;
	// absent = it is empty.
	Source *Source `json:"source,omitempty"`
	// Setup are commands that a shell of the owner's runs in the workspace, in
	// order, after it was filled and before the agent is first started. They must
	// bear being repeated: one that was cut off is run again. At most 64.
	Setup []string `json:"setup,omitempty"`
	// Pinned: the workspace is not reclaimed when the disk is full.
	Pinned bool `json:"pinned,omitempty"`
	// Allocation is "dedicated", a sandbox of the session's own, which is also the
	// default. "shared" is retired and refused.
	Allocation string `json:"allocation,omitempty"`
	// Provider is the sandbox provider's kind; empty = the first configured one
	// that can do what the spec needs.
	Provider string `json:"provider,omitempty"`
	// Terminal gives the agent a pseudo terminal of Rows × Cols (default 24 × 80).
	Terminal bool   `json:"terminal,omitempty"`
	Rows     uint16 `json:"rows,omitempty"`
	Cols     uint16 `json:"cols,omitempty"`
	// GraceSeconds is the time between TERM and kill; absent = the daemon's
	// setting, 0 = kill at once.
	GraceSeconds *float64 `json:"grace_seconds,omitempty"`
	// RetentionSeconds is how long the session is kept after its last activity, in
	// time during which the host runs; then it is deleted, and work that is found
	// in its workspace is saved. Absent = the daemon's setting, 0 = for ever.
	RetentionSeconds *float64 `json:"retention_seconds,omitempty"`
	// ReserveBytes and ReserveInodes are the room to set aside; absent = the
	// daemon's setting.
	ReserveBytes  *uint64 `json:"reserve_bytes,omitempty"`
	ReserveInodes *uint64 `json:"reserve_inodes,omitempty"`
	Limits        Limits  `json:"limits,omitzero"`
}

// Source says what a workspace is filled from: one of Copy and Clone. All of it is
// done as the session's owner, who must be able to read it.
type Source struct {
	// Copy is the absolute path of a directory on the host.
	Copy string `json:"copy,omitempty"`
	// Clone is the URL of a git repository (https, http, ssh, git, file), or its
	// absolute path on the host. A URL must not hold a password.
	Clone string `json:"clone,omitempty"`
	// Branch is the branch or tag to check out; empty = the repository's own
	// choice. WorkBranch is a branch for the work: checked out where the repository
	// has it, else made on top of what was checked out.
	Branch     string `json:"branch,omitempty"`
	WorkBranch string `json:"work_branch,omitempty"`
	// Depth is how many commits of the history are fetched; 0 = all.
	Depth uint64 `json:"depth,omitempty"`
}

// Limits bounds a session; zero = no limit.
type Limits struct {
	Processes   uint64 `json:"processes,omitempty"`
	MemoryBytes uint64 `json:"memory_bytes,omitempty"`
	CPUPercent  uint64 `json:"cpu_percent,omitempty"`
	OpenFiles   uint64 `json:"open_files,omitempty"`
}

// StartRequest starts a session. Without Spec the session's stored one is used.
type StartRequest struct {
	// Key is the operation key: the same key with the same request is the same
	// operation, however often it is sent. Empty = idempotent by session and spec.
	Key  string       `json:"key,omitempty"`
	Spec *SessionSpec `json:"spec,omitempty"`
	// Owner is the user (name or uid) that the session belongs to; only for
	// operators, default the caller.
	Owner string `json:"owner,omitempty"`
}

// StartReply is a verified start.
type StartReply struct {
	Session    string `json:"session"`
	Instance   string `json:"instance"`
	Generation uint64 `json:"generation"`
	PID        int    `json:"pid"`
	AgentPID   int    `json:"agent_pid,omitempty"`
	Workspace  string `json:"workspace"`
	Provider   string `json:"provider"`
}

// Session is the published state of one session.
type Session struct {
	Session        string   `json:"session"`
	UID            uint32   `json:"uid"`
	State          string   `json:"state"`
	NextGeneration uint64   `json:"next_generation"`
	Instance       string   `json:"instance,omitempty"`
	Generation     uint64   `json:"generation,omitempty"`
	PID            int      `json:"pid,omitempty"`
	AgentPID       int      `json:"agent_pid,omitempty"`
	Provider       string   `json:"provider,omitempty"`
	Command        []string `json:"command,omitempty"`
	Terminal       bool     `json:"terminal,omitempty"`
	Workspace      string   `json:"workspace,omitempty"`
	// Allocation is "shared" for a session that older software made: it can be
	// stopped and deleted, and is never started.
	Allocation string `json:"allocation,omitempty"`
	// Adoption is "", "reconciling", "present", "adopted" or "unknown": how far
	// the daemon has got with a wrapper of an earlier daemon.
	Adoption string `json:"adoption,omitempty"`
	// Link is "up" or "down" for owned sessions.
	Link string `json:"link,omitempty"`
	// Stop is set in stopping states.
	Stop *StopState `json:"stop,omitempty"`
	// Exit is how the last instance ended.
	Exit *Exit `json:"exit,omitempty"`
	// Preparation is how far the filling of the workspace has come; absent where
	// there is nothing to fill it with.
	Preparation *Preparation `json:"preparation,omitempty"`
	// Deleting is set while a deletion is under way (operators' explain only).
	Deleting *DeleteState `json:"deleting,omitempty"`
	// Problem is one line on what is wrong, empty = nothing.
	Problem string `json:"problem,omitempty"`
	// LastChange is wall time, and the event that was last applied.
	LastChange     time.Time `json:"last_change"`
	LastEvent      string    `json:"last_event"`
	ReservedBytes  uint64    `json:"reserved_bytes,omitempty"`
	ReservedInodes uint64    `json:"reserved_inodes,omitempty"`
}

// Preparation is how far the filling of a workspace has come.
type Preparation struct {
	// Finished: the workspace is ready for the agent, and is not filled again.
	Finished bool `json:"finished"`
	// Done is how many steps have ended well.
	Done int `json:"done"`
	// Step is the one that has ended last: workspace (the directory was made), copy,
	// clone, checkout, or setup, of which it is the Number-th. Failure is a word for
	// why it failed, with the Code or Signal of its program.
	Step        string  `json:"step,omitempty"`
	Number      int     `json:"number,omitempty"`
	Failure     string  `json:"failure,omitempty"`
	Code        int     `json:"code,omitempty"`
	Signal      int     `json:"signal,omitempty"`
	TookSeconds float64 `json:"took_seconds,omitempty"`
}

// StopState is an owed stop.
type StopState struct {
	// Instance is empty when the whole session is the target.
	Instance  string `json:"instance,omitempty"`
	Reason    string `json:"reason"`
	Attempts  int    `json:"attempts"`
	LastError string `json:"last_error,omitempty"`
	// NextTryIn is the time until the next attempt or recheck, in seconds; 0 =
	// none is due.
	NextTryIn float64 `json:"next_try_in,omitempty"`
	By        string  `json:"by,omitempty"`
	Why       string  `json:"why,omitempty"`
}

// DeleteState is how far a deletion has come.
type DeleteState struct {
	Reason    string    `json:"reason"`
	Step      string    `json:"step"`
	Attempts  int       `json:"attempts,omitempty"`
	LastError string    `json:"last_error,omitempty"`
	Since     time.Time `json:"since"`
}

// Exit is how an instance ended.
type Exit struct {
	Instance   string `json:"instance"`
	Generation uint64 `json:"generation"`
	// Kind is "code", "signal", "oom" or "unknown".
	Kind    string    `json:"kind"`
	Code    int       `json:"code"`
	Signal  int       `json:"signal,omitempty"`
	Unknown string    `json:"unknown,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	By      string    `json:"by,omitempty"`
	At      time.Time `json:"at,omitzero"`
}

// ListReply lists sessions by id. Hidden: sessions under deletion.
type ListReply struct {
	Sessions []Session `json:"sessions"`
	// State is "reconciling" until every wrapper of an earlier daemon is
	// adopted or given up, else "ready".
	State string `json:"state"`
}

// ExplainReply shows every witness with its answer and age.
type ExplainReply struct {
	Session   *Session   `json:"session,omitempty"`
	Tombstone *Tombstone `json:"tombstone,omitempty"`
	// Verdict is absent, present or unknown; Strength strong or weak.
	Verdict   string    `json:"verdict"`
	Strength  string    `json:"strength"`
	Witnesses []Witness `json:"witnesses"`
	// Processes are processes that belong to the session, escaped ones, forged
	// and legacy markers, each with its kind.
	Processes []Process `json:"processes,omitempty"`
	// Notes say in words what is missing and what would resolve it.
	Notes []string `json:"notes,omitempty"`
	Leaf  string   `json:"leaf,omitempty"`
	Debts []string `json:"debts,omitempty"`
	// Spec is the stored specification; the values of its environment are hidden.
	Spec *SessionSpec `json:"spec,omitempty"`
}

// Witness is one independent way to tell whether something is alive.
type Witness struct {
	Name   string `json:"name"`
	Answer string `json:"answer"`
	// AgeSeconds is the time since it was asked.
	AgeSeconds float64 `json:"age_seconds"`
	Detail     string  `json:"detail,omitempty"`
}

// Process is one process of interest.
type Process struct {
	PID        int    `json:"pid"`
	UID        uint32 `json:"uid"`
	Comm       string `json:"comm"`
	Session    string `json:"session,omitempty"`
	Instance   string `json:"instance,omitempty"`
	Generation uint64 `json:"generation,omitempty"`
	// Kind is what it is to berth: wrapper, member, orphan (no lease names it),
	// escaped, forged, other (another instance of the session), legacy, foreign
	// (another host's), remains or zombie (it has ended), or stuck.
	Kind   string `json:"kind"`
	Zombie bool   `json:"zombie,omitempty"`
	Cgroup string `json:"cgroup,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Tombstone is what stays of a deleted session.
type Tombstone struct {
	Session        string        `json:"session"`
	LastGeneration uint64        `json:"last_generation"`
	Reason         string        `json:"reason"`
	By             string        `json:"by,omitempty"`
	At             time.Time     `json:"at"`
	Evidence       *ExplainReply `json:"evidence,omitempty"`
	// Saved is the directory of what was saved from the workspace, if anything was.
	Saved string `json:"saved,omitempty"`
	// Abandoned is what an operator has given up of the session without proof, who
	// that was, and why.
	Abandoned []string `json:"abandoned,omitempty"`
}

// SendRequest gives bytes to the agent's input.
type SendRequest struct {
	// Message is a client-chosen id; a repeat is answered and not written again.
	Message string `json:"message,omitempty"`
	Data    []byte `json:"data"`
	EOF     bool   `json:"eof,omitempty"`
}

// SendReply says that the wrapper has taken the bytes.
type SendReply struct {
	Generation uint64 `json:"generation"`
}

// StopRequest stops a session.
type StopRequest struct {
	Key string `json:"key,omitempty"`
	// Why is free text for the audit log.
	Why string `json:"why,omitempty"`
	// Wait blocks until the session is vacant or quarantined.
	Wait bool `json:"wait,omitempty"`
}

// StopReply is the state after the request.
type StopReply struct {
	Session Session `json:"session"`
}

// DeleteRequest deletes a session.
type DeleteRequest struct {
	Key string `json:"key,omitempty"`
	// Discard agrees to lose the work that is in a workspace that berth made.
	Discard bool `json:"discard,omitempty"`
	// Salvage saves that work on the host before the workspace goes.
	Salvage bool   `json:"salvage,omitempty"`
	Why     string `json:"why,omitempty"`
	// Wait blocks until the tombstone is written or the deletion is held up.
	Wait bool `json:"wait,omitempty"`
}

// DeleteReply says how far the deletion has come; Tombstone is set when done.
type DeleteReply struct {
	Deleting  *DeleteState `json:"deleting,omitempty"`
	Tombstone *Tombstone   `json:"tombstone,omitempty"`
}

// WaitReply is the state of a session that has ended.
type WaitReply struct {
	Session Session `json:"session"`
}

// ResolveRequest is the operator's way out of a lease that berth cannot settle.
type ResolveRequest struct {
	Key string `json:"key,omitempty"`
	// Action is "adopt": the wrapper that runs is the session's; or "abandon": nothing
	// of the session lives, or its provider will never release what it had.
	Action string `json:"action"`
	// Verified must be true: the operator has looked.
	Verified bool   `json:"verified"`
	Why      string `json:"why"`
}

// LogRecord is one line of a log stream (NDJSON).
type LogRecord struct {
	Generation uint64    `json:"generation"`
	Seq        uint64    `json:"seq"`
	At         time.Time `json:"at"`
	// Stream is stdout, stderr, pty, event or gap; a gap says in Data what is
	// missing and Seq is the first record after it.
	Stream string `json:"stream"`
	Data   []byte `json:"data"`
}

// Event is one durable change of a session (NDJSON on the events stream).
type Event struct {
	// Seq is the event's number on this host, strictly rising; it survives
	// restarts. Epoch changes when numbers can no longer be compared.
	Seq        uint64    `json:"seq"`
	At         time.Time `json:"at"`
	Session    string    `json:"session,omitempty"`
	Generation uint64    `json:"generation,omitempty"`
	Instance   string    `json:"instance,omitempty"`
	// Kind is the event's name: one of the lease events, delete_requested,
	// deleted, conflict, host_started, or gap.
	Kind   string `json:"kind"`
	State  string `json:"state,omitempty"`
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
	Detail string `json:"detail,omitempty"`
	Exit   *Exit  `json:"exit,omitempty"`
	// From and To bound what a gap has lost.
	From uint64 `json:"from,omitempty"`
	To   uint64 `json:"to,omitempty"`
}

// CapacityReply is the room on the file systems that berth uses.
type CapacityReply struct {
	Roots []Root `json:"roots"`
}

// Root is one file system root with its measure and its marks.
type Root struct {
	Name           string  `json:"name"` // workspaces, state
	Path           string  `json:"path"`
	Known          bool    `json:"known"`
	Error          string  `json:"error,omitempty"`
	FreeBytes      uint64  `json:"free_bytes"`
	TotalBytes     uint64  `json:"total_bytes"`
	FreeInodes     uint64  `json:"free_inodes"`
	TotalInodes    uint64  `json:"total_inodes"`
	ReservedBytes  uint64  `json:"reserved_bytes"`
	ReservedInodes uint64  `json:"reserved_inodes"`
	LowBytes       uint64  `json:"low_bytes"`
	LowInodes      uint64  `json:"low_inodes"`
	Low            bool    `json:"low"`
	AgeSeconds     float64 `json:"age_seconds"`
}

// GCReply judges every workspace that the caller may see. Nothing is changed.
type GCReply struct {
	// Enabled: workspaces are reclaimed when room is needed, AfterSeconds after
	// their session was released, and with IgnoredToo also with files that git
	// ignores.
	Enabled      bool          `json:"enabled"`
	AfterSeconds float64       `json:"after_seconds"`
	IgnoredToo   bool          `json:"ignored_too"`
	Workspaces   []Eligibility `json:"workspaces"`
}

// Eligibility is what would become of one workspace if room were needed.
type Eligibility struct {
	Session string `json:"session"`
	Path    string `json:"path"`
	// Eligible: it would be given up, the one released longest ago first. WhyNot
	// are all reasons against it that were found; what is not known is one.
	Eligible bool     `json:"eligible"`
	WhyNot   []string `json:"why_not,omitempty"`
	// ReleasedSeconds is how long ago the session was released; absent = never.
	ReleasedSeconds *float64 `json:"released_seconds,omitempty"`
	// Holds describes what is in it, as far as somebody has looked.
	Holds string `json:"holds,omitempty"`
}

// ScanReply lists what the host runs.
type ScanReply struct {
	Processes  []Process `json:"processes"`
	Scanned    int       `json:"scanned"`
	Unreadable int       `json:"unreadable"`
	TookMillis float64   `json:"took_millis"`
}

// ProvidersReply lists the providers.
type ProvidersReply struct {
	Providers []Provider `json:"providers"`
}

// Provider is one configured provider and its process.
type Provider struct {
	Kind         string    `json:"kind"`
	Version      string    `json:"version,omitempty"`
	State        string    `json:"state"`
	PID          int       `json:"pid,omitempty"`
	Capabilities []string  `json:"capabilities"`
	Restarts     int       `json:"restarts"`
	LastError    string    `json:"last_error,omitempty"`
	Since        time.Time `json:"since"`
}

// StatusReply is the daemon's account of itself.
type StatusReply struct {
	Version   string    `json:"version"`
	HostID    string    `json:"host_id"`
	Epoch     string    `json:"epoch"`
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"started_at"`
	// State is "reconciling", "ready" or "degraded"; Problems say why.
	State    string   `json:"state"`
	Problems []string `json:"problems,omitempty"`
	// Drain is set while nothing is started on the host.
	Drain *Drain `json:"drain,omitempty"`
	// Cgroup is v2, hybrid or none, with its path; Evidence is strong or weak.
	Cgroup     string `json:"cgroup"`
	CgroupPath string `json:"cgroup_path,omitempty"`
	Evidence   string `json:"evidence"`
	// Leaves is scope, subtree or none: what a session that is started now gets
	// as its leaf. LeavesReason says why that is no scope, or what is wrong.
	Leaves       string         `json:"leaves"`
	LeavesReason string         `json:"leaves_reason,omitempty"`
	Sessions     map[string]int `json:"sessions"` // by state
	Adoption     map[string]int `json:"adoption"` // by adoption state
	Journal      JournalStatus  `json:"journal"`
	StateDir     string         `json:"state_dir"`
	// Stale counts events that were about another instance, attempt or timer.
	Stale uint64 `json:"stale_events"`
	// Log is journald, text or json; LogDropped counts entries that journald did
	// not take.
	Log        string `json:"log"`
	LogDropped uint64 `json:"log_dropped"`
}

// Drain says that nothing is started on the host, by whose wish and why.
type Drain struct {
	By    string    `json:"by,omitempty"`
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
}

// DrainRequest asks that nothing be started any more, until undrain.
type DrainRequest struct {
	Key string `json:"key,omitempty"`
	// Kill also stops all sessions; without it they go on.
	Kill bool `json:"kill,omitempty"`
	// Wait blocks until no session runs or is being stopped, quarantined ones aside.
	Wait bool   `json:"wait,omitempty"`
	Why  string `json:"why,omitempty"`
}

// UndrainRequest asks that sessions may be started again.
type UndrainRequest struct {
	Key string `json:"key,omitempty"`
}

// Operation is one request that had an operation key.
type Operation struct {
	// UID is the caller's; keys are per user and kind. Kind is start, stop, delete,
	// resolve, drain or undrain.
	UID     uint32 `json:"uid"`
	Kind    string `json:"kind"`
	Key     string `json:"key"`
	Session string `json:"session,omitempty"`
	// Generation is the newest of the session when it was asked for.
	Generation uint64 `json:"generation,omitempty"`
	// State is open (under way), done, failed, or reconcile_pending: what became of
	// it is not known, since the record of its session was lost.
	State string `json:"state"`
	// Result is the recorded answer, which every repeat gets; ErrorCode and Message
	// are the recorded refusal.
	Result    json.RawMessage `json:"result,omitempty"`
	ErrorCode Code            `json:"error_code,omitempty"`
	Message   string          `json:"message,omitempty"`
	// Conflicts counts requests with the same key that asked for something else.
	Conflicts uint64 `json:"conflicts,omitempty"`
	// At is when it was asked for, or answered.
	At time.Time `json:"at"`
}

// OperationsReply lists operations by user, kind and key.
type OperationsReply struct {
	Operations []Operation `json:"operations"`
	// Truncated: there are more; ask for less.
	Truncated bool `json:"truncated,omitempty"`
}

// DrainReply is the host's state after drain and undrain.
type DrainReply struct {
	// Drain is absent when sessions may be started.
	Drain    *Drain         `json:"drain,omitempty"`
	Sessions map[string]int `json:"sessions"` // by state
}

// JournalStatus is the journal's account of itself.
type JournalStatus struct {
	Healthy         bool    `json:"healthy"`
	Error           string  `json:"error,omitempty"`
	LastSeq         uint64  `json:"last_seq"`
	Commits         uint64  `json:"commits"`
	Records         uint64  `json:"records"`
	LastFsyncMicros float64 `json:"last_fsync_micros"`
	// Recovery is what the last start found, in words; empty = nothing unusual.
	Recovery []string `json:"recovery,omitempty"`
}

// VersionReply names the programs.
type VersionReply struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	API      int    `json:"api"`
	Wrapper  int    `json:"wrapper_protocol"`
	Contract int    `json:"provider_contract"`
}
