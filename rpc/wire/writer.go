package wire

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// Writer writes frames to a byte stream and makes no garbage for the frames of
// an idle session: a wrapper lives for weeks, and every collection of its heap
// costs more memory than all of the rest. It is not safe for concurrent use.
type Writer struct {
	dst io.Writer
	buf []byte
}

// NewWriter returns a Writer on w.
func NewWriter(w io.Writer) *Writer { return &Writer{dst: w} }

// WriteFrame writes f as one line with one Write, as the function WriteFrame.
func (w *Writer) WriteFrame(f *Frame) error {
	line, err := AppendFrame(w.buf[:0], f)
	if err != nil {
		return err
	}
	if cap(line) <= readStep {
		w.buf = line
	}
	return writeLine(w.dst, line)
}

// WriteFrame writes f as one line with one Write. Errors: ErrTooLong (nothing
// was written), *WriteError. The caller sets the deadline of w and keeps
// concurrent writers apart.
func WriteFrame(w io.Writer, f *Frame) error {
	line, err := AppendFrame(nil, f)
	if err != nil {
		return err
	}
	return writeLine(w, line)
}

func writeLine(w io.Writer, line []byte) error {
	n, err := w.Write(line)
	if err == nil && n < len(line) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return &WriteError{Written: n, Size: len(line), Err: err}
	}
	return nil
}

// AppendFrame appends f's line, newline included, to dst. It fails with
// ErrTooLong when the line is longer than MaxFrame.
func AppendFrame(dst []byte, f *Frame) ([]byte, error) {
	if f.plain() {
		return append(appendPlain(dst, f), '\n'), nil
	}
	line, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encoding frame: %w", err)
	}
	if len(line)+1 > MaxFrame {
		return nil, fmt.Errorf("encoding %q frame of %d bytes: %w", f.Kind, len(line)+1, ErrTooLong)
	}
	return append(append(dst, line...), '\n'), nil
}

// plain reports whether f is one of the frames that go to and fro all the time:
// heartbeats, spool notices, replies without an error; or the hello of a wrapper
// whose agent has not ended, because encoding/json would take 60 KiB of every
// wrapper's memory for it.
func (f *Frame) plain() bool {
	if h := f.Hello; h != nil && !h.plain() || f.Exit != nil || f.Input != nil || f.Resize != nil || f.Stop != nil || f.Watch || f.Signal != 0 || f.Error != "" {
		return false
	}
	if s := f.Status; s != nil && !s.plain() {
		return false
	}
	return word(string(f.Kind))
}

func (s *Status) plain() bool { return s.StartError == "" && s.Exit == nil && word(s.Phase) }

func (h *Hello) plain() bool {
	for _, s := range []string{h.Host, h.Session, h.Instance, h.Token} {
		for i := range len(s) {
			if c := s[i]; c <= ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
				return false
			}
		}
	}
	return h.Status.plain()
}

// word reports whether s needs no escaping in JSON.
func word(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && c != '_' {
			return false
		}
	}
	return true
}

// appendPlain encodes a plain frame as encoding/json does.
func appendPlain(b []byte, f *Frame) []byte {
	b = append(append(append(b, `{"kind":"`...), f.Kind...), '"')
	b = appendNumber(b, `,"id":`, f.ID)
	if h := f.Hello; h != nil {
		b = strconv.AppendInt(append(b, `,"hello":{"version":`...), int64(h.Version), 10)
		b = append(append(append(b, `,"host":"`...), h.Host...), '"')
		b = append(append(append(b, `,"session":"`...), h.Session...), '"')
		b = append(append(append(b, `,"instance":"`...), h.Instance...), '"')
		b = strconv.AppendUint(append(b, `,"generation":`...), h.Generation, 10)
		b = append(append(append(b, `,"token":"`...), h.Token...), '"')
		b = strconv.AppendInt(append(b, `,"pid":`...), int64(h.PID), 10)
		b = append(appendStatus(b, &h.Status), '}')
	}
	if s := f.Status; s != nil {
		b = appendStatus(b, s)
	}
	b = appendNumber(b, `,"last_seq":`, f.LastSeq)
	return append(b, '}')
}

func appendStatus(b []byte, s *Status) []byte {
	b = append(append(append(b, `,"status":{"phase":"`...), s.Phase...), '"')
	if s.AgentPID != 0 {
		b = strconv.AppendInt(append(b, `,"agent_pid":`...), int64(s.AgentPID), 10)
	}
	b = appendNumber(b, `,"last_seq":`, s.LastSeq)
	b = appendNumber(b, `,"dropped_bytes":`, s.DroppedBytes)
	b = appendNumber(b, `,"journal_dropped":`, s.JournalDropped)
	return append(b, '}')
}

func appendNumber(b []byte, name string, n uint64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendUint(append(b, name...), n, 10)
}
