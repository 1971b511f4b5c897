package wrap

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

// mirror copies the agent's output to journald, one entry a line. The spool is
// the truth and comes first; the mirror never makes it wait: what journald does
// not take in time, or what is more than the rate allows, is dropped, counted,
// and told of by an entry of its own. It has no goroutine before there is output.
type mirror struct {
	dropped atomic.Uint64 // entries, for status frames
	more    chan struct{} // capacity 1
	quit    chan struct{} // closed by stop, with until set
	ended   chan struct{}

	mu      sync.Mutex
	started bool
	stopped bool
	waiting []piece
	bytes   int
	missing uint64  // lines dropped behind what waits
	cut     streams // where, of those
	losing  streams // the line that a stream is in the middle of is dropped
	until   time.Time

	feed feed // mirrorLoop's own
}

// streams is a set of the agent's streams.
type streams [spool.PTY + 1]bool

// piece is a record on its way, behind lost lines.
type piece struct {
	stream spool.Stream
	seq    uint64 // 0 = the spool could not keep it
	data   []byte
	lost   uint64
	cut    streams // what of an unfinished line came before is lost too
}

// newMirror returns nil when no copy is wanted; a nil mirror does nothing.
func newMirror(l *wire.Launch) *mirror {
	if l.JournalSocket == "" {
		return nil
	}
	m := &mirror{more: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{})}
	m.feed = newFeed(l)
	return m
}

// droppedEntries is for status frames.
func (m *mirror) droppedEntries() uint64 {
	if m == nil {
		return 0
	}
	return m.dropped.Load()
}

// put queues a copy of one record of output. It never blocks. A line of which a
// part is dropped is dropped whole and counted once, so that the numbers of the
// others are right.
func (m *mirror) put(stream spool.Stream, seq uint64, data []byte) {
	if m == nil || len(data) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return
	}
	if m.bytes+len(data) > mirrorBytes {
		m.lose(stream, data)
		return
	}
	if m.losing[stream] {
		_, rest, ends := bytes.Cut(data, lineFeed)
		m.losing[stream] = !ends
		if data = rest; len(data) == 0 {
			return
		}
	}
	m.waiting = append(m.waiting, piece{stream: stream, seq: seq, data: bytes.Clone(data), lost: m.missing, cut: m.cut})
	m.missing, m.cut = 0, streams{}
	m.bytes += len(data)
	if !m.started {
		m.started = true
		go m.mirrorLoop() // owner: output; ends by stop
	}
	m.wake()
}

// lose counts the lines that data has a part of, but for one that is counted.
func (m *mirror) lose(stream spool.Stream, data []byte) {
	open := data[len(data)-1] != '\n'
	n := uint64(bytes.Count(data, lineFeed))
	if open {
		n++
	}
	if m.losing[stream] {
		n--
	}
	m.losing[stream], m.cut[stream] = open, true
	m.missing += n
	m.dropped.Add(n)
}

func (m *mirror) wake() {
	select {
	case m.more <- struct{}{}:
	default:
	}
}

// stop gives what waits until bound to be sent, and returns a channel that is
// closed once the mirror has ended.
func (m *mirror) stop(bound time.Duration) <-chan struct{} {
	if m == nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stopped {
		m.stopped, m.until = true, time.Now().Add(bound)
		close(m.quit)
		if !m.started {
			close(m.ended)
		}
	}
	return m.ended
}

// next takes the oldest piece; lost lines at the end come without data.
func (m *mirror) next() (piece, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == 0 {
		p := piece{lost: m.missing, cut: m.cut}
		m.missing, m.cut, m.waiting = 0, streams{}, nil
		return p, p.lost > 0
	}
	p := m.waiting[0]
	m.waiting[0] = piece{}
	m.waiting = m.waiting[1:]
	m.bytes -= len(p.data)
	return p, true
}

// mirrorLoop sends what there is until stop.
func (m *mirror) mirrorLoop() {
	defer close(m.ended)
	defer m.feed.socket.Close()
	for {
		p, ok := m.next()
		switch {
		case ok:
			m.feed.lose(p)
			m.split(p)
		case m.quitting():
			m.flush()
			m.tell()
			return
		default:
			m.rest()
		}
	}
}

// rest waits for more; a loss that no further line tells of is told then.
func (m *mirror) rest() {
	if m.feed.owed == 0 {
		select {
		case <-m.more:
		case <-m.quit:
		}
		return
	}
	t := time.NewTimer(lossNoticeEvery)
	defer t.Stop()
	select {
	case <-m.more:
	case <-m.quit:
	case <-t.C:
		m.tell()
	}
}

func (m *mirror) quitting() bool {
	select {
	case <-m.quit:
		return true
	default:
		return false
	}
}

var lineFeed = []byte{'\n'}
