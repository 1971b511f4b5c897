package rpc

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"
)

// TerminalProtocol is the value of the Upgrade header of an attach request.
const TerminalProtocol = "berth-terminal"

// MaxTerminalFrame is the longest payload of a terminal frame, in bytes.
const MaxTerminalFrame = 64 << 10

// terminalHeader is the length of a frame's header: kind, three zero bytes,
// the payload's length and the sequence number, big endian.
const terminalHeader = 16

// ErrTerminalFrame is returned by Recv for bytes that are no terminal frame;
// the connection is of no further use.
var ErrTerminalFrame = errors.New("malformed terminal frame")

// Size is a terminal's size in character cells: the payload of TerminalResize.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// ResizeFrame makes a TerminalResize frame.
func ResizeFrame(s Size) TerminalFrame {
	data, _ := json.Marshal(s) // two numbers cannot fail
	return TerminalFrame{Kind: TerminalResize, Data: data}
}

// errorFrame makes the TerminalError frame of e: its code, a colon, its message.
func errorFrame(e *Error) TerminalFrame {
	return TerminalFrame{Kind: TerminalError, Data: []byte(string(e.Code) + ": " + e.Message)}
}

// ParseTerminalError reads the payload of a TerminalError frame. Text without
// a code of the set is CodeInternal.
func ParseTerminalError(data []byte) *Error {
	code, message, ok := strings.Cut(string(data), ": ")
	if _, known := httpStatus[Code(code)]; !ok || !known {
		return &Error{Code: CodeInternal, Message: string(data)}
	}
	return &Error{Code: Code(code), Message: message}
}

// ParseSize reads the payload of a TerminalResize frame, strictly.
func ParseSize(data []byte) (Size, error) {
	var s Size
	if err := decodeBody(data, &s); err != nil {
		return Size{}, err
	}
	if s.Rows == 0 || s.Cols == 0 {
		return Size{}, Errorf(CodeInvalidRequest, "a terminal of %d rows and %d columns cannot be", s.Rows, s.Cols)
	}
	return s, nil
}

// TerminalConn is one end of an upgraded attach connection, either side's.
// Recv is for one goroutine; Send and Close are for any.
type TerminalConn struct {
	conn    net.Conn
	r       *bufio.Reader
	timeout atomic.Int64
}

// NewTerminalConn speaks frames on conn; r holds what was already read of it.
// Each Send is bounded by sendTimeout, 0 = not.
func NewTerminalConn(conn net.Conn, r *bufio.Reader, sendTimeout time.Duration) *TerminalConn {
	t := &TerminalConn{conn: conn, r: r}
	t.SetSendTimeout(sendTimeout)
	return t
}

// SetSendTimeout bounds each later Send; 0 = not.
func (t *TerminalConn) SetSendTimeout(d time.Duration) { t.timeout.Store(int64(d)) }

// Recv returns the next frame of a known kind; others are skipped, so that
// later versions may add some. io.EOF: the peer has ended the conversation.
// io.ErrUnexpectedEOF: it was cut within a frame. ErrTerminalFrame: nonsense.
func (t *TerminalConn) Recv() (TerminalFrame, error) {
	for {
		f, err := t.recv()
		if err != nil {
			return TerminalFrame{}, err
		}
		if f.Kind <= TerminalError {
			return f, nil
		}
	}
}

func (t *TerminalConn) recv() (TerminalFrame, error) {
	var h [terminalHeader]byte
	if _, err := io.ReadFull(t.r, h[:]); err != nil {
		return TerminalFrame{}, err
	}
	n := binary.BigEndian.Uint32(h[4:8])
	switch {
	case h[0] == 0 || h[1] != 0 || h[2] != 0 || h[3] != 0:
		return TerminalFrame{}, fmt.Errorf("%w: header % x", ErrTerminalFrame, h)
	case n > MaxTerminalFrame:
		return TerminalFrame{}, fmt.Errorf("%w: payload of %d bytes, at most %d", ErrTerminalFrame, n, MaxTerminalFrame)
	}
	f := TerminalFrame{Kind: TerminalKind(h[0]), Seq: binary.BigEndian.Uint64(h[8:16])}
	if n > 0 {
		f.Data = make([]byte, n)
		if _, err := io.ReadFull(t.r, f.Data); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return TerminalFrame{}, err
		}
	}
	return f, nil
}

// Send writes one frame; TerminalData that is longer than MaxTerminalFrame
// goes as several with the same Seq. After an error the connection is closed:
// a part of a frame may have been written.
func (t *TerminalConn) Send(f TerminalFrame) error {
	for f.Kind == TerminalData && len(f.Data) > MaxTerminalFrame {
		part := TerminalFrame{Kind: f.Kind, Seq: f.Seq, Data: f.Data[:MaxTerminalFrame]}
		if err := t.send(part); err != nil {
			return err
		}
		f.Data = f.Data[MaxTerminalFrame:]
	}
	if len(f.Data) > MaxTerminalFrame {
		return fmt.Errorf("sending a terminal frame: payload of %d bytes, at most %d", len(f.Data), MaxTerminalFrame)
	}
	return t.send(f)
}

// send uses one Write, which package net makes atomic among goroutines.
func (t *TerminalConn) send(f TerminalFrame) error {
	b := make([]byte, terminalHeader, terminalHeader+len(f.Data))
	b[0] = byte(f.Kind)
	binary.BigEndian.PutUint32(b[4:8], uint32(len(f.Data)))
	binary.BigEndian.PutUint64(b[8:16], f.Seq)
	b = append(b, f.Data...)
	if d := time.Duration(t.timeout.Load()); d > 0 {
		t.conn.SetWriteDeadline(time.Now().Add(d))
	}
	if _, err := t.conn.Write(b); err != nil {
		t.conn.Close()
		return fmt.Errorf("sending a terminal frame: %w", err)
	}
	return nil
}

// Close ends the conversation; a Recv that waits returns.
func (t *TerminalConn) Close() error { return t.conn.Close() }

// ExitFrame makes a TerminalExit frame.
func ExitFrame(x Exit) TerminalFrame {
	data, _ := json.Marshal(x) // strings, numbers and a time cannot fail
	return TerminalFrame{Kind: TerminalExit, Data: data}
}
