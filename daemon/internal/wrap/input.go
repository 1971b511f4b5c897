package wrap

import (
	"errors"
	"os"
	"sync"

	"github.com/berthd/berth/rpc/wire"
)

// Errors of input.put; they travel to the daemon as text.
var (
	errInputFull   = errors.New("input queue full")
	errInputClosed = errors.New("the agent's input is closed")
	errInputEOF    = errors.New("a terminal has no end of input, send its end-of-file character")
)

// input queues what the daemon sends for the agent, so that an agent that does
// not read blocks nobody, and knows what it has taken before.
type input struct {
	mu     sync.Mutex
	queue  []wire.Input
	bytes  int
	closed bool // no more is taken: end of input, or the agent is gone
	term   bool
	seen   ids
	wake   chan struct{} // capacity 1
	ended  chan struct{}
}

func newInput() *input {
	return &input{wake: make(chan struct{}, 1), ended: make(chan struct{}), seen: newIDs(inputIDs)}
}

// serve starts writing to f, which it closes at the end of the input. A
// terminal is left open: the pump reads from the same file.
func (i *input) serve(f *os.File, terminal bool) {
	i.term = terminal
	go i.inputLoop(f) // owner: input; ends in close, or when the agent stops reading
}

// put takes in, or says why not. Input whose message was taken before succeeds
// again and is not written again.
func (i *input) put(in wire.Input) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case in.Message != "" && i.seen.has(in.Message):
		return nil
	case i.closed:
		return errInputClosed
	case in.EOF && i.term:
		return errInputEOF
	case len(i.queue) > 0 && (i.bytes+len(in.Data) > inputBytes || len(i.queue) >= inputItems):
		return errInputFull
	}
	i.seen.add(in.Message)
	i.queue = append(i.queue, in)
	i.bytes += len(in.Data)
	i.closed = in.EOF
	i.signal()
	return nil
}

func (i *input) signal() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// next returns the oldest input, after waiting for one. ok = false: closed.
func (i *input) next() (in wire.Input, ok bool) {
	for {
		i.mu.Lock()
		if len(i.queue) > 0 {
			in = i.queue[0]
			i.mu.Unlock()
			return in, true
		}
		i.mu.Unlock()
		select {
		case <-i.wake:
		case <-i.ended:
			return wire.Input{}, false
		}
	}
}

// taken removes what next returned, once it is written: until then it counts
// against the bound.
func (i *input) taken() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.bytes -= len(i.queue[0].Data)
	i.queue[0] = wire.Input{}
	i.queue = i.queue[1:]
	if len(i.queue) == 0 {
		i.queue = nil
	}
}

func (i *input) inputLoop(f *os.File) {
	for {
		in, ok := i.next()
		if !ok {
			return
		}
		if _, err := f.Write(in.Data); err != nil {
			i.refuse()
		}
		i.taken()
		if in.EOF {
			f.Close() // this is the end of input; nothing is buffered
		}
	}
}

// refuse ends the taking of input that nobody reads.
func (i *input) refuse() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
}

// close ends the loop. The agent is gone.
func (i *input) close() {
	i.refuse()
	close(i.ended)
}

// ids remembers the newest message ids, oldest forgotten first.
type ids struct {
	set  map[string]struct{}
	ring []string
	at   int
	max  int
}

func newIDs(limit int) ids { return ids{max: limit} }

func (d *ids) has(id string) bool {
	_, ok := d.set[id]
	return ok
}

// add remembers id; an empty one means that its sender wants no memory.
func (d *ids) add(id string) {
	if id == "" {
		return
	}
	if d.set == nil {
		d.set = make(map[string]struct{})
	}
	if len(d.ring) < d.max {
		d.ring = append(d.ring, id)
	} else {
		delete(d.set, d.ring[d.at])
		d.ring[d.at] = id
		d.at = (d.at + 1) % d.max
	}
	d.set[id] = struct{}{}
}
