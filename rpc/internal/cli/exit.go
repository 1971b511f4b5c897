package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/client"
)

// The exit codes of berthctl; exits explains them.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitRefused     = 3
	exitNotFound    = 4
	exitUnreachable = 5
	exitLater       = 6
	exitAgentVerb   = 125
	exitInterrupted = 130
)

// exits is the one table of exit codes: help and manual come from it.
var exits = []struct {
	code    int
	meaning string
}{
	{exitOK, "done"},
	{exitFailure, "failed, or how the agent ended is not known"},
	{exitUsage, "the command line is wrong"},
	{exitRefused, "the daemon refuses, and will again"},
	{exitNotFound, "there is no such session"},
	{exitUnreachable, "the daemon cannot be reached"},
	{exitLater, "the daemon refuses for now; the same may succeed later"},
	{exitAgentVerb, "run, attach, wait: berthctl failed; all other codes are the agent's own (128+N: ended by signal N)"},
	{exitInterrupted, "interrupted"},
}

func exitTable() string {
	var b strings.Builder
	b.WriteString("Exit codes:\n")
	for _, e := range exits {
		fmt.Fprintf(&b, "  %3d  %s\n", e.code, e.meaning)
	}
	return strings.TrimRight(b.String(), "\n")
}

// failure says what berthctl was asked to do when err came.
type failure struct {
	doing   string // "start session "x""
	session string
	err     error
}

func (f *failure) Error() string { return "cannot " + f.doing + ": " + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// failed gives err the words for what was asked; nil stays nil.
func failed(err error, session, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &failure{doing: fmt.Sprintf(format, args...), session: session, err: err}
}

// agentVerb is the annotation of verbs whose exit code is the agent's.
const agentVerb = "agent-exit-code"

// agentExit ends berthctl with the agent's own code.
type agentExit struct{ code int }

func (e *agentExit) Error() string { return fmt.Sprintf("the agent ended with code %d", e.code) }

// exit reports err, with which cmd ended, and returns the exit code for it.
func (a *app) exit(cmd *cobra.Command, err error) int {
	a.agentVerb, a.help = cmd.Annotations[agentVerb] != "", cmd.CommandPath()+" --help"
	var ae *agentExit
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &ae):
		return ae.code
	}
	code := a.exitCode(err)
	if code == exitInterrupted { // whoever interrupts knows it
		return code
	}
	if a.output == "json" {
		a.reportJSON(err, code)
		return code
	}
	text := message(err)
	if hint := a.hint(err); hint != "" {
		text += "; try: " + hint
	}
	fmt.Fprintf(a.err, "berthctl: %s\n", text)
	return code
}

// message is err's text; a refusal's without its code, which is for programs.
func message(err error) string {
	var e *rpc.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	return strings.Replace(err.Error(), e.Error(), e.Message, 1)
}

func (a *app) reportJSON(err error, code int) {
	var e *rpc.Error
	if !errors.As(err, &e) {
		e = &rpc.Error{Message: err.Error()}
	}
	data, merr := json.Marshal(map[string]any{"error": e, "exit": code, "try": a.hint(err)})
	if merr != nil {
		data = []byte(`{"error":{},"exit":1}`)
	}
	fmt.Fprintf(a.err, "%s\n", data)
}

func (a *app) exitCode(err error) int {
	var ue *client.UnreachableError
	var e *rpc.Error
	switch {
	case a.agentVerb: // every other code could be the agent's
		return exitAgentVerb
	case !a.ran, errors.As(err, new(*usageError)):
		return exitUsage
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &ue), errors.Is(err, errSlow):
		return exitUnreachable
	case !errors.As(err, &e):
		return exitFailure
	case e.Code == rpc.CodeNotFound, e.Code == rpc.CodeSessionDeleted:
		return exitNotFound
	case e.Retryable:
		return exitLater
	}
	return exitRefused
}

// usageError is a command line that cannot be meant.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// hints say what to do next, per code; %s is the session.
var hints = map[rpc.Code]string{
	rpc.CodeInvalidRequest:     "berthctl help",
	rpc.CodeTooLarge:           "send it in pieces below 512 KiB",
	rpc.CodeUnknownMethod:      "berthctl version (the daemon is of another version)",
	rpc.CodeForbidden:          "sudo, or become a member of the operators' group (usually \"berth\")",
	rpc.CodeNotFound:           "berthctl list",
	rpc.CodeSpecConflict:       "berthctl explain %s -o json (it shows the stored specification), or berthctl start %[1]s without a command to use it",
	rpc.CodeOperationConflict:  "another --key, or the very same request as before",
	rpc.CodeQuota:              "berthctl op list (as many as are kept for one user; they expire)",
	rpc.CodeReconcilePending:   "berthctl explain %s (the outcome of an earlier request is not known yet)",
	rpc.CodeDeleting:           "berthctl explain %s (it shows how far the deletion is), and another id for new work",
	rpc.CodeSessionDeleted:     "another session id (ids are never used twice)",
	rpc.CodeCleanupPending:     "berthctl stop %s --wait, or berthctl explain %[1]s to see what is still alive",
	rpc.CodeWorkspaceInUse:     "another --workspace, or berthctl list to see who has it",
	rpc.CodeWorkspaceMissing:   "make the directory, or leave --workspace out",
	rpc.CodeUnprepared:         "what the step printed is in the file that the message names; when its cause is mended, start the session again: it goes on where it was",
	rpc.CodeDirty:              "commit and push what you want to keep, or add --salvage to save it on the host, or --discard to lose it",
	rpc.CodeCapacityRejected:   "berthctl capacity, then berthctl delete what is no longer needed",
	rpc.CodeCapacityUnknown:    "berthctl capacity (the file system could not be measured)",
	rpc.CodeFilesystemUnusable: "df and dmesg: the file system does not take writes",
	rpc.CodeCapability:         "berthctl providers (it shows what each can do)",
	rpc.CodeAllocationRetired:  "another session id for new work (the old session can be stopped and deleted only)",
	rpc.CodeProvider:           "berthctl providers (it shows what is wrong)",
	rpc.CodeStartFailed:        "berthctl logs %s and berthctl explain %[1]s",
	rpc.CodeNotRunning:         "berthctl start %s",
	rpc.CodeUnreachable:        "berthctl explain %s",
	rpc.CodeBusy:               "again later",
	rpc.CodeJournal:            "berthctl status and journalctl -u berthd: no changes are accepted until the journal works",
	rpc.CodeReconciling:        "again in a moment",
	rpc.CodeDraining:           "berthctl undrain, once the host is to run sessions again",
	rpc.CodeDegraded:           "berthctl status (it says why)",
	rpc.CodeInternal:           "journalctl -u berthd",
}

// hint says what to do about err; empty = nothing is known.
func (a *app) hint(err error) string {
	var ue *client.UnreachableError
	var e *rpc.Error
	switch {
	case !a.ran, errors.As(err, new(*usageError)):
		return a.help
	case errors.As(err, &ue) && errors.Is(ue, syscall.EACCES):
		return "sudo, or become a member of the socket's group (usually \"berth\")"
	case errors.As(err, &ue) && ue.Sent:
		return "again: the daemon may have restarted"
	case errors.As(err, &ue):
		return "systemctl start berthd, or --socket PATH"
	case errors.Is(err, errSlow):
		return "systemctl status berthd"
	case !errors.As(err, &e):
		return ""
	}
	hint := hints[e.Code]
	if strings.Contains(hint, "%s") {
		session := "SESSION"
		var f *failure
		if errors.As(err, &f) && f.session != "" {
			session = f.session
		}
		hint = fmt.Sprintf(hint, session)
	}
	if e.Retryable && e.RetryAfter > 0 {
		hint += fmt.Sprintf(" (again in %s)", e.RetryAfter.Round(time.Second/10))
	}
	return hint
}
