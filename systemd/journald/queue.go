package journald

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/systemd/journald/catalog"
	"github.com/berthd/berth/systemd/journald/native"
)

const (
	// queueBytes bounds what waits for journald: some thousand entries.
	queueBytes = 1 << 20
	// patience is how long one send waits for room in journald's own queue
	// before it looks whether it is to end.
	patience = 100 * time.Millisecond
	// awayPause is between two tries while nobody listens on the socket.
	awayPause = 200 * time.Millisecond
)

// Queue sends entries to journald in order, without ever making their authors
// wait. It is safe for concurrent use.
type Queue struct {
	socket  native.Socket
	sent    atomic.Uint64
	dropped atomic.Uint64

	mu      sync.Mutex
	waiting []*native.Entry
	bytes   int
	missing uint64 // dropped since the newest waiting entry
	more    chan struct{}
	quit    chan struct{}
	ended   chan struct{}
}

// NewQueue makes a queue for the journald that listens at path. Close ends it.
func NewQueue(path string) *Queue {
	q := &Queue{
		socket: native.Socket{Path: path}, more: make(chan struct{}, 1),
		quit: make(chan struct{}), ended: make(chan struct{}),
	}
	go q.loop() // owner: Queue; ends with Close
	return q
}

// Sent and Dropped count entries.
func (q *Queue) Sent() uint64    { return q.sent.Load() }
func (q *Queue) Dropped() uint64 { return q.dropped.Load() }

// Put queues an entry, which is the queue's from then on, or drops it.
func (q *Queue) Put(e *native.Entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes+len(e.Bytes()) > queueBytes {
		q.missing++
		q.dropped.Add(1)
		return
	}
	if q.missing > 0 { // where they are missing
		q.addLocked(missingEntry(q.missing))
		q.missing = 0
	}
	q.addLocked(e)
}

func (q *Queue) addLocked(e *native.Entry) {
	q.waiting = append(q.waiting, e)
	q.bytes += len(e.Bytes())
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// missingEntry says that n entries are not there.
func missingEntry(n uint64) *native.Entry {
	m, _ := catalog.Of("log_dropped")
	e := &native.Entry{}
	e.Priority(native.Warning)
	e.Set("SYSLOG_IDENTIFIER", native.DaemonIdentifier)
	e.Set("MESSAGE_ID", m.ID)
	e.Set("MESSAGE", m.Text)
	e.Set(native.Event, m.Event)
	e.Uint(native.Dropped, n)
	return e
}

// Close waits at most bound for what is queued to be sent, and ends the queue.
// Entries that are put later are lost.
func (q *Queue) Close(bound time.Duration) error {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for waits := true; waits && !q.Idle(); {
		select {
		case <-timer.C:
			waits = false
		case <-tick.C:
		}
	}
	close(q.quit)
	<-q.ended // within patience
	if !q.Idle() {
		return errors.New("journald did not take the last log entries")
	}
	return nil
}

// Idle reports whether nothing waits.
func (q *Queue) Idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) == 0
}

// loop sends what waits, oldest first, until Close.
func (q *Queue) loop() {
	defer close(q.ended)
	defer q.socket.Close()
	for {
		e := q.head()
		if e == nil {
			select {
			case <-q.more:
				continue
			case <-q.quit:
				return
			}
		}
		err := q.socket.Send(e, patience)
		switch {
		case err == nil:
			q.sent.Add(1)
			q.drop(e)
		case errors.Is(err, native.ErrBusy):
		case errors.Is(err, native.ErrAway):
			if q.pause() {
				return
			}
		default: // this entry can never be sent
			q.dropped.Add(1)
			q.drop(e)
		}
		select {
		case <-q.quit:
			return
		default:
		}
	}
}

// pause waits before the next try; true = Close was called.
func (q *Queue) pause() bool {
	t := time.NewTimer(awayPause)
	defer t.Stop()
	select {
	case <-t.C:
		return false
	case <-q.quit:
		return true
	}
}

// head is the entry to be sent next; nil when nothing waits. What is missing at
// the end is told as soon as all before it is sent.
func (q *Queue) head() *native.Entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 && q.missing > 0 {
		q.addLocked(missingEntry(q.missing))
		q.missing = 0
	}
	if len(q.waiting) == 0 {
		return nil
	}
	return q.waiting[0]
}

// drop takes the entry that was sent away.
func (q *Queue) drop(e *native.Entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes -= len(e.Bytes())
	q.waiting[0] = nil
	if q.waiting = q.waiting[1:]; len(q.waiting) == 0 {
		q.waiting = nil // its memory is not kept for the next burst
	}
}
