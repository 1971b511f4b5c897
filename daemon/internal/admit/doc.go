// Package admit owns two decisions about disks: whether a session may start,
// given what a file system has left and what is promised already, and whether
// a workspace may be reclaimed.
//
// The package is pure arithmetic: it measures nothing, keeps nothing and has no
// clock. It refuses to know what a file system, a session or git is; the caller
// brings readings with their age, sums of reservations, and facts that may be
// unknown. Unknown is never zero here, and never yes.
//
// Only the engine calls it, once per file system that a session writes to.
package admit
