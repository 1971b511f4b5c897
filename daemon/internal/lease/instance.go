package lease

import "fmt"

// Instance names one physical wrapper: a random id and a generation that no
// other instance of the session ever had or will have. Two instances are the
// same only if both agree.
type Instance struct {
	ID         string // 32 hexadecimal characters; the package does not look inside
	Generation uint64 // from 1; 0 = no instance
}

// IsZero reports whether i names nothing.
func (i Instance) IsZero() bool { return i == Instance{} }

// Whole reports whether both halves of the name are there.
func (i Instance) Whole() bool { return i.ID != "" && i.Generation != 0 }

// String returns "ID/gN", or "none".
func (i Instance) String() string {
	if i.IsZero() {
		return "none"
	}
	return fmt.Sprintf("%s/g%d", i.ID, i.Generation)
}

// Target is what a stop is for: one instance, or with the zero Instance the
// whole session, that is whatever lives under the session's name.
type Target struct {
	Instance Instance
}

// Whole reports whether the target is the whole session.
func (t Target) Whole() bool { return t.Instance.IsZero() }

// String returns "session", or the instance.
func (t Target) String() string {
	if t.Whole() {
		return "session"
	}
	return t.Instance.String()
}
