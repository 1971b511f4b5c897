package spool

import (
	"context"
	"io"
	"iter"
	"time"
)

// DefaultPoll is how often a follower looks where nothing wakes it.
const DefaultPoll = 200 * time.Millisecond

// FollowOptions say how to wait for more.
type FollowOptions struct {
	// Wake makes the follower look at once; nil or a lost wake costs Poll.
	Wake <-chan struct{}
	// Ended is closed when the writer is gone: what is left is read, then the
	// iteration ends. Nil = follow until the context ends.
	Ended <-chan struct{}
	// Poll is the longest time between two looks; 0 means DefaultPoll.
	Poll time.Duration
}

// Follow iterates over the records and gaps from the Reader's position on, and
// waits for more. It ends without an error when Ended is closed and all was
// read, and with the cause when ctx ends or reading fails.
func (r *Reader) Follow(ctx context.Context, opt FollowOptions) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for {
			rec, err := r.Next()
			switch {
			case err == nil:
				if !yield(rec, nil) {
					return
				}
			case err != io.EOF:
				yield(Record{}, err)
				return
			case r.ended:
				return
			default:
				if err := r.await(ctx, opt); err != nil {
					yield(Record{}, err)
					return
				}
			}
		}
	}
}

// await waits until it is worth looking again.
func (r *Reader) await(ctx context.Context, opt FollowOptions) error {
	poll := opt.Poll
	if poll <= 0 {
		poll = DefaultPoll
	}
	t := time.NewTimer(poll)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-opt.Ended:
		r.SetEnded()
	case <-opt.Wake:
	case <-t.C:
	}
	return nil
}
