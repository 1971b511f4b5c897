// Package scope asks systemd, as the manager of the system, to make transient scopes around processes that
// are in their cgroups already, below one slice.
//
// Every call to PID 1 has a deadline, few run at once, and a connection that PID 1 has ended (it does when it
// executes itself anew) is made again. That PID 1 does not answer, or refuses, is an error that says so; what
// to do then is the caller's business. The package knows no sessions and no leases, and it signals nothing.
// Used by the daemon.
//
// The calls are those of org.freedesktop.systemd1(5), over the manager's own socket, so that no message bus
// has to run.
package scope
