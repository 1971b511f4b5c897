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

func (s *Service) drainedLocked() rpc.DrainReply {
	reply := rpc.DrainReply{Drain: s.drain, Sessions: map[string]int{}}
	for _, x := range s.sessions {
		if x.tomb == nil {
			reply.Sessions[x.State]++
		}
	}
	return reply
}
