// Package discover owns one question: which processes of this machine carry a marker of ours. It reads
// /proc (or a tree like it) and reports what it saw, with everything that it could not see counted and
// named, because a scan that was half blind must not look like a clean one.
//
// It refuses to know what a hit means: leases, instances that should exist, cgroup trees and verdicts
// are the business of package evidence, its main caller. The engine calls it at start and for
// "berthctl scan".
//
// What a scan can and cannot show: it can prove presence. It cannot prove absence, because a program may
// overwrite its environment, and a chain of processes that fork and exit outruns any readdir of /proc.
// Nothing here ever signals, stops or waits for a process.
//
// Each read of another process's memory may block in the kernel for as long as that process keeps its
// address space locked. So the reading is done by a goroutine that can be left behind: the scan goes on
// past the process that holds it and reports it as stalled.
package discover
