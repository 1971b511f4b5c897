// Package spawn starts wrappers and learns of their ends.
//
// A wrapper is born inside its leaf (clone3 with CLONE_INTO_CGROUP) and parked: it waits on descriptor 3
// for its recipe and leaves silently when that ends without a byte. So a daemon that dies between the
// clone and the go leaves nothing running. Nothing here waits for a process with a goroutine or a thread
// of its own: one Watcher holds all pidfds in one epoll and reaps exactly the processes that it was
// given, never "any child", because other packages of the same program wait for theirs.
//
// The package refuses to know sessions, leases and what a recipe says. The engine's workers call Start;
// the engine owns the Watcher.
package spawn
