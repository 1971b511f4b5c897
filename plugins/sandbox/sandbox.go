// Package sandbox is the contract between berthd and its sandbox providers.
//
// It owns the words of that conversation: what a provider is asked (Prepare,
// Observe, Release), what it answers (Recipe, Observation), what it can do
// (Capabilities) and how it fails (Error). It knows nothing of transport,
// processes or leases, and imports only the standard library, so that a
// provider outside this repository depends on nothing else. The daemon speaks
// it through plugins/host, a provider through plugins/sandbox/serve.
package sandbox

import "context"

// Version is the contract version that this package describes. It grows only
// with incompatible changes; additions leave it alone, and unknown fields of a
// newer peer are ignored.
const Version = 1

// Handle names one sandbox. The daemon derives it from (host, session,
// generation), so that Prepare and Release are idempotent by it even before
// their results are known to anybody. At most 255 bytes of [A-Za-z0-9_.-].
type Handle string

// Provider builds, observes and releases sandboxes of one kind. It never
// starts the wrapper: Prepare returns a Recipe and the daemon launches it.
// Every method may be called concurrently, and honours ctx.
type Provider interface {
	// Describe says what the provider is and can do. It has no side effect and
	// its answer does not change while the provider process lives.
	Describe(ctx context.Context) (Description, error)
	// Prepare makes the sandbox named by the request's handle ready and returns
	// how to enter it. Called again with the same request it returns an
	// equivalent recipe and makes nothing twice.
	Prepare(ctx context.Context, req PrepareRequest) (Recipe, error)
	// Observe tells whether anything of the sandbox exists, without waking,
	// extending, repairing or deleting it.
	Observe(ctx context.Context, h Handle) (Observation, error)
	// Release gives back everything that Prepare made. Releasing an unknown
	// handle succeeds. It returns only after what it reports is true.
	Release(ctx context.Context, h Handle) (ReleaseResult, error)
}

// Description is a provider's account of itself.
type Description struct {
	// Kind is the provider's name in the configuration, for example "process".
	Kind string `json:"kind"`
	// Version is the provider's own version, for people.
	Version string `json:"version"`
	// Contract is the contract version that it was built for (Version).
	Contract int `json:"contract"`
	// Capabilities is what it can do; see the Capability constants.
	Capabilities Capabilities `json:"capabilities"`
}

// PrepareRequest asks for one sandbox.
type PrepareRequest struct {
	Handle     Handle `json:"handle"`
	Host       string `json:"host"`
	Session    string `json:"session"`
	Instance   string `json:"instance"`
	Generation uint64 `json:"generation"`
	// Workspace is the absolute path of the session's directory, which exists
	// and belongs to UID.
	Workspace string `json:"workspace"`
	// Command is the agent's argv; never empty.
	Command []string `json:"command"`
	// Env is the agent's environment beyond what the daemon and the provider
	// add, as "NAME=value".
	Env []string `json:"env,omitempty"`
	// UID, GID and Groups are who the agent runs as.
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	// Home is the home directory that the agent is told of.
	Home string `json:"home"`
	// Terminal says that the agent gets a pseudo terminal.
	Terminal bool   `json:"terminal,omitempty"`
	Limits   Limits `json:"limits"`
}

// Limits bounds what a sandbox may use; zero means no limit of berth's own.
type Limits struct {
	// Processes bounds the number of processes and threads.
	Processes uint64 `json:"processes,omitempty"`
	// MemoryBytes bounds resident memory.
	MemoryBytes uint64 `json:"memory_bytes,omitempty"`
	// CPUPercent bounds processor time; 100 is one processor.
	CPUPercent uint64 `json:"cpu_percent,omitempty"`
	// OpenFiles bounds the descriptors of each process.
	OpenFiles uint64 `json:"open_files,omitempty"`
}

// Recipe says how to start the agent inside its sandbox. It is data: the
// wrapper applies it, the daemon records its digest.
type Recipe struct {
	// Version is the contract version, Version.
	Version int `json:"version"`
	// Argv is what the wrapper executes; Argv[0] is looked up in PATH of Env
	// when it holds no slash.
	Argv []string `json:"argv"`
	// Env is the whole environment, as "NAME=value". The daemon adds its
	// markers; nothing is inherited.
	Env []string `json:"env"`
	// Dir is the working directory, absolute.
	Dir string `json:"dir"`
	// SetIDs asks for UID, GID and Groups to be set before Argv runs; without
	// it the wrapper's own are kept.
	SetIDs bool     `json:"set_ids,omitempty"`
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	// NoNewPrivileges sets PR_SET_NO_NEW_PRIVS (prctl(2)).
	NoNewPrivileges bool `json:"no_new_privileges,omitempty"`
	// Rlimits are set before Argv runs.
	Rlimits []Rlimit `json:"rlimits,omitempty"`
	// Cgroup are limits that the daemon sets on the leaf's work cgroup where
	// the controllers exist.
	Cgroup Limits `json:"cgroup"`
	// Umask is the file mode creation mask; 0 means 0022.
	Umask uint32 `json:"umask,omitempty"`
}

// Rlimit is one resource limit, named as in setrlimit(2) without the prefix,
// for example "nproc".
type Rlimit struct {
	Name string `json:"name"`
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

// Presence is a provider's answer about a sandbox. The zero value is invalid.
type Presence string

// The closed set of answers. Unknown is an answer; an error is not absence.
const (
	Absent  Presence = "absent"
	Present Presence = "present"
	Unknown Presence = "unknown"
)

// Observation is what Observe saw.
type Observation struct {
	Presence Presence `json:"presence"`
	// Detail is one line for people.
	Detail string `json:"detail,omitempty"`
	// Cgroups lists the cgroup directories, in any hierarchy, that the provider
	// made beyond the leaf.
	Cgroups []string `json:"cgroups,omitempty"`
}

// ReleaseResult says how a release ended.
type ReleaseResult struct {
	// Detail is one line for people.
	Detail string `json:"detail,omitempty"`
}
