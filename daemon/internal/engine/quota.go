package engine

import "github.com/berthd/berth/statefs/record"

// userRows is how many rows the journal keeps for one user.
type userRows struct{ operations, tombstones int }

// countOperation and countTombstone keep the sums when a row that was there or
// not is replaced by one that is there or not.
func (e *Engine) countOperation(uid uint32, was, is bool) {
	rows := e.rows[uid]
	rows.operations += one(is) - one(was)
	e.rows[uid] = rows
}

func (e *Engine) countTombstone(uid uint32, was, is bool) {
	rows := e.rows[uid]
	rows.tombstones += one(is) - one(was)
	e.rows[uid] = rows
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// operationQuota refuses a new row of a user who has as many as one may have. A
// batch may go over it by its own length.
func (t *tx) operationQuota(row *record.Operation, k opKey) error {
	limit := t.e.opts.Settings.OperationsMax
	if k.key == "" || row != nil || t.e.rows[k.uid].operations < limit {
		return nil
	}
	return refusal(codeQuota, true,
		"uid %d has %d operations in the ledger, as many as are kept for one user (keep.operations_per_user); they expire", k.uid, limit)
}

// tombstoneQuota refuses a new session of a user whose deleted ones are as many
// as are remembered for one.
func (t *tx) tombstoneQuota(uid uint32) error {
	limit := t.e.opts.Settings.TombstonesMax
	if t.e.rows[uid].tombstones < limit {
		return nil
	}
	return refusal(codeQuota, true,
		"uid %d has %d deleted sessions, as many as are remembered for one user (keep.tombstones_per_user); they expire", uid, limit)
}
