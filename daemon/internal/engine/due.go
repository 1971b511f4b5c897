package engine

import (
	"container/heap"
	"time"

	"github.com/berthd/berth/statefs/journal"
)

// dueQueue orders sessions by the time at which Run must look at them again.
// There are no timers per session: a deadline is derived from the state, the
// queue is only a hint of when to derive it again.
type dueQueue []*session

func (q dueQueue) Len() int           { return len(q) }
func (q dueQueue) Less(i, j int) bool { return q[i].due < q[j].due }
func (q dueQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].dueIndex, q[j].dueIndex = i, j
}

func (q *dueQueue) Push(x any) {
	s := x.(*session)
	s.dueIndex = len(*q)
	*q = append(*q, s)
}

func (q *dueQueue) Pop() any {
	old := *q
	s := old[len(old)-1]
	*q, s.dueIndex = old[:len(old)-1], -1
	return s
}

// schedule queues the session for its nearest deadline, or takes it out.
func (e *Engine) schedule(s *session) {
	due, ok := e.nearest(s)
	if !ok {
		e.unschedule(s)
		return
	}
	s.due = due
	if s.dueIndex < 0 {
		heap.Push(&e.due, s)
	} else {
		heap.Fix(&e.due, s.dueIndex)
	}
}

func (e *Engine) unschedule(s *session) {
	if s.dueIndex >= 0 {
		heap.Remove(&e.due, s.dueIndex)
	}
}

// nearest is the earliest time at which something may become due for s.
func (e *Engine) nearest(s *session) (time.Duration, bool) {
	var at time.Duration
	found := false
	consider := func(t time.Duration) {
		if !found || t < at {
			at, found = t, true
		}
	}
	if d, ok := e.opts.Rules.NextDeadline(s.state); ok {
		consider(d)
	}
	if s.lookAt > 0 && !s.looking {
		consider(s.lookAt)
	}
	if at, ok := e.silentAt(s); ok {
		consider(at)
	}
	if s.state.Vacant() && !s.releasing {
		for _, debt := range s.lease.Debts {
			consider(debt.NextAt)
		}
	}
	if del := s.lease.Deletion; del != nil && s.state.Vacant() && s.deleting == nil && len(s.lease.Debts) == 0 && s.lease.Reclaim == "" {
		consider(del.NextAt)
	}
	if at, ok := e.expiresAt(s); ok {
		consider(at)
	}
	return at, found
}

// untilDue is how long Run may sleep.
func (e *Engine) untilDue() time.Duration {
	now := e.opts.Now()
	sleep := timerLast
	if len(e.due) > 0 {
		sleep = min(sleep, e.due[0].due-now)
	}
	sleep = min(sleep, e.nextRelist-now)
	if len(e.refused) > 0 {
		sleep = min(sleep, e.pauseUntil-now)
	}
	return max(sleep, e.pauseUntil-now, 0)
}

// sweep does what has become due. It is a command like any other.
func (e *Engine) sweep(t *tx) {
	var due []*session
	for _, s := range e.due {
		if s.due <= t.now {
			due = append(due, s)
		}
	}
	for _, s := range due {
		t.sweepSession(s)
	}
	if t.now >= e.nextRelist {
		t.then(e.relist)
	}
	if t.now >= e.nextSweep {
		t.then(func() { // a command of its own: it may be large
			e.nextSweep = t.now + sweepEvery
			e.pending = append(e.pending, command{class: journal.Reserved, apply: (*tx).expire, again: true})
		})
	}
}

// sweepSession does what is due for one session; the lease's own deadlines are
// applied by settle, since the session has a draft now.
func (t *tx) sweepSession(s *session) {
	d := t.draft(s.id)
	if d == nil {
		return
	}
	t.touch(s.id)
	if s.lookAt > 0 && t.now >= s.lookAt {
		t.then(func() { t.e.look(s, false) })
	}
	t.silence(d)
	t.retire(d)
}
