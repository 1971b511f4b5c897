// Package cgroupfs owns the directories of berth in the cgroup v2 tree: one base per host, below it one
// leaf per (session, generation) with the children wrap (the wrapper) and work (everything else).
//
// The leaf is the fence of a session: what runs in it can be asked (populated), stopped (freeze, kill)
// and its absence proven. Every read goes through a descriptor of the base, never leaves its file
// system and never follows a link, so that a mount put over the tree yields an error and not a lie.
// A leaf counts as gone only while the base is the very directory that was opened; an error is not
// absence. See cgroups(7) and the kernel's Documentation/admin-guide/cgroup-v2.rst.
//
// The package refuses to know leases, journals and systemd. It keeps no state but the base's
// descriptor, all methods may be called concurrently, and it imports nothing of berth. Used by the
// daemon, the wrapper and berthctl.
package cgroupfs
