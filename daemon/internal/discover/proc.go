package discover

import (
	"fmt"
	"time"
)

// Kind says what a process shows of itself. It is a claim, not a fact: any process may write any marker
// into its own environment.
type Kind uint8

// Kinds. Zero is a process without a marker.
const (
	// Unmarked processes appear only in the answer of Look.
	Unmarked Kind = iota
	// Member carries our host, a session, an instance and a generation: a wrapper, or anything that one
	// started, since environments are inherited.
	Member
	// Legacy carries a session without our host or without a usable instance pair, or matches one of the
	// operator's rules.
	Legacy
	// Foreign carries another host's marker. Another daemon owns it.
	Foreign
	// Remains is what is left of a process in our cgroup tree: a zombie, or one that is being taken down.
	// No memory, so no marker.
	Remains
)

var kindNames = [...]string{Unmarked: "unmarked", Member: "member", Legacy: "legacy", Foreign: "foreign", Remains: "remains"}

// String returns the kind in lower case.
func (k Kind) String() string { return name(kindNames[:], int(k)) }

// MarshalText makes the kind readable in JSON.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (k *Kind) UnmarshalText(b []byte) error {
	i, err := index(kindNames[:], string(b))
	*k = Kind(i)
	return err
}

// State is the scheduler's letter for a process, proc_pid_stat(5): R S D Z T t X I and others.
type State byte

// String returns the letter.
func (s State) String() string { return string(rune(s)) }

// MarshalText makes the state readable in JSON; zero is the empty string.
func (s State) MarshalText() ([]byte, error) {
	if s == 0 {
		return nil, nil
	}
	return []byte{byte(s)}, nil
}

// UnmarshalText is the inverse of MarshalText.
func (s *State) UnmarshalText(b []byte) error {
	switch len(b) {
	case 0:
		*s = 0
	case 1:
		*s = State(b[0])
	default:
		return fmt.Errorf("parsing process state %q: not one letter", b)
	}
	return nil
}

// Proc is one process as a scan saw it. All facts but the environment were read behind one descriptor of
// its /proc directory, so they belong to one process even when its pid was reused meanwhile.
type Proc struct {
	PID        int    `json:"pid"`
	PPID       int    `json:"ppid"`
	StartTicks uint64 `json:"start_ticks"` // clock ticks since boot, /proc/PID/stat field 22
	UID        uint32 `json:"uid"`         // effective
	State      State  `json:"state,omitempty"`
	Zombie     bool   `json:"zombie,omitempty"` // the whole process has exited, not merely its first thread
	Comm       string `json:"comm"`
	Kind       Kind   `json:"kind"`

	Host       string `json:"host,omitempty"`
	Session    string `json:"session,omitempty"`    // "" when a legacy marker holds no usable id
	Instance   string `json:"instance,omitempty"`   // "" unless Kind is Member or Foreign
	Generation uint64 `json:"generation,omitempty"` // 0 unless Kind is Member or Foreign
	Rule       string `json:"rule,omitempty"`       // the operator's rule that made it Legacy

	// Cgroup is the path in the v2 hierarchy as the kernel prints it, without a " (deleted)" mark; ""
	// where there is no v2 hierarchy.
	Cgroup string `json:"cgroup,omitempty"`
}

// Reason says why a process could not be judged.
type Reason uint8

// Reasons. Zero is invalid.
const (
	_ Reason = iota
	// Unreadable: the kernel refuses us its environment although its uid is within our scope.
	Unreadable
	// Empty: it lives, should have an environment, and none was to be had in any of the tries.
	Empty
	// TooBig: no marker within the first 2 MiB and there is more.
	TooBig
	// Stalled: a read of it is blocked in the kernel, now or since an earlier scan.
	Stalled
)

var reasonNames = [...]string{"", Unreadable: "unreadable", Empty: "empty", TooBig: "too_big", Stalled: "stalled"}

// String returns the reason in lower case.
func (r Reason) String() string { return name(reasonNames[:], int(r)) }

// MarshalText makes the reason readable in JSON.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (r *Reason) UnmarshalText(b []byte) error {
	i, err := index(reasonNames[:], string(b))
	*r = Reason(i)
	return err
}

// UnknownUID stands for a uid that could not be read.
const UnknownUID = ^uint32(0)

// Opaque is a live process within the scope whose markers could not be seen. It may be anybody's.
type Opaque struct {
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"start_ticks,omitempty"` // 0 when it could not be read
	UID        uint32 `json:"uid"`                   // effective, or UnknownUID
	Comm       string `json:"comm,omitempty"`
	Cgroup     string `json:"cgroup,omitempty"` // as in Proc
	Reason     Reason `json:"reason"`
}

// Result is what one scan saw.
type Result struct {
	Procs  []Proc   `json:"procs"`  // processes with a marker, by pid; nil when there are none
	Opaque []Opaque `json:"opaque"` // processes that could not be judged, by pid; nil when there are none

	Scanned    int `json:"scanned"`      // processes looked at, those of the next lines included
	Unreadable int `json:"unreadable"`   // in Opaque, for that reason
	Empty      int `json:"empty"`        // in Opaque, for that reason
	Zombies    int `json:"zombies"`      // exited and not reaped, anybody's
	Vanished   int `json:"vanished"`     // listed by readdir, gone when asked
	OutOfScope int `json:"out_of_scope"` // of a uid that the daemon cannot own

	// Quiet: no process or thread was made in this pid namespace while the scan ran, so the list was
	// exact and nobody can have outrun it. Rare on a busy machine.
	Quiet bool          `json:"quiet"`
	At    time.Duration `json:"at_ns"`   // boottime at its beginning
	Took  time.Duration `json:"took_ns"` //
}

func name(names []string, i int) string {
	if i < len(names) && names[i] != "" {
		return names[i]
	}
	return "invalid"
}

func index(names []string, s string) (int, error) {
	for i, n := range names {
		if n != "" && n == s {
			return i, nil
		}
	}
	return 0, fmt.Errorf("parsing %q: not one of %q", s, names)
}
