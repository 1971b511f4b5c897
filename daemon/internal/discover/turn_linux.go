package discover

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// turn is the work of one reader for one lane, until it is left behind.
type turn struct {
	*walk
	lane int
	turn int
	r    *reader
}

// readLoop reads processes until the directory or the turn ends.
func (t *turn) readLoop(ctx context.Context, from int64, stalled int) {
	held, err := t.readAll(ctx, from, stalled)
	t.s.give(t.r)
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.lanes[t.lane]
	if l.turn == t.turn {
		t.finishLocked(l, err)
	} else if held != 0 {
		t.s.markStalled(held, -1)
	}
}

// readAll returns the process at which the turn was lost, 0 when it was not lost at one.
func (t *turn) readAll(ctx context.Context, from int64, stalled int) (held int, err error) {
	if from != 0 {
		if _, err := unix.Seek(t.r.root, from, 0); err != nil {
			return 0, fmt.Errorf("listing %q: %w", t.s.root, err)
		}
	}
	t.r.listKthreads()
	if stalled != 0 {
		if held, going, err := t.one(stalled, from); !going {
			return held, err
		}
	}
	for {
		n, errno := getdents(t.r.root, t.r.dents)
		if errno != 0 {
			return 0, fmt.Errorf("listing %q: %w", t.s.root, errno)
		}
		if n == 0 {
			return t.askAgain(ctx)
		}
		for pid, next, rest, ok := number(t.r.dents[:n]); ok; pid, next, rest, ok = number(rest) {
			if pid%len(t.lanes) != t.lane {
				continue
			}
			if err := ctx.Err(); err != nil {
				return 0, fmt.Errorf("scanning %q: %w", t.s.root, err)
			}
			if held, going, err := t.one(pid, next); !going {
				return held, err
			}
		}
	}
}

// askAgain looks once more at what read as empty all the time: on a busy machine a process may need a
// while to get through an exec, or to take its memory down and be gone. It returns what readAll does.
func (t *turn) askAgain(ctx context.Context) (held int, err error) {
	for range emptyRounds {
		pids, next := t.empty()
		if len(pids) == 0 {
			return 0, nil
		}
		select {
		case <-time.After(emptyRoundPause):
		case <-ctx.Done():
			return 0, fmt.Errorf("scanning %q: %w", t.s.root, ctx.Err())
		}
		for _, pid := range pids {
			if held, going, err := t.one(pid, next); !going {
				return held, err
			}
		}
	}
	return 0, nil
}

// empty lists the lane's processes that count as empty so far, none when the turn is over. next is the
// offset behind the last process: there is nothing more for another reader to go on with.
func (t *turn) empty() (pids []int, next int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.lanes[t.lane]
	if l.turn != t.turn || t.res.Empty == 0 {
		return nil, 0
	}
	for _, o := range t.res.Opaque {
		if o.Reason == Empty && o.PID%len(t.lanes) == t.lane {
			pids = append(pids, o.PID)
		}
	}
	return pids, l.next
}

// one looks at one process. going is false when the turn is over, and then held is pid if that was the
// process which held the reader up, or with an error that ends the scan.
func (t *turn) one(pid int, next int64) (held int, going bool, err error) {
	stalled := t.s.isStalled(pid)
	if !t.begin(pid, next, stalled) {
		return 0, false, nil
	}
	var o outcome
	if stalled {
		o = t.r.cannotJudge(pid, Stalled)
	} else {
		o = t.r.examine(pid)
	}
	if !t.add(pid, &o) {
		return pid, false, nil
	}
	if o.what == fatal {
		return 0, false, fmt.Errorf("scanning %q: %w", t.s.root, o.err)
	}
	return 0, true, nil
}

// begin notes which process comes next; false when the turn is over.
func (t *turn) begin(pid int, next int64, facts bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.lanes[t.lane]
	if l.turn != t.turn {
		return false
	}
	l.steps++
	l.pid, l.next, l.facts = pid, next, facts
	return true
}

// add counts what was found, in place of what was found of the same process before; false when the turn
// is over.
func (t *turn) add(pid int, o *outcome) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.lanes[t.lane]
	if l.turn != t.turn {
		return false
	}
	l.pid = 0
	t.res.Scanned++
	if t.res.Empty > 0 {
		t.res.forget(pid)
	}
	if o.what != plain {
		t.res.count(o)
	}
	return true
}

// forget takes back that a process counts as empty.
func (r *Result) forget(pid int) {
	i := slices.IndexFunc(r.Opaque, func(o Opaque) bool { return o.PID == pid && o.Reason == Empty })
	if i >= 0 {
		r.Opaque = slices.Delete(r.Opaque, i, i+1)
		r.Scanned--
		r.Empty--
	}
}

// count adds what is not merely a process of no interest.
func (r *Result) count(o *outcome) {
	switch o.what {
	case hit:
		if o.proc.Zombie {
			r.Zombies++
		}
		r.Procs = append(r.Procs, *o.proc)
	case blind:
		switch o.opaque.Reason {
		case Unreadable:
			r.Unreadable++
		case Empty:
			r.Empty++
		}
		r.Opaque = append(r.Opaque, *o.opaque)
	case gone:
		r.Vanished++
	case dead:
		r.Zombies++
	case outOfScope:
		r.OutOfScope++
	}
}
