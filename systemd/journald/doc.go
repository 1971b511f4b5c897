// Package journald is an hclog.Logger that writes to journald: structured
// fields, a MESSAGE_ID for each kind of transition, and where in the program an
// entry comes from.
//
// Logging never waits. Entries go through a bounded queue to one goroutine;
// what does not fit is dropped and counted, and one entry says how many are
// missing. The package refuses to know leases and configuration.
// daemon/internal/daemon makes the logger.
package journald
