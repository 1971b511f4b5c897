package rpctest

import (
	"context"

	"github.com/berthd/berth/rpc"
)

// Drain notes the drain; with Kill every session becomes vacant.
func (s *Service) Drain(_ context.Context, p rpc.Peer, req rpc.DrainRequest) (rpc.DrainReply, error) {
	if err := s.enter("drain", p, ""); err != nil {
		return rpc.DrainReply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain = &rpc.Drain{By: p.Name, Why: req.Why, Since: s.At}
	for _, x := range s.sessions {
		if req.Kill && x.tomb == nil {
			x.State = "vacant"
		}
	}
	return s.drainedLocked(), nil
}

// Undrain ends the drain.
func (s *Service) Undrain(_ context.Context, p rpc.Peer, _ rpc.UndrainRequest) (rpc.DrainReply, error) {
	if err := s.enter("undrain", p, ""); err != nil {
		return rpc.DrainReply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain = nil
	return s.drainedLocked(), nil
}

// Operations lists one operation that was answered.
func (s *Service) Operations(_ context.Context, p rpc.Peer, q rpc.OperationsQuery) (rpc.OperationsReply, error) {
	if err := s.enter("operations", p, ""); err != nil {
		return rpc.OperationsReply{}, err
	}
	reply := rpc.OperationsReply{Operations: []rpc.Operation{}}
	for _, op := range []rpc.Operation{
		{UID: 1000, Kind: "start", Key: "k1", Session: "a", Generation: 1, State: "done", Result: []byte(`{"session":"a"}`), At: s.At},
		{UID: 1000, Kind: "stop", Key: "k2", Session: "a", Generation: 1, State: "open", At: s.At},
		{UID: 1000, Kind: "start", Key: "k3", Session: "b", State: "failed", ErrorCode: rpc.CodeStartFailed, Message: "no such program", Conflicts: 2, At: s.At},
	} {
		if (q.Key == "" || q.Key == op.Key) && (q.Kind == "" || q.Kind == op.Kind) && (q.Session == "" || q.Session == op.Session) {
			reply.Operations = append(reply.Operations, op)
		}
	}
	return reply, nil
}

func (s *Service) drainedLocked() rpc.DrainReply {
	reply := rpc.DrainReply{Drain: s.drain, Sessions: map[string]int{}}
	for _, x := range s.sessions {
		if x.tomb == nil {
			reply.Sessions[x.State]++
		}
	}
	return reply
}
