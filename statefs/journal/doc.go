// Package journal is the append-only lease file: numbered records with checksums, group commit, snapshots and recovery.
//
// It owns the bytes of one directory, as ../FORMAT.md lays them down, and the promise that an acknowledged record
// survives a crash. It refuses to know what a record means: bodies are opaque, types belong to statefs/record, and what
// to do about a reported loss is the caller's decision.
//
// Called by the engine (one writer) and by berthctl (readers, also beside a live writer).
//
// Goroutines: Open starts one, which prepares room ahead of need (prepare.go); Close stops it and waits for it. Commits
// are written by the goroutines that call Append.
package journal
