package wrap

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/rpc/wire"
)

// finish records how the agent ended, and tells the daemon. Crash points: (1)
// before the first exit.json, the end is known from the pidfd at most, and
// reported as unknown; (2) after it, only the final sequence number is missing.
func (w *wrapper) finish(status unix.WaitStatus) {
	exit := w.exitOf(status)
	w.in.close()
	w.eventExit(exit)
	w.agent.closeSlave()
	drained := w.out.drain(w.launch.DrainTimeout)
	if !within(drained, quickDrain) {
		early := *exit
		go w.writeExit(&early, "", true) // owner: wrapper; may hang as the disk does
		if !within(drained, w.launch.DrainTimeout+syncBound) {
			w.log.logf("the spool did not take the last output within %v", w.launch.DrainTimeout+syncBound)
		}
	}
	w.end(exit, "")
}

// finishUnstarted records that there never was an agent.
func (w *wrapper) finishUnstarted(cause error) {
	w.log.logf("%v", cause)
	exit := &wire.Exit{Kind: wire.ExitUnknown, Unknown: "start_failed", At: time.Now().UTC()}
	w.in.close()
	w.event("start_failed", map[string]any{"error": cause.Error()})
	within(w.out.drain(0), syncBound)
	w.end(exit, cause.Error())
}

// end writes the exit record for good, tells the daemon, and ends what is left.
func (w *wrapper) end(exit *wire.Exit, startError string) {
	exit.LastSeq = w.spool.LastSeq()
	last := *exit
	written := make(chan struct{})
	go func() { // owner: wrapper; ends with the process where the disk hangs
		defer close(written)
		w.writeExit(&last, startError, false)
	}()
	if !within(written, syncBound) {
		w.log.logf("the exit record is not on disk after %v, the end is told without it", syncBound)
	}
	w.state.set(func(s *wire.Status) { s.Phase, s.Exit = wire.PhaseExited, exit })
	copied := w.out.mirror.stop(mirrorBound)
	w.link.announce()
	if w.agent != nil {
		w.endLeftovers()
	}
	w.link.stop(exitNoticeBound)
	within(copied, mirrorBound+sendBound)
	if within(written, diskBound) && within(w.out.loop, diskBound) && within(w.settled, diskBound) {
		os.Remove(filepath.Join(w.launch.Dir, reserveName)) // missing is as good as removed
	}
}

// exitOf describes status, with the stop that was asked for before.
func (w *wrapper) exitOf(status unix.WaitStatus) *wire.Exit {
	e := &wire.Exit{At: time.Now().UTC()}
	switch {
	case status.Exited():
		e.Kind, e.Code = wire.ExitCode, status.ExitStatus()
	case status.Signaled():
		e.Kind, e.Signal = wire.ExitSignal, int(status.Signal())
		if kills, ok := oomKills(w.launch.WorkCgroup); ok && kills > w.oomBefore && status.Signal() == unix.SIGKILL {
			e.Kind = wire.ExitOOM
		}
	default:
		e.Kind, e.Unknown = wire.ExitUnknown, "the wait status makes no sense"
	}
	if stop := w.state.askedStop(); stop != nil {
		e.Reason, e.By = stop.Reason, stop.By
	}
	return e
}

func (w *wrapper) eventExit(e *wire.Exit) {
	fields := map[string]any{"kind": e.Kind}
	switch e.Kind {
	case wire.ExitCode:
		fields["code"] = e.Code
	case wire.ExitSignal, wire.ExitOOM:
		fields["signal"] = e.Signal
	}
	w.event("exited", fields)
}

// writeExit writes exit.json, on a full disk in the room that was set aside.
func (w *wrapper) writeExit(exit *wire.Exit, startError string, draining bool) {
	f := wire.ExitFile{
		Version: wire.FilesVersion, Host: w.launch.Host, Session: w.launch.Session,
		Instance: w.launch.Instance, Generation: w.launch.Generation, Epoch: w.epoch,
		PID: w.self.PID, StartError: startError, Draining: draining, Exit: *exit,
	}
	if w.agent != nil {
		f.AgentPID = w.agent.pid
	}
	w.exitMu.Lock() // the early record never replaces the final one
	defer w.exitMu.Unlock()
	err := w.writeFile(wire.ExitName, f)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		os.Remove(filepath.Join(w.launch.Dir, reserveName)) // missing is as good as removed
		err = w.writeFile(wire.ExitName, f)
	}
	if err != nil {
		w.log.logf("writing the exit record: %v", err)
	}
}

// reserveName is a file that holds room for the exit record on a full disk.
const reserveName = "exit.reserve"

// reserveBytes is more than an exit record and its directory entry need.
const reserveBytes = 16 << 10

// makeReserve sets the room aside.
func (w *wrapper) makeReserve() {
	f, err := os.OpenFile(filepath.Join(w.launch.Dir, reserveName), os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), 0, 0, reserveBytes)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		w.log.logf("setting room for the exit record aside: %v", err)
	}
}

// within waits for done, at most for bound.
func within(done <-chan struct{}, bound time.Duration) bool {
	t := time.NewTimer(bound)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
