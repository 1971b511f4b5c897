package wrap

import (
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/berthd/berth/rpc/wire"
)

// link is the connection home: it is made again for ever, and nothing waits
// for it but the last notice, which is bounded.
type link struct {
	w       *wrapper
	exited  chan struct{} // closed by announce: the agent's end is to be told
	quit    chan struct{} // closed by stop: end once that is told
	ended   chan struct{} // closed when run has returned
	leaving bool          // quit was seen
	notes   limiter
	dialer  dialer
	timer   *time.Timer
	first   sync.Once
	tried   chan struct{} // closed when the first hello is on its way, or cannot be
	early   *os.File      // connected before run, nil = not
	lostAt  time.Time     // since when there is no connection
}

func newLink(w *wrapper) *link {
	l := &link{w: w, exited: make(chan struct{}), quit: make(chan struct{}), ended: make(chan struct{}), tried: make(chan struct{})}
	l.dialer.path = w.launch.Socket
	l.timer = time.NewTimer(0)
	l.lostAt = time.Now()
	return l
}

// open connects before run does. What fails is tried again by run.
func (l *link) open() { l.early, _ = l.dialer.dial() }

// dial returns the connection that open has made, or a new one.
func (l *link) dial() (*os.File, error) {
	if f := l.early; f != nil {
		l.early = nil
		return f, nil
	}
	return l.dialer.dial()
}

// limiter lets one line pass per noteEvery: a daemon that is away for a week,
// or restarts all the time, must not fill a disk.
type limiter struct{ last time.Time }

func (l *limiter) due() bool {
	now := time.Now()
	if !l.last.IsZero() && now.Sub(l.last) < noteEvery {
		return false
	}
	l.last = now
	return true
}

// run connects and serves until stop.
func (l *link) run() {
	defer close(l.ended)
	for {
		conn, err := l.dial()
		if err == nil {
			err = l.serve(conn)
			l.lostAt = time.Now()
		}
		l.first.Do(func() { close(l.tried) })
		if l.leaving || l.stopped() {
			return
		}
		if errors.Is(err, errPoked) {
			continue
		}
		away := time.Since(l.lostAt)
		if (away > noteAfter || errors.Is(err, errRejected)) && l.notes.due() {
			l.w.log.logf("the daemon is out of reach at %s, trying again for ever: %v", l.w.launch.Socket, err)
		}
		if !l.pause(away) {
			l.leaving = true // one last try: the end is worth it
		}
	}
}

func (l *link) stopped() bool {
	select {
	case <-l.quit:
		return true
	default:
		return false
	}
}

// pause waits before the next try, for a random time so that a thousand
// wrappers do not come all at once, and longer when the daemon has been away for
// long. false = stop was called.
func (l *link) pause(away time.Duration) bool {
	l.timer.Reset(reconnectMin + rand.N(longestPause(away)-reconnectMin))
	select {
	case <-l.timer.C:
	case <-l.w.poke:
	case <-l.quit:
		return false
	}
	return true
}

// longestPause bounds the pause when the daemon has been away for that long.
func longestPause(away time.Duration) time.Duration {
	if away > patientAfter {
		return patientMax
	}
	return reconnectMax
}

// announce makes the link tell that the agent has ended.
func (l *link) announce() { close(l.exited) }

// stop ends the link, after announce, when the end has been told, at the latest
// after bound.
func (l *link) stop(bound time.Duration) {
	close(l.quit)
	t := time.NewTimer(bound)
	defer t.Stop()
	select {
	case <-l.ended:
	case <-t.C:
	}
}

// Errors that end a connection.
var (
	errRejected  = errors.New("the daemon refused the hello")
	errUnwelcome = errors.New("no answer to the hello")
	errPoked     = errors.New("told to connect again")
	errSaidBye   = errors.New("the end was told")
)

// conn is one connection.
type conn struct {
	link     *link
	file     *os.File
	writer   *wire.Writer
	status   wire.Status // of the heartbeat being written
	beat     wire.Frame
	frames   chan wire.Frame // closed with the connection
	readErr  error           // valid when frames is closed
	done     chan struct{}   // ends readLoop
	welcome  bool
	since    time.Time
	toldExit bool
	watching bool
	grown    <-chan struct{} // nil while not watching or pausing
}

// serve speaks on one connection until it ends.
func (l *link) serve(file *os.File) error {
	c := &conn{link: l, file: file, writer: wire.NewWriter(file), since: time.Now(), frames: make(chan wire.Frame), done: make(chan struct{})}
	go c.readLoop() // owner: serve; joined below
	err := c.talk()
	close(c.done)
	file.Close() // the connection is given up
	for range c.frames {
	}
	return err
}

// readLoop reads frames until the connection ends. Lines that are no frames are
// passed over: a newer daemon may know more.
func (c *conn) readLoop() {
	defer close(c.frames)
	r := wire.NewReader(c.file, wire.MaxFrame)
	var bad limiter
	for {
		f, err := r.ReadFrame()
		var syntax *wire.SyntaxError
		switch {
		case errors.As(err, &syntax), errors.Is(err, wire.ErrTooLong):
			if bad.due() {
				c.link.w.log.logf("reading from the daemon: %v", err)
			}
			continue
		case err != nil:
			c.readErr = err
			return
		}
		select {
		case c.frames <- f:
		case <-c.done:
			return
		}
	}
}

// write sends one frame within writeBound.
func (c *conn) write(f *wire.Frame) error {
	if err := c.file.SetWriteDeadline(time.Now().Add(writeBound)); err != nil {
		return err
	}
	return c.writer.WriteFrame(f)
}

// talk is the conversation.
func (c *conn) talk() error {
	w := c.link.w
	err := c.write(w.hello())
	c.link.first.Do(func() { close(c.link.tried) })
	if err != nil {
		return err
	}
	beat := time.NewTicker(w.launch.HeartbeatEvery)
	defer beat.Stop()
	late := time.NewTimer(welcomeBound)
	defer late.Stop()
	resume := time.NewTimer(time.Hour) // spool notices pause until it fires
	defer resume.Stop()
	quit, exited := c.link.quit, c.link.exited
	for {
		var err error
		select {
		case f, ok := <-c.frames:
			if !ok {
				return c.readErr
			}
			err = c.handle(f)
		case <-beat.C:
			err = c.sendStatus()
		case <-c.grown:
			c.grown = nil
			resume.Reset(spoolNoticeEvery)
			err = c.sendSpool()
		case <-resume.C:
			c.watch(c.watching)
		case <-w.poke:
			err = c.poked()
		case <-late.C:
			if !c.welcome {
				err = errUnwelcome
			}
		case <-exited:
			exited, err = nil, c.sendExited()
		case <-quit:
			quit, c.link.leaving = nil, true
		}
		if err == nil && c.link.leaving && c.toldExit && c.welcome {
			// Not before the welcome: the daemon verifies a live process.
			err = errSaidBye
		}
		if err != nil {
			return err
		}
	}
}

func (c *conn) sendExited() error {
	st := c.link.w.status()
	c.toldExit = true
	return c.write(&wire.Frame{Kind: wire.KindExited, Exit: st.Exit, Status: &st})
}

// poked answers SIGUSR1: a connection that was welcomed shows that it is alive,
// one whose hello has waited for long is made anew.
func (c *conn) poked() error {
	switch {
	case c.welcome:
		return c.sendStatus()
	case time.Since(c.since) > reconnectMax:
		return errPoked
	default:
		return nil
	}
}

func (c *conn) sendStatus() error {
	c.status = c.link.w.status()
	c.beat = wire.Frame{Kind: wire.KindStatus, Status: &c.status}
	return c.write(&c.beat)
}

func (c *conn) sendSpool() error {
	return c.write(&wire.Frame{Kind: wire.KindSpool, LastSeq: c.link.w.spool.LastSeq()})
}

// watch switches spool frames on or off.
func (c *conn) watch(on bool) {
	c.watching, c.grown = on, nil
	if on {
		c.grown = c.link.w.out.grown
	}
}
