// Package statefs is what berth keeps on, and asks of, file systems: the
// layout of the state directory with its lock, files that are replaced whole,
// the room that is left, workspaces made and trees deleted without following
// a link or crossing a mount.
//
// It owns names, modes, owners and the order of system calls that a crash may
// cut anywhere. It refuses to know leases, sessions' states and policies: what
// may be deleted, and when, is decided above it. The daemon holds a Dir; the
// wrapper and the tools use WriteFile and ReadLayout. Nothing of berth's own
// is imported here.
package statefs
