// Package sys owns the kernel's answers to "which boot, which time, which process": the epoch that a
// durable record belongs to, the boottime clock that deadlines run on, and the identity of a process.
//
// It refuses to know what a process is for: sessions, leases, cgroups and markers are its callers'
// business. An identity is verified in one order only, pidfd first and facts afterwards, because a pid
// alone may have changed its owner between any two looks at it. Called by the engine, spawn, evidence,
// discover and the wrapper.
package sys
