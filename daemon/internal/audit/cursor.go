package audit

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// settle is how long after an event the cursor is written at the latest, where
// the log is quick.
const settle = 100 * time.Millisecond

// Cursor remembers, in a file of the runtime directory, up to which event the
// log is complete, so that what a killed daemon had not passed on is passed on
// by the next one. It moves once the log has really taken an event: after a kill
// the last ones may be there twice, with the same number, but none is missing.
type Cursor struct {
	idle func() bool // the log has nothing waiting

	mu     sync.Mutex
	file   *os.File // nil = cannot be kept
	seq    uint64   // logged
	timer  *time.Timer
	closed bool
}

// OpenCursor opens the file at path and returns where to go on: after the number
// in it, or, where there is none that can be right, after last, the newest event
// of the journal. idle says whether the log has nothing waiting; nil = never has.
func OpenCursor(path string, last uint64, idle func() bool) (c *Cursor, after uint64, err error) {
	c = &Cursor{idle: idle}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return c, last, fmt.Errorf("opening the log's cursor: %w", err)
	}
	c.file = file
	var seq uint64
	if _, err := fmt.Fscanf(file, "%d\n", &seq); err != nil || seq > last { // empty, or of another journal
		seq = last
	}
	c.seq = seq
	c.write()
	return c, seq, nil
}

// passed tells that the event was given to the log.
func (c *Cursor) passed(seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq = seq
	if c.timer == nil && !c.closed {
		c.timer = time.AfterFunc(settle, c.move) // ended by Close
	}
}

// move writes the cursor when the log has taken everything, else later.
func (c *Cursor) move() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = nil
	switch {
	case c.closed:
	case c.taken():
		c.write()
	default:
		c.timer = time.AfterFunc(settle, c.move)
	}
}

// write puts the number in place. It is not flushed: it dies with the host, and
// so does what journald has not written.
func (c *Cursor) write() {
	if c.file != nil {
		_, _ = c.file.WriteAt(fmt.Appendf(nil, "%020d\n", c.seq), 0) // the next one repairs it
	}
}

// Close waits, at most for bound, until the log has taken everything, and writes
// the cursor for the last time. It is called after Run has returned.
func (c *Cursor) Close(bound time.Duration) error {
	for end := time.Now().Add(bound); !c.taken() && time.Now().Before(end); {
		time.Sleep(bound / 100)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.file == nil {
		return nil
	}
	if c.taken() {
		c.write()
	}
	return c.file.Close()
}

func (c *Cursor) taken() bool { return c.idle == nil || c.idle() }
