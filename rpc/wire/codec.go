package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Limits of the conversation. They are part of the protocol: a peer that
// exceeds one is told so and disconnected.
const (
	// MaxFrame is the most bytes that one line may have, its newline included.
	MaxFrame = 1 << 20
	// MaxLaunch is the most bytes that a Launch object may have.
	MaxLaunch = 1 << 20
	// MaxInput is the most bytes of Input.Data that surely fit into a frame:
	// base64 makes four of three, and the rest of the frame needs room too.
	MaxInput = 512 << 10
)

// readStep is the initial size of a Reader's buffer, and the size that it
// falls back to after a large frame.
const readStep = 1 << 10

var (
	// ErrTooLong says that a line is longer than the reader's limit. The line
	// is skipped: the next ReadFrame returns the line after it.
	ErrTooLong = errors.New("frame exceeds the size limit")
	// ErrAbandoned is an end of file where a Launch was awaited: the daemon
	// gave this wrapper up before it sent the go.
	ErrAbandoned = errors.New("no launch object before end of file")
)

// SyntaxError is a line that is not a frame. The connection is still in step:
// the next ReadFrame returns the line after it.
type SyntaxError struct {
	// Reason is what is wrong; it never quotes the line, which may hold secrets.
	Reason string
}

// Error says what is wrong with the line.
func (e *SyntaxError) Error() string { return "malformed frame: " + e.Reason }

// WriteError is a write that failed. With Written > 0 a part of the line is on
// its way, so that the connection is out of step and must be closed.
type WriteError struct {
	Written, Size int
	Err           error
}

// Error says how far the write came.
func (e *WriteError) Error() string {
	return fmt.Sprintf("writing frame: %d of %d bytes: %v", e.Written, e.Size, e.Err)
}

// Unwrap returns the cause, for example os.ErrDeadlineExceeded.
func (e *WriteError) Unwrap() error { return e.Err }

// Reader reads frames from a byte stream. It reads ahead, so that nothing else
// may read from the same stream. It is not safe for concurrent use.
type Reader struct {
	src      io.Reader
	max      int
	buf      []byte // unread bytes are buf[start:end]
	start    int
	end      int
	skipping bool // inside a line that was too long
	err      error
}

// NewReader returns a Reader on r with a limit of max bytes a line, newline
// included; max ≤ 0 means MaxFrame.
func NewReader(r io.Reader, max int) *Reader {
	if max <= 0 {
		max = MaxFrame
	}
	return &Reader{src: r, max: max, buf: make([]byte, min(readStep, max))}
}

// ReadFrame returns the next frame; empty lines are passed over. Errors:
// io.EOF at a clean end, io.ErrUnexpectedEOF inside a line, ErrTooLong and
// *SyntaxError (both may be read past), else the stream's own. What the frame
// holds is the caller's.
func (r *Reader) ReadFrame() (Frame, error) {
	for {
		line, err := r.readLine()
		if err != nil {
			return Frame{}, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		return parseFrame(line)
	}
}

// Wait blocks until a line is there, whole or as far as it fits, or the stream
// has ended: ReadFrame then returns without waiting for the peer. It lets many
// idle connections be waited for with little stack each and decoded elsewhere.
func (r *Reader) Wait() {
	for r.err == nil && r.end-r.start < r.max && bytes.IndexByte(r.buf[r.start:r.end], '\n') < 0 {
		r.fill()
	}
}

func parseFrame(line []byte) (Frame, error) {
	if string(line) == welcomeLine { // all that most wrappers ever hear
		return Frame{Kind: KindWelcome}, nil
	}
	var f Frame
	if err := json.Unmarshal(line, &f); err != nil {
		return Frame{}, &SyntaxError{Reason: jsonReason(err)}
	}
	if f.Kind == "" {
		return Frame{}, &SyntaxError{Reason: "no kind"}
	}
	return f, nil
}

// welcomeLine is the frame as AppendFrame makes it.
const welcomeLine = `{"kind":"welcome"}`

// jsonReason describes a decoding error without quoting the input.
func jsonReason(err error) string {
	var typ *json.UnmarshalTypeError
	var syn *json.SyntaxError
	switch {
	case errors.As(err, &typ):
		return fmt.Sprintf("field %q has the wrong type at byte %d", typ.Field, typ.Offset)
	case errors.As(err, &syn):
		return fmt.Sprintf("not JSON at byte %d", syn.Offset)
	default:
		return "not a frame"
	}
}

// readLine returns the next line without its newline; it is valid until the
// next call.
func (r *Reader) readLine() ([]byte, error) {
	scanned := 0
	for {
		if i := bytes.IndexByte(r.buf[r.start+scanned:r.end], '\n'); i >= 0 {
			line := r.buf[r.start : r.start+scanned+i]
			r.start += scanned + i + 1
			if r.skipping {
				r.skipping, scanned = false, 0
				continue
			}
			return line, nil
		}
		scanned = r.end - r.start
		if r.skipping {
			r.start, r.end, scanned = 0, 0, 0
		}
		if scanned >= r.max {
			r.skipping = true
			return nil, ErrTooLong
		}
		if r.err != nil {
			return nil, r.endError(scanned)
		}
		r.fill()
	}
}

func (r *Reader) endError(pending int) error {
	if r.err == io.EOF && (pending > 0 || r.skipping) {
		return io.ErrUnexpectedEOF
	}
	return r.err
}

// fill makes room and reads once.
func (r *Reader) fill() {
	if r.start > 0 {
		r.compact()
	}
	if r.end == len(r.buf) {
		grown := make([]byte, min(2*len(r.buf), r.max))
		r.end = copy(grown, r.buf[:r.end])
		r.buf = grown
	}
	n, err := r.src.Read(r.buf[r.end:])
	r.end += n
	if n == 0 && err == nil {
		err = io.ErrNoProgress
	}
	r.err = err
}

// compact moves the unread bytes to the front, into a small buffer again when
// they fit into one: a wrapper lives for days after one large frame.
func (r *Reader) compact() {
	unread := r.buf[r.start:r.end]
	if len(r.buf) > readStep && len(unread) < readStep {
		r.buf = make([]byte, readStep)
	}
	r.end = copy(r.buf, unread)
	r.start = 0
}

// ReadLaunch reads a Launch until end of file. Errors: ErrAbandoned when there
// is none, ErrTooLong, *SyntaxError (also for a cut object or a foreign
// version), else the stream's own.
func ReadLaunch(r io.Reader) (Launch, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxLaunch+1))
	if err != nil {
		return Launch{}, fmt.Errorf("reading launch object: %w", err)
	}
	if len(data) > MaxLaunch {
		return Launch{}, fmt.Errorf("reading launch object: %w", ErrTooLong)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return Launch{}, ErrAbandoned
	}
	var l Launch
	if err := json.Unmarshal(data, &l); err != nil {
		return Launch{}, &SyntaxError{Reason: jsonReason(err)}
	}
	if l.Version < 1 || l.Version > Version {
		return Launch{}, &SyntaxError{Reason: fmt.Sprintf("launch version %d, this wrapper speaks %d", l.Version, Version)}
	}
	return l, nil
}

// WriteLaunch writes l. The caller closes w afterwards: the end of file is the
// go.
func WriteLaunch(w io.Writer, l *Launch) error {
	data, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encoding launch object: %w", err)
	}
	if len(data) > MaxLaunch {
		return fmt.Errorf("encoding launch object of %d bytes: %w", len(data), ErrTooLong)
	}
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("writing launch object: %w", err)
	}
	return nil
}
