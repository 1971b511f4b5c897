package evidence

import (
	"path"
	"time"

	"github.com/berthd/berth/daemon/internal/discover"
	"github.com/berthd/berth/daemon/internal/sys"
)

// Subject is what a verdict is about. Instance and Generation name one instance; both zero mean the
// session as a whole, every instance of it and what older software runs under its name.
type Subject struct {
	HostID     string `json:"host"`
	Session    string `json:"session"`
	Instance   string `json:"instance,omitempty"`
	Generation uint64 `json:"generation,omitempty"`

	OwnerUID  uint32 `json:"owner_uid"`  // the session's: its agent
	DaemonUID uint32 `json:"daemon_uid"` // the daemon's: its wrapper

	// The leaf, as the lease recorded it when it was made. LeafName may be empty when LeafPath, its
	// directory, is not. LeafParentInode is that of the tree it was made in.
	LeafName        string `json:"leaf_name,omitempty"`
	LeafPath        string `json:"leaf_path,omitempty"`
	LeafParentInode uint64 `json:"leaf_parent_inode,omitempty"`

	// CgroupPaths are further directories, of any hierarchy, that the subject's processes may be in and
	// that the leaf does not cover. Each must be gone or empty.
	CgroupPaths []string `json:"cgroup_paths,omitempty"`

	Weak      bool `json:"weak,omitempty"`      // no leaf was made: there is none to ask
	Escapable bool `json:"escapable,omitempty"` // the agent may leave its leaf: it shares the daemon's uid

	// LockPath is the generation's lock file, an absolute path; "" when there can be none.
	LockPath string `json:"lock_path,omitempty"`

	Wrapper sys.Identity `json:"wrapper"` // zero when it was never recorded

	// Since is the boottime at which the intent for the instance was recorded; 0 is unknown. A process
	// that is older cannot belong to it, even if it hides its markers.
	Since time.Duration `json:"since_ns,omitempty"`

	// What the caller knows of the other witnesses, and since when. Unknown when it knows nothing.
	Link       Answer        `json:"link"`
	LinkAt     time.Duration `json:"link_at_ns,omitempty"`
	Provider   Answer        `json:"provider"`
	ProviderAt time.Duration `json:"provider_at_ns,omitempty"`

	// Remote: the work runs where no leaf of this machine covers it, so the provider has to answer too.
	Remote bool `json:"remote,omitempty"`
}

func (s *Subject) leafName() string {
	if s.LeafName == "" && s.LeafPath != "" {
		return path.Base(s.LeafPath)
	}
	return s.LeafName
}

// fenced: the subject's processes are held together by a leaf that can be asked.
func (s *Subject) fenced() bool { return !s.Weak && s.leafName() != "" }

// needsMarkers: absence needs a marker scan.
func (s *Subject) needsMarkers() bool { return !s.fenced() || s.Escapable }

func (s *Subject) whole() bool { return s.Instance == "" }

// Strengths of a verdict.
const (
	Strong = "strong" // a leaf was the fence
	Weak   = "weak"   // there was none: locks, pids and markers are all there is, and a program can get away
)

// Stuck is a process that the kernel keeps in an uninterruptible sleep, where no signal reaches it.
type Stuck struct {
	discover.Proc
	Wchan string `json:"wchan,omitempty"` // the kernel function it sleeps in, "" when the kernel does not say
}

// Judgement is what Judge makes of the answers.
type Judgement struct {
	// Verdict is Absent when nothing of the subject lives, Present when exactly its wrapper is there and
	// all that should hold does: its process is verified, its leaf is populated and its lock is held.
	// Everything between is Unknown.
	Verdict Answer `json:"verdict"`
	// Alive: something of the subject lives for certain. True with Present; with Unknown it tells a
	// remainder (the wrapper is gone, its agent is not) from mere doubt.
	Alive    bool   `json:"alive"`
	Strength string `json:"strength"`         // Strong or Weak
	Reason   string `json:"reason,omitempty"` // why the verdict is not Absent, or, when it is, on what it rests
}

// Report is a Judgement with everything it rests on. Lists are nil when empty.
type Report struct {
	Subject Subject `json:"subject"`
	Judgement
	At        time.Duration `json:"at_ns"` // boottime when the first witness was asked
	Witnesses []Witness     `json:"witnesses"`

	// Wrapper is the one process that matches exactly; nil unless the Verdict is Present.
	Wrapper *sys.Identity `json:"wrapper,omitempty"`

	Members []discover.Proc   `json:"members,omitempty"` // ours: in the leaf, or, where there is none, by marker and uid
	Escaped []discover.Proc   `json:"escaped,omitempty"` // ours and outside of all leaves although there is one
	Forged  []discover.Proc   `json:"forged,omitempty"`  // carry our marker and cannot be ours
	Legacy  []discover.Proc   `json:"legacy,omitempty"`  // the session's name without an instance, outside of all leaves
	Others  []discover.Proc   `json:"others,omitempty"`  // other instances of the session, outside of all leaves
	Zombies []discover.Proc   `json:"zombies,omitempty"` // ours, exited and not reaped by their parent
	Stuck   []Stuck           `json:"stuck,omitempty"`
	Opaque  []discover.Opaque `json:"opaque,omitempty"` // may be ours and could not be judged

	Scan *Scan `json:"scan,omitempty"` // nil when there was none
}

// Scan says how complete the marker scan was.
type Scan struct {
	At      time.Duration `json:"at_ns"`
	Took    time.Duration `json:"took_ns"`
	Scanned int           `json:"scanned"`
	Quiet   bool          `json:"quiet"` // nothing was forked meanwhile: nobody can have outrun it
}
