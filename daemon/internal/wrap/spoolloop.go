package wrap

import (
	"time"

	"github.com/berthd/berth/statefs/spool"
)

// put queues one event record; it is dropped and counted when the spool stalls.
func (o *output) put(data []byte) {
	select {
	case o.events <- data:
	default:
		o.spool.Drop(spool.Event, len(data))
	}
}

// spoolLoop writes what the pumps read until full is closed, then what events
// there are, and flushes it all to the disk.
func (o *output) spoolLoop() {
	defer close(o.loop)
	for {
		o.writeEvents()
		select {
		case e := <-o.events:
			o.append(spool.Event, e)
		case c, ok := <-o.full:
			if !ok {
				o.writeEvents()
				if err := o.spool.Sync(); err != nil {
					o.log.logf("flushing the spool: %v", err)
				}
				return
			}
			o.append(c.stream, c.data)
			o.copy(c)
			o.free <- c.data[:cap(c.data)] // never blocks: the buffer came from there
		}
	}
}

func (o *output) writeEvents() {
	for {
		select {
		case e := <-o.events:
			o.append(spool.Event, e)
		default:
			return
		}
	}
}

// append writes one record and says so. What cannot be kept is counted by the
// spool itself.
func (o *output) append(stream spool.Stream, data []byte) {
	if !o.spool.Append(stream, data) {
		return
	}
	select {
	case o.grown <- struct{}{}:
	default:
	}
}

// copy gives what was just appended to the mirror, with its number.
func (o *output) copy(c chunk) {
	if o.mirror == nil {
		return
	}
	seq := o.spool.LastSeq()
	if seq == o.copied { // it could not be kept
		seq = 0
	} else {
		o.copied = seq
	}
	o.mirror.put(c.stream, seq, c.data)
}

// drain reads what a dead agent left in its pipes, at most until bound where
// somebody still holds them open, and stops the pumps. It returns a channel
// that is closed when everything is in the spool.
func (o *output) drain(bound time.Duration) <-chan struct{} {
	go func() { // owner: output; ends by the deadline
		o.mu.Lock()
		files := o.files
		o.mu.Unlock()
		end := time.Now().Add(bound)
		for _, f := range files {
			if err := f.SetReadDeadline(end); err != nil {
				f.Close() // not pollable: nothing else ends the read
			}
		}
		o.pumps.Wait()
		for _, f := range files {
			f.Close() // read only
		}
		close(o.full)
	}()
	return o.loop
}
