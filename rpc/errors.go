package rpc

import (
	"fmt"
	"net/http"
	"time"
)

// Code names a refusal. The set is closed; PROTOCOL.md lists it.
type Code string

// The codes, as they travel.
const (
	CodeInvalidRequest     Code = "INVALID_REQUEST"
	CodeTooLarge           Code = "TOO_LARGE"
	CodeUnknownMethod      Code = "UNKNOWN_METHOD"
	CodeForbidden          Code = "FORBIDDEN"
	CodeNotFound           Code = "NOT_FOUND"
	CodeSpecConflict       Code = "SPEC_CONFLICT"
	CodeOperationConflict  Code = "OPERATION_CONFLICT"
	CodeReconcilePending   Code = "RECONCILE_PENDING"
	CodeQuota              Code = "QUOTA_EXCEEDED"
	CodeDeleting           Code = "DELETING"
	CodeSessionDeleted     Code = "SESSION_DELETED"
	CodeCleanupPending     Code = "CLEANUP_PENDING"
	CodeWorkspaceInUse     Code = "WORKSPACE_IN_USE"
	CodeWorkspaceMissing   Code = "WORKSPACE_MISSING"
	CodeDirty              Code = "WORKSPACE_HAS_WORK"
	CodeUnprepared         Code = "WORKSPACE_UNPREPARED"
	CodeCapacityRejected   Code = "CAPACITY_REJECTED"
	CodeCapacityUnknown    Code = "CAPACITY_UNKNOWN"
	CodeFilesystemUnusable Code = "FILESYSTEM_UNUSABLE"
	CodeCapability         Code = "CAPABILITY_UNAVAILABLE"
	CodeAllocationRetired  Code = "ALLOCATION_RETIRED"
	CodeProvider           Code = "PROVIDER_UNAVAILABLE"
	CodeStartFailed        Code = "START_FAILED"
	CodeNotRunning         Code = "NOT_RUNNING"
	CodeUnreachable        Code = "WRAPPER_UNREACHABLE"
	CodeBusy               Code = "BUSY"
	CodeJournal            Code = "JOURNAL_FAILED"
	CodeReconciling        Code = "RECONCILING"
	CodeDraining           Code = "HOST_DRAINING"
	CodeDegraded           Code = "DEGRADED"
	CodeInternal           Code = "INTERNAL"
)

// Error is a refusal. It says what was refused, why, and what to do next.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Retryable says that the same request may succeed later, not before
	// RetryAfter where that is set.
	Retryable  bool          `json:"retryable"`
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	// Details are values for programs, by name.
	Details map[string]any `json:"details,omitempty"`
}

// Error returns the message with its code.
func (e *Error) Error() string { return fmt.Sprintf("%s (%s)", e.Message, e.Code) }

// Errorf makes a refusal that is not retryable.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// httpStatus maps every code to its HTTP status; a code that is not here is a
// bug that a test finds.
var httpStatus = map[Code]int{
	CodeInvalidRequest:     http.StatusBadRequest,
	CodeTooLarge:           http.StatusRequestEntityTooLarge,
	CodeUnknownMethod:      http.StatusNotFound,
	CodeForbidden:          http.StatusForbidden,
	CodeNotFound:           http.StatusNotFound,
	CodeSpecConflict:       http.StatusConflict,
	CodeOperationConflict:  http.StatusConflict,
	CodeReconcilePending:   http.StatusConflict,
	CodeQuota:              http.StatusTooManyRequests,
	CodeDeleting:           http.StatusGone,
	CodeSessionDeleted:     http.StatusGone,
	CodeCleanupPending:     http.StatusConflict,
	CodeWorkspaceInUse:     http.StatusConflict,
	CodeWorkspaceMissing:   http.StatusConflict,
	CodeDirty:              http.StatusConflict,
	CodeUnprepared:         http.StatusUnprocessableEntity,
	CodeCapacityRejected:   http.StatusInsufficientStorage,
	CodeCapacityUnknown:    http.StatusInsufficientStorage,
	CodeFilesystemUnusable: http.StatusInsufficientStorage,
	CodeCapability:         http.StatusUnprocessableEntity,
	CodeAllocationRetired:  http.StatusUnprocessableEntity,
	CodeProvider:           http.StatusServiceUnavailable,
	CodeStartFailed:        http.StatusUnprocessableEntity,
	CodeNotRunning:         http.StatusConflict,
	CodeUnreachable:        http.StatusServiceUnavailable,
	CodeBusy:               http.StatusTooManyRequests,
	CodeJournal:            http.StatusServiceUnavailable,
	CodeReconciling:        http.StatusServiceUnavailable,
	CodeDraining:           http.StatusServiceUnavailable,
	CodeDegraded:           http.StatusServiceUnavailable,
	CodeInternal:           http.StatusInternalServerError,
}
