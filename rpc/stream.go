package rpc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"time"
)

const contentNDJSON = "application/x-ndjson"

// ndjson writes one stream. It belongs to the goroutine of the request; the
// Service runs in another, so that a silent stream can have heartbeats.
type ndjson struct {
	q       *request
	flusher *http.ResponseController
	records chan []byte
	done    chan error
}

// stream runs an NDJSON method. An error before the first record is returned,
// and gets a status of its own; a later one is the stream's last line. When
// the server shuts down or the peer stops reading, the stream ends without the
// end mark of its HTTP body, which the caller can tell from a stream that is over.
func (q *request) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n := &ndjson{
		q:       q,
		flusher: http.NewResponseController(q.w),
		records: make(chan []byte, streamBuffer),
		done:    make(chan error, 1),
	}
	q.in.emit = func(v any) error { return n.emit(ctx, v) }
	go func() { // owned by this request: loop waits for done
		_, err := q.call(ctx)
		n.done <- err
	}()
	if err := n.loop(); err != nil {
		cancel()
		<-n.done
		return err
	}
	return nil
}

// emit hands a record to the request's goroutine. It blocks while the peer
// does not read and fails once the stream has ended.
func (n *ndjson) emit(ctx context.Context, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding a record: %w", err)
	}
	select {
	case n.records <- append(data, '\n'):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// loop writes records and heartbeats until the Service is done. An error is a
// write that failed, or what the Service returned before the first record; in
// the second case done is filled again for the waiting caller.
func (n *ndjson) loop() error {
	beat := time.NewTimer(streamStart)
	defer beat.Stop()
	for {
		select {
		case data := <-n.records:
			if err := n.write(data); err != nil {
				return err
			}
		case <-beat.C:
			line := []byte("\n")
			if !n.q.begun {
				line = nil // the status line alone
			}
			if err := n.write(line); err != nil {
				return err
			}
			beat.Reset(n.q.s.cfg.Bounds.Heartbeat)
		case err := <-n.done:
			n.done <- nil
			return n.finish(err)
		}
	}
}

// finish writes what is still buffered and how the stream ended.
func (n *ndjson) finish(err error) error {
	for len(n.records) > 0 {
		if err := n.write(<-n.records); err != nil {
			return err
		}
	}
	if err == nil {
		return n.write(nil)
	}
	e := n.q.refusal(err)
	if !n.q.begun || e == nil || n.q.s.draining.Load() {
		return err
	}
	line, err := json.Marshal(map[string]*Error{"error": e})
	if err != nil {
		return fmt.Errorf("encoding an error: %w", err)
	}
	return n.write(append(line, '\n'))
}

// write sends data (nil = only the header) and flushes when nothing waits.
func (n *ndjson) write(data []byte) error {
	n.q.deadline()
	if !n.q.begun {
		n.q.begun = true
		n.q.w.Header().Set("Content-Type", contentNDJSON)
		n.q.w.WriteHeader(http.StatusOK)
	}
	if _, err := n.q.w.Write(data); err != nil {
		return err
	}
	// A Service that has more at once gets to say so: records that come in a
	// row share a flush.
	if runtime.Gosched(); len(n.records) > 0 {
		return nil
	}
	return n.flusher.Flush()
}
