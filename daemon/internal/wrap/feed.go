package wrap

import (
	"bytes"
	"errors"
	"time"

	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
	"github.com/berthd/berth/systemd/journald/catalog"
	"github.com/berthd/berth/systemd/journald/native"
)

// feed is the mirror's end at journald: unfinished lines, numbers, the rate.
type feed struct {
	socket  native.Socket
	launch  *wire.Launch
	entry   native.Entry
	partial [spool.PTY + 1][]byte // by stream: the line that has no end yet
	seq     [spool.PTY + 1]uint64 // where it has come to
	lines   uint64                // numbered so far, lost ones included
	owed    uint64                // lost ones that no entry tells of yet
	rate    bucket
}

func newFeed(l *wire.Launch) feed {
	return feed{
		socket: native.Socket{Path: l.JournalSocket}, launch: l,
		rate: bucket{perSecond: float64(l.JournalRate), full: float64(10 * l.JournalRate)},
	}
}

// lose takes over what was lost before p.
func (f *feed) lose(p piece) {
	for s, cut := range p.cut {
		if cut {
			f.partial[s] = nil
		}
	}
	f.lines += p.lost
	f.owed += p.lost
}

// split sends the lines that p completes. A line that is longer than lineMax
// becomes several entries.
func (m *mirror) split(p piece) {
	f := &m.feed
	for data := p.data; len(data) > 0; {
		part := f.partial[p.stream]
		room := lineMax - len(part)
		i := bytes.IndexByte(data[:min(len(data), room+1)], '\n')
		switch {
		case i >= 0 && len(part) == 0:
			m.line(p.stream, p.seq, data[:i])
			data = data[i+1:]
		case i >= 0:
			m.line(p.stream, p.seq, append(part, data[:i]...))
			f.partial[p.stream], data = nil, data[i+1:]
		case len(data) > room:
			m.line(p.stream, p.seq, append(part, data[:room]...))
			f.partial[p.stream], data = nil, data[room:]
		default:
			f.partial[p.stream], f.seq[p.stream] = append(part, data...), p.seq
			return
		}
	}
}

// flush sends the unfinished lines as they are.
func (m *mirror) flush() {
	for s, part := range m.feed.partial {
		if len(part) > 0 {
			m.feed.partial[s] = nil
			m.line(spool.Stream(s), m.feed.seq[s], part)
		}
	}
}

// line sends one line, after the loss before it, or drops it.
func (m *mirror) line(stream spool.Stream, seq uint64, text []byte) {
	f := &m.feed
	f.lines++
	if !f.rate.take(time.Now()) || f.owed > 0 && !m.tell() || !m.send(f.output(stream, seq, text)) {
		f.owed++
		m.dropped.Add(1)
	}
}

// tell sends the entry that stands for lines that are missing here.
func (m *mirror) tell() bool {
	f := &m.feed
	if f.owed == 0 {
		return true
	}
	lost, _ := catalog.Of("agent_dropped")
	e := f.begin(native.Warning)
	e.Set("MESSAGE_ID", lost.ID)
	e.Set("MESSAGE", lost.Text)
	e.Set(native.Event, lost.Event)
	e.Uint(native.Dropped, f.owed)
	if !m.send(e) {
		return false
	}
	f.owed = 0
	return true
}

// output makes the entry of a line.
func (f *feed) output(stream spool.Stream, seq uint64, text []byte) *native.Entry {
	priority := native.Info
	if stream == spool.Stderr {
		priority = native.Notice
	}
	e := f.begin(priority)
	e.Message(bytes.TrimSuffix(text, []byte{'\r'}))
	e.Set(native.Stream, stream.String())
	e.Uint(native.Line, f.lines)
	if seq > 0 {
		e.Uint(native.SpoolSeq, seq)
	}
	return e
}

// begin makes an entry with what all have.
func (f *feed) begin(p native.Priority) *native.Entry {
	e, l := &f.entry, f.launch
	e.Reset()
	e.Priority(p)
	e.Set("SYSLOG_IDENTIFIER", native.AgentIdentifier)
	e.Set(native.Host, l.Host)
	e.Set(native.Session, l.Session)
	e.Uint(native.Generation, l.Generation)
	e.Set(native.Instance, l.Instance)
	e.Set(native.Provider, l.Provider)
	return e
}

// send hands an entry to journald, again for as long as that is busy or away:
// meanwhile the queue fills, and it is there that lines are dropped. Only the
// end of the wrapper ends that.
func (m *mirror) send(e *native.Entry) bool {
	for {
		patience := sendBound
		if m.quitting() {
			m.mu.Lock()
			patience = time.Until(m.until)
			m.mu.Unlock()
			if patience <= 0 {
				return false
			}
		}
		err := m.feed.socket.Send(e, min(patience, sendBound))
		switch {
		case err == nil:
			return true
		case errors.Is(err, native.ErrAway):
			t := time.NewTimer(min(patience, awayPause))
			select {
			case <-t.C:
			case <-m.quit:
				<-t.C // the last tries have their pause too
			}
		case !errors.Is(err, native.ErrBusy):
			return false // this entry can never be sent
		}
	}
}

// bucket lets perSecond lines pass in a second, and full at once; without a
// rate all.
type bucket struct {
	perSecond, full, tokens float64
	last                    time.Time
}

func (b *bucket) take(now time.Time) bool {
	if b.perSecond == 0 {
		return true
	}
	if b.last.IsZero() {
		b.tokens = b.full
	} else {
		b.tokens = min(b.full, b.tokens+now.Sub(b.last).Seconds()*b.perSecond)
	}
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
