package api

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/record"
)

// answerMax is how long an answer may be that the ledger keeps.
const answerMax = 4 << 10

// Answer makes the answer of an operation from its outcome. It is what the first
// caller gets and what every repeat gets, so nothing in it depends on the time
// at which it is asked for, and what is too long for the ledger is left out.
func Answer(kind string, end engine.Ending) []byte {
	if end.Tombstone != nil {
		tomb := tombstoneOf(end.Tombstone)
		data := encoded(rpc.DeleteReply{Tombstone: tomb})
		if len(data) > answerMax {
			tomb.Evidence = nil // explain has it
			data = encoded(rpc.DeleteReply{Tombstone: tomb})
		}
		return data
	}
	s := sessionOf(end.View)
	answer := func() []byte {
		if kind == "stop" {
			return encoded(rpc.StopReply{Session: s})
		}
		return encoded(s)
	}
	data := answer()
	if len(data) > answerMax {
		s.Command = nil // get has it
		data = answer()
	}
	return data
}

func encoded(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("internal error: encoding an answer: %v", err))
	}
	return data
}

// recorded is an answer as the ledger has it.
func recorded[R any](answer []byte, err error) (R, error) {
	var reply R
	if err != nil {
		return reply, refuse(err)
	}
	if err := json.Unmarshal(answer, &reply); err != nil {
		return reply, fmt.Errorf("decoding a recorded answer: %w", err)
	}
	return reply, nil
}

// operationsMax bounds one list.
const operationsMax = 1000

// Operations lists rows of the ledger: the caller's own, for operators and
// readers those of everybody.
func (a *API) Operations(_ context.Context, p rpc.Peer, q rpc.OperationsQuery) (rpc.OperationsReply, error) {
	snapshot := a.opts.Engine.Snapshot()
	reply := rpc.OperationsReply{Operations: []rpc.Operation{}}
	snapshot.Operations(func(op *record.Operation) bool {
		switch {
		case !may(p, op.UID), q.Key != "" && op.Key != q.Key, q.Kind != "" && op.Kind != q.Kind,
			q.Session != "" && op.Session != q.Session:
			return true
		case len(reply.Operations) == operationsMax:
			reply.Truncated = true
			return false
		}
		reply.Operations = append(reply.Operations, operationOf(snapshot, op))
		return true
	})
	return reply, nil
}

func operationOf(s *engine.Snapshot, op *record.Operation) rpc.Operation {
	out := rpc.Operation{
		UID: op.UID, Kind: op.Kind, Key: op.Key, Session: op.Session, Generation: op.Generation,
		State: "done", Conflicts: op.Conflicts, At: op.Wall,
	}
	switch {
	case op.Done && op.ErrorCode != "":
		out.State, out.ErrorCode = "failed", rpc.Code(op.ErrorCode)
		_ = json.Unmarshal(op.Result, &out.Message) // empty when it cannot be read
	case op.Done:
		out.Result = op.Result
	case op.Session == "":
		out.State = "open"
	default:
		out.State = "reconcile_pending"
		if v, ok := s.Sessions.Get([]byte(op.Session)); ok && v.InFlight(op) {
			out.State = "open"
		}
	}
	return out
}
