package lease

import "fmt"

// Reason says why a stop was asked for. The set is closed. The numbers may
// change between versions; what is written to disk is the name.
type Reason uint8

// The reasons. The zero Reason is invalid in a stop and means "no stop was
// asked for" in an effect.
const (
	ReadinessFailed Reason = iota + 1
	StartupFailed
	Unhealthy
	TerminalFailed
	TerminalCompleted
	TerminalEnded
	TerminalInterrupted
	IdleTimeout
	KeepWarmExpired
	UserInterrupt
	SessionDelete
	UnexpectedWrapper
	ObservationFailed
	LimitExceeded
	HostDrain
	Operator
	reasonEnd
)

// Scope is the set of targets that a reason may come with.
type Scope uint8

// The scopes. The zero Scope is invalid.
const (
	ScopeInstance Scope = iota + 1 // exactly the instance that the lease names
	ScopeSession                   // the whole session, from vacant too
	ScopeEither
)

// Emission is the row of one reason in the table of who emits it. Reduce
// refuses a stop that does not fit its row.
type Emission struct {
	Name    string // in records, replies and logs
	Emitter string // which part of the daemon asks, on what grounds; for people
	Scope   Scope
	Only    Kind // the one owned kind in which the reason still holds; 0 = any owned kind
	Paused  bool // a verdict of a clock that stands still while berth itself froze the session
}

var emissions = [reasonEnd]Emission{
	ReadinessFailed:     {"readiness_failed", "engine: ready deadline passed, or the agent's protocol did not come up", ScopeInstance, Ready, false},
	StartupFailed:       {"startup_failed", "engine: startup deadline passed, or the launch of this instance failed", ScopeInstance, Starting, false},
	Unhealthy:           {"unhealthy", "liveness: link lost beyond the reconnect window, or a busy agent without output", ScopeInstance, 0, true},
	TerminalFailed:      {"terminal_failed", "messages: the batch ended in failure", ScopeInstance, 0, false},
	TerminalCompleted:   {"terminal_completed", "messages: the batch completed and the session is not kept warm", ScopeInstance, 0, false},
	TerminalEnded:       {"terminal_ended", "wrapper: the child of a command or terminal session exited", ScopeInstance, 0, false},
	TerminalInterrupted: {"terminal_interrupted", "messages: the batch ended by an interrupt", ScopeInstance, 0, false},
	IdleTimeout:         {"idle_timeout", "liveness: active without activity for the idle time", ScopeInstance, Active, true},
	KeepWarmExpired:     {"keep_warm_expired", "engine: keep-warm deadline passed", ScopeInstance, Warm, false},
	UserInterrupt:       {"user_interrupt", "api: an interrupt that the soft cancel did not settle", ScopeInstance, 0, false},
	SessionDelete:       {"session_delete", "engine: a deletion intent is on disk", ScopeSession, 0, false},
	UnexpectedWrapper:   {"unexpected_wrapper", "engine: an observation showed a wrapper that the lease does not name, or more than one", ScopeSession, 0, false},
	ObservationFailed:   {"observation_failed", "engine: a witness could not answer before a start; recovery: a record did not decode", ScopeSession, 0, false},
	LimitExceeded:       {"limit_exceeded", "wrapper or engine: absolute session limit, turn cap or resource limit reached", ScopeInstance, 0, false},
	HostDrain:           {"host_drain", "api: drain with kill", ScopeSession, 0, false},
	Operator:            {"operator", "api: stop asked for by a client or an operator", ScopeEither, 0, false},
}

// Reasons returns every valid reason in its fixed order; the slice is the
// caller's.
func Reasons() []Reason {
	all := make([]Reason, 0, reasonEnd-1)
	for r := ReadinessFailed; r < reasonEnd; r++ {
		all = append(all, r)
	}
	return all
}

// Valid reports whether r is one of the reasons.
func (r Reason) Valid() bool { return r > 0 && r < reasonEnd }

// Emission returns r's row of the table of emitters, the zero row for an
// invalid reason.
func (r Reason) Emission() Emission {
	if !r.Valid() {
		return Emission{}
	}
	return emissions[r]
}

// String returns the name used in records, replies and logs; "none" for 0 and
// "reason(N)" for a number outside the set.
func (r Reason) String() string {
	switch {
	case r == 0:
		return "none"
	case !r.Valid():
		return fmt.Sprintf("reason(%d)", uint8(r))
	}
	return emissions[r].Name
}

// ParseReason is the inverse of String for valid reasons; any other name is
// ErrUnknownName.
func ParseReason(name string) (Reason, error) {
	for r := ReadinessFailed; r < reasonEnd; r++ {
		if emissions[r].Name == name {
			return r, nil
		}
	}
	return 0, fmt.Errorf("parsing stop reason %q: %w", name, ErrUnknownName)
}

// admits reports whether a stop with this scope may be aimed at t.
func (c Scope) admits(t Target) bool {
	switch c {
	case ScopeInstance:
		return t.Instance.Whole()
	case ScopeSession:
		return t.Whole()
	case ScopeEither:
		return t.Whole() || t.Instance.Whole()
	}
	return false
}
