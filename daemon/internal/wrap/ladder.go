package wrap

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// ladder ends the wrapper's descendants where there is no cgroup to do it:
// TERM, a grace, KILL, until none is left.
type ladder struct {
	mu   sync.Mutex
	done chan struct{} // nil = not started; closed at the end
	log  *diary
	kill time.Time // when the grace ends
}

// run starts the ladder and returns a channel that is closed when no descendant
// is left, or when the wrapper has given up. While it runs, a shorter grace
// counts and a longer one does not.
func (l *ladder) run(grace time.Duration) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	kill := time.Now().Add(grace)
	if l.done == nil {
		l.done, l.kill = make(chan struct{}), kill
		go func() { // owner: wrapper; bounded by the grace and ladderBound
			defer close(l.done)
			l.climb()
		}()
	} else if kill.Before(l.kill) {
		l.kill = kill
	}
	return l.done
}

// running returns the channel of a ladder that was started, nil otherwise.
func (l *ladder) running() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done
}

// untilKill returns how much of the grace is left.
func (l *ladder) untilKill() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.kill)
}

// climb ends everything below the wrapper. An empty walk of /proc proves
// nothing: a child that changes its parent meanwhile is in neither list. That
// the wrapper has no children at all does, since it is the subreaper.
func (l *ladder) climb() {
	told := map[int]uint64{}
	for !childless() {
		left := descendants(os.Getpid())
		grace := l.untilKill()
		if grace <= 0 {
			break
		}
		for p, ticks := range left {
			if told[p] != ticks {
				told[p] = ticks
				signalOne(p, ticks, syscall.SIGTERM)
				signalOne(p, ticks, syscall.SIGCONT) // a stopped one would not see it
			}
		}
		time.Sleep(min(ladderEvery, grace))
	}
	l.insist()
}

// insist kills until nothing is left. It looks again at once after it has
// killed: a chain that forks and exits must be caught by speed, since each
// link of it becomes a child of the subreaper.
func (l *ladder) insist() {
	for end := time.Now().Add(ladderBound); !childless(); {
		left := descendants(os.Getpid())
		if time.Now().After(end) {
			l.log.logf("%d descendants do not end: %v", len(left), left)
			return
		}
		for p, ticks := range left {
			signalOne(p, ticks, syscall.SIGKILL)
		}
		time.Sleep(killEvery)
	}
}

// endLeftovers ends what outlives the agent where no cgroup holds it: nobody
// could find it once the wrapper is gone.
func (w *wrapper) endLeftovers() {
	done := w.stops.running()
	if done == nil && w.launch.WorkCgroup == "" {
		done = w.stops.run(leftoverGrace)
	}
	if done != nil {
		<-done // bounded by the ladder
	}
}
