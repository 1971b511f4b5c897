package engine

import (
	"fmt"
	"time"
)

// Code names a refusal; the api package maps each to the code of the same name
// in package rpc.
type Code string

// The refusals that the engine decides.
const (
	codeNotFound           Code = "NOT_FOUND"
	codeForbidden          Code = "FORBIDDEN"
	codeSpecConflict       Code = "SPEC_CONFLICT"
	codeInvalid            Code = "INVALID_REQUEST"
	codeOperationConflict  Code = "OPERATION_CONFLICT"
	codeReconcilePending   Code = "RECONCILE_PENDING"
	codeQuota              Code = "QUOTA_EXCEEDED"
	codeDeleting           Code = "DELETING"
	codeSessionDeleted     Code = "SESSION_DELETED"
	codeCleanupPending     Code = "CLEANUP_PENDING"
	codeWorkspaceInUse     Code = "WORKSPACE_IN_USE"
	codeCapacityRejected   Code = "CAPACITY_REJECTED"
	codeCapacityUnknown    Code = "CAPACITY_UNKNOWN"
	codeFilesystemUnusable Code = "FILESYSTEM_UNUSABLE"
	codeStartFailed        Code = "START_FAILED"
	codeJournal            Code = "JOURNAL_FAILED"
	codeReconciling        Code = "RECONCILING"
	codeDraining           Code = "HOST_DRAINING"
	codeAllocationRetired  Code = "ALLOCATION_RETIRED"
)

// Refusal says that a request was refused and changed nothing, or that what it
// asked for has failed for the reason given.
type Refusal struct {
	Code       Code
	Message    string
	Retryable  bool
	RetryAfter time.Duration
	Details    map[string]any

	cause error
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// Unwrap returns what led to the refusal, nil when it was the request.
func (r *Refusal) Unwrap() error { return r.cause }

func (r *Refusal) because(err error) *Refusal {
	r.cause = err
	return r
}

func (r *Refusal) with(details map[string]any) *Refusal {
	r.Details = details
	return r
}

func (r *Refusal) after(d time.Duration) *Refusal {
	r.RetryAfter = max(d, 0)
	return r
}

func refusal(code Code, retryable bool, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Retryable: retryable, Message: fmt.Sprintf(format, args...)}
}
