// Package systemdtest boots boxes for tests: throw-away hosts with a real
// systemd as PID 1 and a real journald, made of plain namespaces over an
// overlay of the machine's own root. There is no container engine, no image,
// and nothing is mounted in the caller's mount namespace.
//
// A box is three processes: the caller, a holder, which keeps the box's disk
// over reboots in a mount namespace of its own, and the box's PID 1. Each dies
// with the one before it, so that a killed test leaves one empty cgroup and
// one empty directory, which the next Boot removes.
//
// Whoever calls Boot must call Init first thing in main or TestMain: holder and
// PID 1 begin as the same program. Tests that run inside a box, through
// systemd/cmd/berth-box as the program of go test -exec, call Inside.
//
// What does not work in a box: controllers that the machine has not enabled
// for the cgroup that it is made in (limits of memory, processes, CPU), file
// handles on the root (it is an overlay), the process connector.
package systemdtest
