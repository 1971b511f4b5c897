package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/berthd/berth/rpc"
)

const (
	// maxRecord bounds one line of a stream, in bytes.
	maxRecord = 16 << 20
	// stallTimeout ends a stream that shows neither records nor heartbeats:
	// the daemon sends one at least every rpc.DefaultHeartbeat.
	stallTimeout = 4 * rpc.DefaultHeartbeat
)

var errStalled = errors.New("it shows no sign of life")

// records reads an NDJSON stream.
func records[R any](ctx context.Context, c *Client, method, session string, query any) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		var none R
		sctx, cancel := context.WithCancel(ctx)
		defer cancel()
		resp, err := c.do(sctx, method, session, query, nil)
		if err != nil {
			yield(none, err)
			return
		}
		defer resp.Body.Close()
		stall := time.AfterFunc(c.stall, cancel)
		defer stall.Stop()
		r := bufio.NewReaderSize(resp.Body, 64<<10)
		for {
			stall.Reset(c.stall)
			line, err := readLine(r)
			if !stall.Stop() && ctx.Err() == nil {
				err = errStalled
			}
			switch {
			case errors.Is(err, io.EOF):
				return
			case errors.Is(err, bufio.ErrTooLong):
				yield(none, fmt.Errorf("reading %s: a record is longer than %d bytes", method, maxRecord))
				return
			case err != nil:
				yield(none, c.unreachable(ctx, err))
				return
			case len(line) == 0: // a heartbeat
				continue
			}
			record, err := decodeRecord[R](line)
			if !yield(record, err) || err != nil {
				return
			}
		}
	}
}

// readLine returns the next line without its end; io.EOF after the last one.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return bytes.TrimSpace(line), nil
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(line) > maxRecord:
			return nil, bufio.ErrTooLong
		}
	}
}

// decodeRecord reads one line: a record, or the error that ends the stream.
func decodeRecord[R any](line []byte) (R, error) {
	var none, record R
	if bytes.HasPrefix(line, []byte(`{"error":`)) {
		var last struct {
			Error *rpc.Error `json:"error"`
		}
		if err := json.Unmarshal(line, &last); err == nil && last.Error != nil && last.Error.Code != "" {
			return none, last.Error
		}
	}
	if err := json.Unmarshal(line, &record); err != nil {
		return none, fmt.Errorf("decoding a record: %w", err)
	}
	return record, nil
}
