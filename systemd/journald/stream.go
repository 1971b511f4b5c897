package journald

import "github.com/coreos/go-systemd/v22/journal"

// Connected reports whether the process's standard error is a stream to
// journald, as a service manager makes it: then that is where logs belong. A
// JOURNAL_STREAM that makes no sense is as good as none.
func Connected() bool {
	ok, err := journal.StderrIsJournalStream()
	return ok && err == nil
}
