package scope

import (
	"math"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// Unit is one scope. See systemd.scope(5), systemd.resource-control(5) and, for the names that its
// properties have on the bus, org.freedesktop.systemd1(5).
type Unit struct {
	Name        string // ends in .scope
	Slice       string // ends in .slice
	Description string
	// PID is the process that is in the cgroup of that name already.
	PID int
	// StopTimeout is what passes between TERM and KILL when systemd stops the scope.
	StopTimeout time.Duration
	// Limits of everything in the scope; 0 = none.
	Tasks, MemoryBytes uint64
	CPUPercent         uint64 // 100 is one processor
}

type property = systemd.Property

// oomPolicySince is the version of systemd that has OOMPolicy= for scopes.
const oomPolicySince = 253

// properties are the unit's on the bus of a systemd of that version.
func (u *Unit) properties(version int) []property {
	set := func(name string, value any) property { return property{Name: name, Value: dbus.MakeVariant(value)} }
	unlimited := func(n uint64) uint64 {
		if n == 0 {
			return math.MaxUint64
		}
		return n
	}
	all := []property{
		set("Description", u.Description),
		set("Documentation", []string{"man:berthd(8)"}),
		set("Slice", u.Slice),
		set("PIDs", []uint32{uint32(u.PID)}),
		set("Delegate", true),
		set("CollectMode", "inactive-or-failed"), // nobody has to reset a failed one
		set("TimeoutStopUSec", uint64(u.StopTimeout.Microseconds())),
		set("CPUAccounting", true),
		set("MemoryAccounting", true),
		set("TasksAccounting", true),
		// Without it the manager's default counts, 15 % of what the kernel allows.
		set("TasksMax", unlimited(u.Tasks)),
	}
	if u.MemoryBytes != 0 {
		all = append(all, set("MemoryMax", u.MemoryBytes))
	}
	if u.CPUPercent != 0 {
		all = append(all, set("CPUQuotaPerSecUSec", u.CPUPercent*10_000))
	}
	if version >= oomPolicySince {
		// The default stops the whole scope when the kernel has killed one process in it.
		all = append(all, set("OOMPolicy", "continue"))
	}
	return all
}
