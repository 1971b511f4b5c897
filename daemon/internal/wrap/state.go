package wrap

import (
	"encoding/json"
	"os"
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
	st.JournalDropped = w.out.mirror.droppedEntries()
	return st
}

// statusFile describes the wrapper at this moment.
func (w *wrapper) statusFile() wire.StatusFile {
	f := wire.StatusFile{
		Version: wire.FilesVersion, Host: w.launch.Host, Session: w.launch.Session,
		Instance: w.launch.Instance, Generation: w.launch.Generation,
		Epoch: w.epoch, PID: w.self.PID, StartTicks: w.self.StartTicks, At: time.Now().UTC(),
	}
	w.state.set(func(s *wire.Status) { f.Phase, f.AgentPID = s.Phase, s.AgentPID })
	return f
}

// writeStarting writes status.json before the agent starts: atomically, but not
// flushed to the disk, which can take longer than all of the start. What it
// says dies with the epoch, and a power cut ends that.
func (w *wrapper) writeStarting() {
	data, err := json.Marshal(w.statusFile())
	if err == nil {
		temp := filepath.Join(w.launch.Dir, ".tmp-"+wire.StatusName)
		if err = os.WriteFile(temp, append(data, '\n'), 0o600); err == nil {
			err = os.Rename(temp, filepath.Join(w.launch.Dir, wire.StatusName))
		}
	}
	w.statusFailed(err)
}

// writeRunning writes status.json with the agent in it, for good.
func (w *wrapper) writeRunning() {
	f := w.statusFile()
	if id, err := sys.IdentityOf(f.AgentPID); err == nil {
		f.AgentStartTicks = id.StartTicks
	}
	w.statusFailed(w.writeFile(wire.StatusName, f))
}

// statusFailed logs and no more: the file is a hint for whoever looks for the
// wrapper, the lock is the evidence.
func (w *wrapper) statusFailed(err error) {
	if err != nil {
		w.log.logf("writing the status file: %v", err)
	}
}

// writeFile replaces one file of the generation's directory, durably.
func (w *wrapper) writeFile(name string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return statefs.WriteFile(filepath.Join(w.launch.Dir, name), append(data, '\n'), 0o600)
}
