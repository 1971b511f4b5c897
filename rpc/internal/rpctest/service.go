// Package rpctest is an rpc.Service in memory, for tests of the server, the
// client and berthctl over real sockets. It keeps the shapes of the answers
// and the order of events; it runs no process. Its clock stands still.
package rpctest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthd/berth/rpc"
)

// Service is the memory. The zero value is not ready; see New.
type Service struct {
	// At is the wall time of everything.
	At time.Time
	// UID is the owner of what is started; 0 = the peer's.
	UID uint32
	// Started is called after a start, in a goroutine of its own; nil = not.
	// Wait for it with Join.
	Started func(id string)
	started sync.WaitGroup

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at every change
	sessions map[string]*session
	events   []rpc.Event
	fail     map[string]error
	calls    []string
	peers    []rpc.Peer
	inputs   map[string][]byte
	drain    *rpc.Drain
}

type session struct {
	rpc.Session
	spec    rpc.SessionSpec
	records map[uint64][]rpc.LogRecord
	size    rpc.Size
	tomb    *rpc.Tombstone
}

// New makes an empty memory.
func New() *Service {
	return &Service{At: time.Date(2026, 11, 29, 19, 0, 0, 0, time.UTC), changed: make(chan struct{}), sessions: map[string]*session{}, fail: map[string]error{}, inputs: map[string][]byte{}}
}

// Join waits for the calls of Started.
func (s *Service) Join() { s.started.Wait() }

// Fail makes the method of that name fail with err; nil ends it.
func (s *Service) Fail(method string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail[method] = err
}

// Calls lists what was called, "method session".
func (s *Service) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Peers lists the peers of the calls.
func (s *Service) Peers() []rpc.Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.peers)
}

// Input returns what the session's agent was sent.
func (s *Service) Input(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.inputs[id])
}

// Changed returns a channel that is closed at the next change.
func (s *Service) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// changedLocked wakes everyone who waits.
func (s *Service) changedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// enter notes a call and returns the failure that was planted for it.
func (s *Service) enter(method string, p rpc.Peer, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, strings.TrimSpace(method+" "+id))
	s.peers = append(s.peers, p)
	return s.fail[method]
}

func (s *Service) findLocked(id string) (*session, error) {
	x, ok := s.sessions[id]
	if !ok {
		return nil, rpc.Errorf(rpc.CodeNotFound, "there is no session %q", id)
	}
	if x.tomb != nil {
		return nil, rpc.Errorf(rpc.CodeSessionDeleted, "session %q was deleted", id)
	}
	return x, nil
}

func (s *Service) eventLocked(x *session, kind string) {
	s.events = append(s.events, rpc.Event{
		Seq: uint64(len(s.events) + 1), At: s.At, Session: x.Session.Session, Generation: x.Generation,
		Instance: x.Instance, Kind: kind, State: x.State, Exit: x.Exit,
	})
	x.LastEvent, x.LastChange = kind, s.At
	s.changedLocked()
}

// Start starts at once.
func (s *Service) Start(_ context.Context, p rpc.Peer, id string, req rpc.StartRequest) (rpc.StartReply, error) {
	if err := s.enter("start", p, id); err != nil {
		return rpc.StartReply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.sessions[id]
	switch {
	case ok && x.tomb != nil:
		return rpc.StartReply{}, rpc.Errorf(rpc.CodeSessionDeleted, "session %q was deleted", id)
	case !ok && (req.Spec == nil || len(req.Spec.Command) == 0):
		return rpc.StartReply{}, rpc.Errorf(rpc.CodeInvalidRequest, "a new session needs a command")
	case !ok:
		x = &session{records: map[uint64][]rpc.LogRecord{}, spec: *req.Spec}
		x.Session = rpc.Session{Session: id, UID: p.UID, State: "vacant", Command: req.Spec.Command, Terminal: req.Spec.Terminal}
		x.Provider, x.Workspace = "process", "/var/lib/berth/workspaces/"+id
		x.NextGeneration = 1
		if s.UID != 0 {
			x.UID = s.UID
		}
		s.sessions[id] = x
	}
	if x.State == "vacant" {
		x.Generation = x.NextGeneration
		x.NextGeneration++
		x.Instance = fmt.Sprintf("%032x", x.Generation)
		x.State, x.Link, x.PID, x.AgentPID, x.Exit = "active", "up", 4000, 4001, nil
		s.eventLocked(x, "verified")
		if s.Started != nil {
			s.started.Go(func() { s.Started(id) })
		}
	}
	return rpc.StartReply{
		Session: id, Instance: x.Instance, Generation: x.Generation, PID: x.PID,
		AgentPID: x.AgentPID, Workspace: x.Workspace, Provider: x.Provider,
	}, nil
}

// List lists by id.
func (s *Service) List(_ context.Context, p rpc.Peer) (rpc.ListReply, error) {
	if err := s.enter("list", p, ""); err != nil {
		return rpc.ListReply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	reply := rpc.ListReply{State: "ready"}
	for _, x := range s.sessions {
		if x.tomb == nil {
			reply.Sessions = append(reply.Sessions, x.Session)
		}
	}
	slices.SortFunc(reply.Sessions, func(a, b rpc.Session) int { return strings.Compare(a.Session, b.Session) })
	return reply, nil
}

// Get returns one session.
func (s *Service) Get(_ context.Context, p rpc.Peer, id string) (rpc.Session, error) {
	if err := s.enter("get", p, id); err != nil {
		return rpc.Session{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.findLocked(id)
	if err != nil {
		return rpc.Session{}, err
	}
	return x.Session, nil
}

// Explain answers with two witnesses.
func (s *Service) Explain(_ context.Context, p rpc.Peer, id string) (rpc.ExplainReply, error) {
	if err := s.enter("explain", p, id); err != nil {
		return rpc.ExplainReply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.sessions[id]
	if !ok {
		return rpc.ExplainReply{}, rpc.Errorf(rpc.CodeNotFound, "there is no session %q", id)
	}
	answer := "absent"
	if x.State != "vacant" {
		answer = "present"
	}
	reply := rpc.ExplainReply{Verdict: answer, Strength: "strong", Tombstone: x.tomb, Leaf: "/sys/fs/cgroup/berth-0/berth-" + id + "-g1"}
	reply.Witnesses = []rpc.Witness{
		{Name: "leaf", Answer: answer, AgeSeconds: 0.25, Detail: "cgroup.events"},
		{Name: "lock", Answer: answer, AgeSeconds: 0.5},
	}
	if x.tomb == nil {
		reply.Session, reply.Spec = &x.Session, &x.spec
	}
	if x.State != "vacant" {
		reply.Processes = []rpc.Process{{PID: x.PID, UID: x.UID, Comm: "berth-wrap", Session: id, Kind: "wrapper"}}
	}
	return reply, nil
}

// Send keeps what it is sent.
func (s *Service) Send(_ context.Context, p rpc.Peer, id string, req rpc.SendRequest) (rpc.SendReply, error) {
	if err := s.enter("send", p, id); err != nil {
		return rpc.SendReply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.findLocked(id)
	if err != nil {
		return rpc.SendReply{}, err
	}
	if x.State == "vacant" {
		return rpc.SendReply{}, rpc.Errorf(rpc.CodeNotRunning, "session %q runs nothing", id)
	}
	s.inputs[id] = append(s.inputs[id], req.Data...)
	if req.EOF {
		s.inputs[id] = append(s.inputs[id], "<EOF>"...)
	}
	s.changedLocked()
	return rpc.SendReply{Generation: x.Generation}, nil
}

// Stop ends the session with signal 15.
func (s *Service) Stop(_ context.Context, p rpc.Peer, id string, _ rpc.StopRequest) (rpc.StopReply, error) {
	if err := s.enter("stop", p, id); err != nil {
		return rpc.StopReply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.findLocked(id)
	if err != nil {
		return rpc.StopReply{}, err
	}
	s.exitLocked(x, rpc.Exit{Kind: "signal", Signal: 15, Reason: "operator", By: "uid 0"})
	return rpc.StopReply{Session: x.Session}, nil
}

// Delete leaves a tombstone.
func (s *Service) Delete(_ context.Context, p rpc.Peer, id string, req rpc.DeleteRequest) (rpc.DeleteReply, error) {
	if err := s.enter("delete", p, id); err != nil {
		return rpc.DeleteReply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.findLocked(id)
	if err != nil {
		return rpc.DeleteReply{}, err
	}
	s.exitLocked(x, rpc.Exit{Kind: "signal", Signal: 15, Reason: "session_delete"})
	x.tomb = &rpc.Tombstone{Session: id, LastGeneration: x.NextGeneration - 1, Reason: "explicit", At: s.At}
	s.eventLocked(x, "deleted")
	if !req.Wait {
		return rpc.DeleteReply{Deleting: &rpc.DeleteState{Reason: "explicit", Step: "stop", Since: s.At}}, nil
	}
	return rpc.DeleteReply{Tombstone: x.tomb}, nil
}

// Wait waits for vacant.
func (s *Service) Wait(ctx context.Context, p rpc.Peer, id string) (rpc.WaitReply, error) {
	if err := s.enter("wait", p, id); err != nil {
		return rpc.WaitReply{}, err
	}
	for {
		s.mu.Lock()
		x, err := s.findLocked(id)
		changed := s.changed
		if err != nil || x.State == "vacant" {
			defer s.mu.Unlock()
			if err != nil {
				return rpc.WaitReply{}, err
			}
			return rpc.WaitReply{Session: x.Session}, nil
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return rpc.WaitReply{}, ctx.Err()
		}
	}
}

// Resolve makes the session vacant.
func (s *Service) Resolve(_ context.Context, p rpc.Peer, id string, req rpc.ResolveRequest) (rpc.Session, error) {
	if err := s.enter("resolve", p, id); err != nil {
		return rpc.Session{}, err
	}
	if !req.Verified {
		return rpc.Session{}, rpc.Errorf(rpc.CodeInvalidRequest, "verified must be true")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.findLocked(id)
	if err != nil {
		return rpc.Session{}, err
	}
	x.State = "vacant"
	s.eventLocked(x, req.Action)
	return x.Session, nil
}

// Logs yields the records of a generation.
func (s *Service) Logs(ctx context.Context, p rpc.Peer, id string, q rpc.LogsQuery, emit func(rpc.LogRecord) error) error {
	if err := s.enter("logs", p, id); err != nil {
		return err
	}
	next := max(q.Since, 1)
	for {
		s.mu.Lock()
		x, err := s.findLocked(id)
		if err != nil {
			s.mu.Unlock()
			return err
		}
		if q.Generation == 0 {
			q.Generation = x.NextGeneration - 1
		}
		all := x.records[q.Generation]
		due := slices.Clone(all[min(int(next-1), len(all)):])
		over := !q.Follow || x.State == "vacant" || x.Generation != q.Generation
		changed := s.changed
		s.mu.Unlock()
		for _, r := range due {
			if err := emit(r); err != nil {
				return err
			}
			next = r.Seq + 1
		}
		if over {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Events yields events.
func (s *Service) Events(ctx context.Context, p rpc.Peer, q rpc.EventsQuery, emit func(rpc.Event) error) error {
	if err := s.enter("events", p, q.Session); err != nil {
		return err
	}
	for next := int(q.After); ; {
		s.mu.Lock()
		due := slices.Clone(s.events[min(next, len(s.events)):])
		changed := s.changed
		s.mu.Unlock()
		for _, e := range due {
			next = int(e.Seq)
			if q.Session != "" && q.Session != e.Session {
				continue
			}
			if err := emit(e); err != nil {
				return err
			}
		}
		if !q.Follow {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
