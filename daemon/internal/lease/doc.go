// Package lease owns the one question that berth must never get wrong: which
// instance a session may have, and what is still owed to be rid of the one
// before it. It holds the states, the events, the effects, the total table of
// every state against every event, and Reduce, the only place in the program
// where a lease changes.
//
// The package is pure. It has no clock, disk, context, logger or randomness:
// time comes in with each event, ids are made by the caller, and what is to be
// done outside is handed back as effects. It refuses to know what a cgroup, a
// provider, a message or a journal is. A deletion intent and a provider's debts
// are facts beside the lease, not in it.
//
// Only the engine calls Reduce, from its one goroutine; everybody else reads
// immutable copies of State. The order is fixed: Reduce, make the new state
// durable, only then perform the effects. Every effect can be performed twice
// with the result of once, keyed by session and generation (and attempt id),
// so a crash at any point is answered by reading the state back and asking
// Owed.
//
// All times are CLOCK_BOOTTIME readings, as durations since boot. They mean
// nothing in another epoch: after a change of epoch the first event for a lease
// is NewEpoch.
//
// How the table is kept honest: each cell is a list of named guards and one
// named step. A cell without a name fails a test, the whole table is printed
// into a golden file, random walks compare it with a reference model that was
// written apart from it, and each guard is taken out of each cell in turn to
// see that a test notices.
package lease
