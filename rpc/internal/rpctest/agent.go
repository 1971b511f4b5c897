package rpctest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/berthd/berth/rpc"
)

// Attach echoes what it is sent, in capitals, until "exit 7\r".
func (s *Service) Attach(_ context.Context, p rpc.Peer, id string, q rpc.AttachQuery, t rpc.Terminal) error {
	if err := s.enter("attach", p, id); err != nil {
		return err
	}
	s.mu.Lock()
	x, err := s.findLocked(id)
	switch {
	case err != nil:
	case x.State == "vacant":
		err = rpc.Errorf(rpc.CodeNotRunning, "session %q runs nothing", id)
	case !x.Terminal:
		err = rpc.Errorf(rpc.CodeCapability, "session %q has no terminal", id)
	default:
		x.size = rpc.Size{Rows: q.Rows, Cols: q.Cols}
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.echo(x, q, t)
}

func (s *Service) echo(x *session, q rpc.AttachQuery, t rpc.Terminal) error {
	seq := max(q.Since, 1)
	hello := fmt.Sprintf("hello %dx%d since %d\r\n", q.Rows, q.Cols, q.Since)
	if err := t.Send(rpc.TerminalFrame{Kind: rpc.TerminalData, Data: []byte(hello), Seq: seq}); err != nil {
		return err
	}
	for {
		f, err := t.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		seq++
		out := rpc.TerminalFrame{Kind: rpc.TerminalData, Data: []byte(strings.ToUpper(string(f.Data))), Seq: seq}
		switch {
		case f.Kind == rpc.TerminalResize:
			size, err := rpc.ParseSize(f.Data)
			if err != nil {
				return err
			}
			out = rpc.TerminalFrame{Kind: rpc.TerminalNotice, Data: fmt.Appendf(nil, "size %dx%d", size.Rows, size.Cols)}
		case string(f.Data) == "exit 7\r":
			s.Exit(x.Session.Session, rpc.Exit{Kind: "code", Code: 7})
			return t.Send(rpc.ExitFrame(rpc.Exit{Kind: "code", Code: 7, Generation: x.Generation}))
		case string(f.Data) == "fail\r":
			return rpc.Errorf(rpc.CodeUnreachable, "the wrapper does not answer")
		}
		if err := t.Send(out); err != nil {
			return err
		}
	}
}

// Output makes the session's agent write.
func (s *Service) Output(id, stream, data string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.sessions[id]
	recs := x.records[x.Generation]
	x.records[x.Generation] = append(recs, rpc.LogRecord{
		Generation: x.Generation, Seq: uint64(len(recs) + 1), At: s.At, Stream: stream, Data: []byte(data),
	})
	s.changedLocked()
}

// Exit ends the session's agent.
func (s *Service) Exit(id string, e rpc.Exit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exitLocked(s.sessions[id], e)
}

func (s *Service) exitLocked(x *session, e rpc.Exit) {
	if x.State == "vacant" {
		return
	}
	e.Instance, e.Generation, e.At = x.Instance, x.Generation, s.At
	x.State, x.Exit, x.Link, x.PID, x.AgentPID = "vacant", &e, "", 0, 0
	s.eventLocked(x, "owned_absent")
}

// Set changes the published state of a session, for states that only faults
// lead to.
func (s *Service) Set(id string, change func(*rpc.Session)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.sessions[id].Session)
	s.changedLocked()
}
