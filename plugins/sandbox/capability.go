package sandbox

import "slices"

// Capability is one thing that a provider can do. Gates ask for capabilities,
// never for a provider's name.
type Capability string

// The closed set of capabilities.
const (
	Terminal        Capability = "terminal"
	Devcontainer    Capability = "devcontainer"
	EgressProxy     Capability = "egress_proxy"
	LimitsCPU       Capability = "limits_cpu"
	LimitsMemory    Capability = "limits_memory"
	LimitsPids      Capability = "limits_pids"
	LimitsDisk      Capability = "limits_disk"
	NetworkNone     Capability = "network_none"
	NetworkFiltered Capability = "network_filtered"
	Pause           Capability = "pause"
	Snapshot        Capability = "snapshot"
	Rootless        Capability = "rootless"
	WakeFreeObserve Capability = "wake_free_observe"
)

// Capabilities is a set of capabilities, sorted, without repeats.
type Capabilities []Capability

// Has reports whether c is in the set.
func (s Capabilities) Has(c Capability) bool { return slices.Contains(s, c) }

// Missing returns those of want that the set lacks, in want's order; nil when
// it has them all.
func (s Capabilities) Missing(want []Capability) []Capability {
	var missing []Capability
	for _, c := range want {
		if !s.Has(c) {
			missing = append(missing, c)
		}
	}
	return missing
}
