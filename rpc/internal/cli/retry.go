package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/client"
)

const (
	// restartWindow is how long a verb that outlives a restart of the daemon
	// looks for the next one; the wrappers' own window is the same.
	restartWindow = 90 * time.Second
	// retryFirst and retryMost bound the pause between two tries.
	retryFirst = 50 * time.Millisecond
	retryMost  = time.Second
)

// retry repeats f while the daemon is restarting, and says so once. f must be
// safe to repeat. A daemon that was never reached is not waited for.
func (a *app) retry(ctx context.Context, f func() error) error {
	var r restart
	for {
		err := f()
		if err == nil || !a.again(ctx, &r, err) {
			return err
		}
	}
}

// change asks for a change that has an operation key, again where the daemon
// restarts before it answers. Only a call that waits by design has no bound.
func change[R any](ctx context.Context, a *app, waits bool, f func(context.Context) (R, error)) (R, error) {
	var reply R
	err := a.retry(ctx, func() (err error) {
		if waits {
			reply, err = f(ctx)
		} else {
			reply, err = read(ctx, f)
		}
		return err
	})
	return reply, err
}

// restart is one absence of the daemon.
type restart struct {
	since   time.Time
	pause   time.Duration
	reached bool // the daemon has answered before
	// cr is put around messages on a terminal that is raw.
	cr string
}

// alive notes that the daemon answers; a later loss is another absence.
func (r *restart) alive() { *r = restart{reached: true, cr: r.cr} }

// again waits for the next try after err; false when there is none to make.
func (a *app) again(ctx context.Context, r *restart, err error) bool {
	var ue *client.UnreachableError
	lost := errors.As(err, &ue)
	r.reached = r.reached || lost && ue.Sent
	away := lost && r.reached || rpc.CodeOf(err) == rpc.CodeReconciling
	if !away || ctx.Err() != nil {
		return false
	}
	now := a.now()
	if r.since.IsZero() {
		r.reached, r.since, r.pause = true, now, retryFirst
		fmt.Fprintf(a.err, "%sberthctl: the daemon is away; waiting for it%s\n", r.cr, r.cr)
	} else if now.Sub(r.since) > restartWindow {
		return false
	}
	select {
	case <-time.After(r.pause):
	case <-ctx.Done():
		return false
	}
	r.pause = min(2*r.pause, retryMost)
	return true
}
