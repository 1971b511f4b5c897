package wrap

import (
	"os"
	"sync"
	"time"

	"github.com/berthd/berth/statefs/spool"
)

// output carries what the agent writes to the spool. A pump per stream reads,
// one spoolLoop writes; buffers travel between them, so that a disk that hangs
// stops the loop and not the pumps: those wait stallBound once and then drop,
// with a count, until the loop takes buffers again.
type output struct {
	spool  *spool.Writer
	log    *diary
	mirror *mirror     // nil = no copy in journald
	full   chan chunk  // from the pumps; has room for every buffer
	events chan []byte // event records, before any output that waits
	free   chan []byte
	grown  chan struct{} // the spool has a new record; capacity 1

	mu      sync.Mutex
	made    int // buffers that exist
	stalled bool
	files   []*os.File

	copied uint64 // spoolLoop's: the newest number that the mirror has

	pumps sync.WaitGroup
	loop  chan struct{} // closed when spoolLoop has ended
}

// chunk is one record to be written.
type chunk struct {
	stream spool.Stream
	data   []byte
}

func newOutput(w *spool.Writer, log *diary, m *mirror) *output {
	o := &output{
		spool:  w,
		log:    log,
		mirror: m,
		full:   make(chan chunk, outputBuffers),
		events: make(chan []byte, eventBuffers),
		free:   make(chan []byte, outputBuffers),
		grown:  make(chan struct{}, 1),
		loop:   make(chan struct{}),
	}
	go o.spoolLoop() // owner: output; ends when full is closed in drain
	return o
}

// pump starts reading f, until its end or until drain gives up on it.
func (o *output) pump(stream spool.Stream, f *os.File) {
	o.mu.Lock()
	o.files = append(o.files, f)
	o.mu.Unlock()
	o.pumps.Add(1)
	go func() { // owner: output; ends at end of file or by the deadline that drain sets
		defer o.pumps.Done()
		o.pumpLoop(stream, f)
	}()
}

func (o *output) pumpLoop(stream spool.Stream, f *os.File) {
	var spare []byte // to read into while the spool stalls
	for {
		buf := o.take()
		stalled := buf == nil
		if stalled {
			if spare == nil {
				spare = make([]byte, outputBuffer)
			}
			buf = spare
		}
		n, err := f.Read(buf[:cap(buf)])
		switch {
		case n == 0:
		case stalled:
			o.spool.Drop(stream, n)
		default:
			o.full <- chunk{stream: stream, data: buf[:n]} // never blocks: there is room for every buffer
			buf = nil
		}
		if buf != nil && !stalled {
			o.free <- buf // never blocks either
		}
		if err != nil {
			return
		}
	}
}

// take returns a free buffer, or nil when the spool stalls.
func (o *output) take() []byte {
	select {
	case b := <-o.free:
		o.setStalled(false)
		return b
	default:
	}
	if b := o.make(); b != nil {
		return b
	}
	if o.isStalled() {
		return nil
	}
	t := time.NewTimer(stallBound)
	defer t.Stop()
	select {
	case b := <-o.free:
		return b
	case <-t.C:
		o.setStalled(true)
		return nil
	}
}

func (o *output) make() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.made == outputBuffers {
		return nil
	}
	o.made++
	return make([]byte, outputBuffer)
}

func (o *output) setStalled(v bool) {
	o.mu.Lock()
	o.stalled = v
	o.mu.Unlock()
}

func (o *output) isStalled() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stalled
}
