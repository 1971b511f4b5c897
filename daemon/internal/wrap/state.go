package wrap

import (
	"encoding/json"
	"path/filepath"
	"sync"
	"time"

	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs"
)

// state is what the wrapper tells about itself.
type state struct {
	mu     sync.Mutex
	status wire.Status
	stop   *wire.Stop // the first one that was asked for
}

func (s *state) set(change func(*wire.Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// askStop remembers why the agent is going to end. The first reason stays.
func (s *state) askStop(stop wire.Stop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop == nil && s.status.Phase != wire.PhaseExited {
		s.stop = &stop
	}
}

func (s *state) askedStop() *wire.Stop {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop
}

// status returns the wrapper's state at this moment.
func (w *wrapper) status() wire.Status {
	w.state.mu.Lock()
	st := w.state.status
	w.state.mu.Unlock()
	st.LastSeq, st.DroppedBytes = w.spool.LastSeq(), w.spool.DroppedBytes()
	return st
}

// writeStatus writes status.json. A failure is logged and no more: the file is
// a hint for whoever looks for the wrapper, the lock is the evidence.
func (w *wrapper) writeStatus() {
	f := wire.StatusFile{
		Version: wire.FilesVersion, Host: w.launch.Host, Session: w.launch.Session,
		Instance: w.launch.Instance, Generation: w.launch.Generation,
		Epoch: w.epoch, PID: w.self.PID, StartTicks: w.self.StartTicks, At: time.Now().UTC(),
	}
	w.state.set(func(s *wire.Status) { f.Phase, f.AgentPID = s.Phase, s.AgentPID })
	if f.AgentPID != 0 {
		if id, err := sys.IdentityOf(f.AgentPID); err == nil {
			f.AgentStartTicks = id.StartTicks
		}
	}
	if err := w.writeFile(wire.StatusName, f); err != nil {
		logf("writing the status file: %v", err)
	}
}

func (w *wrapper) writeFile(name string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return statefs.WriteFile(filepath.Join(w.launch.Dir, name), append(data, '\n'), 0o600)
}
