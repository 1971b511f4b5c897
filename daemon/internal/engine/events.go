package engine

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/statefs/record"
)

// Event is one durable change, numbered by the journal.
type Event struct {
	Seq        uint64
	At         time.Time
	Session    string
	UID        uint32
	Generation uint64
	Instance   string
	Kind       string
	State      string
	Reason     string
	By         string
	Detail     string
	Exit       *record.Exit
	// Ended says that an instance has ended with this event, the one that Exit
	// names. What an earlier daemon saw says so of owned_absent only.
	Ended bool
	// Provider is the kind of the instance's sandbox.
	Provider string
	// Operation is the key of the request that led to it, as far as this
	// daemon has seen that request; the journal's lease records have none.
	Operation string
	// From and To bound what a gap has lost.
	From, To uint64
}

// KindGap is the kind of the marker that stands for lost events.
const KindGap = "gap"

// leaseEvent is the event that a lease record tells of.
func leaseEvent(l *record.Lease) Event {
	ev := Event{
		At: l.Wall, Session: l.Session, UID: l.UID, Generation: l.Generation,
		Instance: l.Instance, Kind: l.Event, State: l.State, Provider: l.Wrapper.Provider,
	}
	if l.Stop != nil {
		ev.Reason, ev.By, ev.Detail = l.Stop.Reason, l.Stop.By, cmp.Or(l.Stop.LastError, l.Stop.Why)
	}
	if l.Event == "workspace_step" && l.Preparation != nil {
		ev.Reason, ev.Detail = l.Preparation.Step, stepText(l.Preparation)
	}
	if l.Note != "" {
		ev.Detail = l.Note
	}
	if l.State == "vacant" {
		ev.Exit, ev.Ended = l.Exit, l.Exit != nil && l.Event == lease.OwnedAbsent.String()
	}
	return ev
}

// deletedEvent is the event that a tombstone tells of.
func deletedEvent(tomb *record.Tombstone) Event {
	return Event{
		At: tomb.Wall, Session: tomb.Session, UID: tomb.UID, Generation: tomb.LastGeneration,
		Kind: "deleted", Reason: tomb.Reason, By: tomb.By,
	}
}

// eventLog keeps the newest events for watchers. It is a view of the journal,
// made again from it at every start, so it has no file of its own.
type eventLog struct {
	mu     sync.Mutex
	ring   []Event // ordered by Seq
	keep   int
	first  uint64        // lowest number that is complete from here on
	more   chan struct{} // closed when the ring grows
	closed bool
}

// newEventLog takes events over.
func newEventLog(keep int, events []Event, first uint64) *eventLog {
	l := &eventLog{ring: events, keep: keep, first: first, more: make(chan struct{})}
	l.trimLocked()
	return l
}

func (l *eventLog) append(events []Event) {
	if len(events) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring = append(l.ring, events...)
	l.trimLocked()
	close(l.more)
	l.more = make(chan struct{})
}

// trimLocked forgets the oldest events once there are a quarter too many, so
// that the copying is rare.
func (l *eventLog) trimLocked() {
	if over := len(l.ring) - l.keep; over > l.keep/4 {
		l.first = l.ring[over].Seq
		l.ring = append([]Event(nil), l.ring[over:]...)
	}
}

func (l *eventLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	close(l.more)
	l.more = make(chan struct{})
}

// after returns copies of at most limit events above seq, a gap marker first
// when some are lost, and a channel that is closed when there are more.
func (l *eventLog) after(seq uint64, limit int) (events []Event, more <-chan struct{}, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq+1 < l.first {
		events = append(events, Event{Kind: KindGap, Seq: l.first - 1, From: seq + 1, To: l.first - 1})
	}
	i := l.indexLocked(seq)
	events = append(events, l.ring[i:min(len(l.ring), i+limit)]...)
	return events, l.more, l.closed
}

// indexLocked is the place of the first event above seq.
func (l *eventLog) indexLocked(seq uint64) int {
	lo, hi := 0, len(l.ring)
	for lo < hi {
		if mid := (lo + hi) / 2; l.ring[mid].Seq <= seq {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// eventsChunk is how many events are copied under the log's lock at once.
const eventsChunk = 256

// Events calls emit for every event above after, oldest first, a gap marker in
// the place of lost ones. With follow it goes on until ctx or the engine ends
// or emit fails. A slow emit delays nobody else; what it misses becomes a gap.
func (e *Engine) Events(ctx context.Context, after uint64, follow bool, emit func(Event) error) error {
	for {
		events, more, closed := e.events.after(after, eventsChunk)
		for _, ev := range events {
			if err := emit(ev); err != nil {
				return err
			}
			after = max(after, ev.Seq)
		}
		if len(events) > 0 {
			continue
		}
		if !follow || closed {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
