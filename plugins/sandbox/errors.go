package sandbox

import "fmt"

// Reason is why a provider cannot serve. The set is closed.
type Reason string

// The reasons, as they travel.
const (
	NotConfigured         Reason = "not_configured"
	AuthFailed            Reason = "auth_failed"
	RuntimeNotRunning     Reason = "runtime_not_running"
	CreationFailed        Reason = "creation_failed"
	CreationUnsettled     Reason = "creation_unsettled"
	ConfigurationDrift    Reason = "configuration_drift"
	InfrastructureFailed  Reason = "infrastructure_failed"
	DeletedDuringWork     Reason = "deleted_during_work"
	MaxDuration           Reason = "max_duration"
	CapabilityUnavailable Reason = "capability_unavailable"
	// InvalidRequest is a request that can never succeed as it is.
	InvalidRequest Reason = "invalid_request"
)

// Error is a failure with a reason that gates and people can act on. It
// crosses the plugin boundary whole.
type Error struct {
	Reason  Reason `json:"reason"`
	Message string `json:"message"`
	// Retryable says that the same request may succeed later.
	Retryable bool `json:"retryable"`
}

// Error returns the message with its reason.
func (e *Error) Error() string { return fmt.Sprintf("%s (%s)", e.Message, e.Reason) }
