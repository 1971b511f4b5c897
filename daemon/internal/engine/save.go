package engine

import (
	"context"

	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// maybeSnapshot writes a snapshot of the journal when it has grown enough.
func (e *Engine) maybeSnapshot() {
	if e.saving || e.opts.Now() < e.nextSave || e.Err() != nil || !e.opts.Journal.NeedsSnapshot() {
		return
	}
	e.saving = true
	snapshot, upTo := e.snapshot.Load(), e.lastSeq
	e.effect(snapshotBound, func(ctx context.Context) {
		err := e.opts.Journal.Snapshot(ctx, snapshot.entries(), upTo)
		if err != nil {
			e.log.Error("the journal's snapshot failed; it will be tried again", "error", err)
		}
		e.post(func(t *tx) {
			t.then(func() {
				e.saving = false
				if err != nil {
					e.nextSave = t.now + savePause
				}
			})
		})
	})
}

// entries yields every live fact of the snapshot.
func (s *Snapshot) entries() func(yield func(journal.Entry) bool) {
	return func(yield func(journal.Entry) bool) {
		more := yield(journal.Entry{
			Type: uint16(record.TypeHost), Generation: s.Host.GenerationFloor, Body: s.Host.Append(nil),
		})
		s.Sessions.Root().Walk(func(_ []byte, v *View) bool {
			l := v.Lease
			if more && v.Spec != nil {
				more = yield(journal.Entry{
					Type: uint16(record.TypeSpec), Session: l.Session, Generation: v.State.NextGeneration,
					Body: v.Spec.Append(nil),
				})
			}
			if more {
				more = yield(journal.Entry{
					Type: uint16(record.TypeLease), Session: l.Session, Generation: v.State.NextGeneration,
					Body: l.Append(nil),
				})
			}
			return !more
		})
		s.Tombstones.Root().Walk(func(_ []byte, tomb *record.Tombstone) bool {
			more = more && yield(journal.Entry{
				Type: uint16(record.TypeTombstone), Session: tomb.Session, Generation: tomb.LastGeneration + 1,
				Body: tomb.Append(nil),
			})
			return !more
		})
		s.operations.Root().Walk(func(_ []byte, op *record.Operation) bool {
			more = more && yield(journal.Entry{
				Type: uint16(record.TypeOperation), Session: op.Session, Generation: op.Generation,
				Body: op.Append(nil),
			})
			return !more
		})
	}
}
