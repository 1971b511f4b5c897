// Package evidence owns the verdict on one subject, an instance or a whole session: absent, present or
// unknown, with the witnesses behind it, each with the time at which it was asked.
//
// The leaf is the fence, the marker is the finder, the pid is a hint. A witness that could not answer is
// unknown and makes the verdict unknown, never absent; silence is not death. The rule itself is Judge, a
// pure function over the witnesses' answers; Prober asks the kernel.
//
// The package refuses to know leases and what a verdict leads to: it launches, signals, creates and
// deletes nothing, and it never takes a lock in order to see whether it is held. Called by the engine's
// effects and, for "explain", by the api.
package evidence
