package engine

import "time"

// Bounds of calls that leave the engine. What users set is in Settings.
const (
	// observeBound bounds one look at the witnesses. A scan of a crowded /proc
	// takes a tenth of a second; a hung one must not count as an answer.
	observeBound = 10 * time.Second
	// helloPatience is when a wrapper that was let go and has not called is
	// looked at.
	helloPatience = 500 * time.Millisecond
	// releaseBound bounds one call of a provider's Release.
	releaseBound = 60 * time.Second
	// deleteBound bounds one step of a deletion; a large tree takes several.
	deleteBound = 10 * time.Minute
	// reclaimBound bounds the giving up of a workspace, the look into it included.
	reclaimBound = 5 * time.Minute
	// inventoryBound bounds the listing of leaves and directories at start.
	inventoryBound = 30 * time.Second
	// joinBound bounds the wait for cancelled effects: at the daemon's end, and
	// for an attempt whose time is over before its lease is quarantined.
	joinBound = 5 * time.Second
	// snapshotBound bounds writing a journal snapshot.
	snapshotBound = 2 * time.Minute
	// retryFirst and retryLast bound the growing delay between tries of debts
	// and deletion steps.
	retryFirst = time.Second
	retryLast  = 5 * time.Minute
	// timerLast bounds every sleep of the loop, since deadlines are on
	// CLOCK_BOOTTIME and timers are not.
	timerLast = 15 * time.Second
	// barredMax bounds the starts that wait for the inventory.
	barredMax = 4096
	// fullPause is the time between two tries of what a full disk has refused.
	fullPause = time.Second
	// savePause is the time between two tries of a snapshot that has failed.
	savePause = 10 * time.Second
	// sweepEvery is the period of the ledger's and the tombstones' expiry.
	sweepEvery = 10 * time.Minute
	// detailMax bounds an event's detail: errors may quote what a client sent,
	// and many events are kept.
	detailMax = 1 << 10
	// takeoverAfter is how long an open row of the ledger that nobody works on is
	// left alone.
	takeoverAfter = 120 * time.Second
	// resultMax bounds a ledger row's result.
	resultMax = 4 << 10
)

// backoff is the delay after the n-th failed try, n ≥ 1.
func backoff(n int) time.Duration {
	d := retryFirst
	for range n - 1 {
		if d *= 2; d >= retryLast {
			return retryLast
		}
	}
	return d
}
