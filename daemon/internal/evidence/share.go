package evidence

import (
	"context"
	"sync"

	"github.com/berthd/berth/daemon/internal/discover"
)

// share lets callers that want a scan at the same time have one together. Nobody gets a scan that began
// before it asked: that one may have passed a process by which did not exist yet.
//
// No goroutine of its own: the first caller of a batch does its work, and when that caller gives up, the
// others start over.
type share struct {
	mu      sync.Mutex
	running *batch
	next    *batch // has not begun, may be joined
}

type batch struct {
	done      chan struct{}
	res       discover.Result
	err       error
	abandoned bool // by the caller who should have run it
}

func (q *share) scan(ctx context.Context, s *discover.Scanner) (discover.Result, error) {
	for {
		b, before, mine := q.join()
		if !mine {
			select {
			case <-b.done:
			case <-ctx.Done():
				return discover.Result{}, ctx.Err()
			}
			if b.abandoned {
				continue
			}
			return b.res, b.err
		}
		if before != nil {
			select {
			case <-before.done:
			case <-ctx.Done():
				b.err, b.abandoned = ctx.Err(), true
				q.finish(b)
				return discover.Result{}, b.err
			}
		}
		q.begin(b)
		b.res, b.err = s.Scan(ctx)
		b.abandoned = b.err != nil && ctx.Err() != nil
		q.finish(b)
		return b.res, b.err
	}
}

// Scan looks for markers, together with whoever else wants that now: clients may ask as often as they
// like. The result is shared and must not be changed.
func (p *Prober) Scan(ctx context.Context) (discover.Result, error) {
	return p.share.scan(ctx, p.scanner)
}

// join returns the batch to wait for. mine makes the caller the one who runs it, once before is done.
func (q *share) join() (b, before *batch, mine bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.next != nil {
		return q.next, nil, false
	}
	q.next = &batch{done: make(chan struct{})}
	return q.next, q.running, true
}

func (q *share) begin(b *batch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running, q.next = b, nil
}

func (q *share) finish(b *batch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running == b {
		q.running = nil
	}
	if q.next == b {
		q.next = nil
	}
	close(b.done)
}
