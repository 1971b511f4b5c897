// Package native speaks journald's native protocol: entries of named fields,
// one a datagram, or one a sealed memfd where a datagram would be too large.
//
// A send waits no longer than it is told to: what journald does not take by
// then is the caller's to keep, to count or to drop. The package refuses to know
// loggers, sessions and queues, and imports neither net nor anything of berth's
// own, since every wrapper links it. systemd/journald and daemon/internal/wrap
// call it.
//
// Source: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/
package native
