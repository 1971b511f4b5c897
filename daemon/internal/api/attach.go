package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

const (
	// replayRecords is how much of the past a new watcher sees unless it asks.
	replayRecords = 200
	// terminalSend bounds one frame to a watcher; one that is slower is cut off
	// and may come back with the number it has.
	terminalSend = 10 * time.Second
	// exitPatience bounds the wait for the exit record after the last output.
	exitPatience = 60 * time.Second
)

// writer is the one peer that may type into a session's terminal.
type writer struct {
	t    rpc.Terminal
	lost chan struct{} // closed when another peer has taken over
}

// Attach joins a terminal connection to the session's terminal.
func (a *API) Attach(ctx context.Context, p rpc.Peer, session string, q rpc.AttachQuery, t rpc.Terminal) error {
	v, err := a.view(p, session, false)
	if err != nil {
		return err
	}
	switch {
	case !v.State.Owned():
		return rpc.Errorf(rpc.CodeNotRunning, "session %q is %s, not running", session, v.State.Kind)
	case v.Spec == nil || !v.Spec.Terminal:
		return rpc.Errorf(rpc.CodeCapability, "session %q has no terminal; read its output with logs, feed it with send", session)
	case p.Role == rpc.RoleReader && !q.ReadOnly:
		return rpc.Errorf(rpc.CodeForbidden, "readers may only watch")
	}
	t.SetSendTimeout(terminalSend)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := a.take(session, t, q.ReadOnly)
	defer a.give(session, w)
	if q.Rows > 0 && q.Cols > 0 && !q.ReadOnly {
		a.toWrapper(session, wire.Frame{Kind: wire.KindResize, Resize: &wire.Size{Rows: q.Rows, Cols: q.Cols}})
	}
	go func() { // ends with t, which the server closes when Attach returns
		cancel(a.typed(session, w, t))
	}()
	err = a.show(ctx, session, v.State.Instance.Generation, q.Since, t)
	if cause := context.Cause(ctx); cause != nil && errors.Is(cause, io.EOF) {
		return nil // the peer has detached
	}
	return err
}

// take makes the peer the session's writer, unless it only watches, and tells
// the one before it.
func (a *API) take(session string, t rpc.Terminal, readOnly bool) *writer {
	w := &writer{t: t, lost: make(chan struct{})}
	if readOnly {
		close(w.lost)
		return w
	}
	a.mu.Lock()
	old := a.writers[session]
	a.writers[session] = w
	a.mu.Unlock()
	if old != nil {
		close(old.lost)
		_ = old.t.Send(rpc.TerminalFrame{ // it may be gone
			Kind: rpc.TerminalNotice, Data: []byte("another client has taken the keyboard; you are watching now"),
		})
	}
	return w
}

func (a *API) give(session string, w *writer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.writers[session] == w {
		delete(a.writers, session)
	}
}

// typed passes on what the peer types until it detaches, which is io.EOF.
func (a *API) typed(session string, w *writer, t rpc.Terminal) error {
	for {
		f, err := t.Recv()
		if err != nil {
			return io.EOF
		}
		select {
		case <-w.lost:
			continue // a watcher's keys go nowhere
		default:
		}
		switch f.Kind {
		case rpc.TerminalData:
			a.toWrapper(session, wire.Frame{Kind: wire.KindInput, Input: &wire.Input{Data: f.Data}})
		case rpc.TerminalResize:
			var size wire.Size
			if json.Unmarshal(f.Data, &size) == nil && size.Rows > 0 && size.Cols > 0 {
				a.toWrapper(session, wire.Frame{Kind: wire.KindResize, Resize: &size})
			}
		}
	}
}

// toWrapper sends a frame over the session's link of the moment. While it is
// down keys are lost, as on any terminal whose line is down.
func (a *API) toWrapper(session string, f wire.Frame) {
	if v, ok := a.opts.Engine.View(session); ok && v.Link != nil {
		_ = v.Link.Send(f)
	}
}

// show sends the terminal's output until the instance ends or ctx does.
func (a *API) show(ctx context.Context, session string, generation, since uint64, t rpc.Terminal) error {
	r, err := spool.Open(filepath.Join(a.opts.Dir.GenerationDir(session, generation), wire.SpoolName))
	if err != nil {
		return err
	}
	defer r.Close()
	if since == 0 {
		since = a.recent(session)
	}
	if err := r.Seek(since); err != nil {
		return err
	}
	follow, stop := a.follow(ctx, session, generation, true)
	defer stop()
	for rec, err := range r.Follow(ctx, follow) {
		if err != nil {
			return err
		}
		if rec.Stream == spool.Event { // for the log, not for a screen
			continue
		}
		if err := sendRecord(t, &rec); err != nil {
			return err
		}
	}
	return a.sendExit(ctx, session, generation, t)
}

// recent is the number at which a watcher's replay begins.
func (a *API) recent(session string) uint64 {
	v, ok := a.opts.Engine.View(session)
	if !ok || v.Link == nil {
		return 1
	}
	last := v.Status.LastSeq
	if s, ok := v.Link.(interface{ Status() wire.Status }); ok {
		last = s.Status().LastSeq
	}
	if last <= replayRecords {
		return 1
	}
	return last - replayRecords
}

// sendRecord sends one record of the spool, in frames that are not too long.
func sendRecord(t rpc.Terminal, rec *spool.Record) error {
	if rec.Gap != nil {
		text := fmt.Sprintf("output is missing here (%s)", rec.Gap.Cause)
		return t.Send(rpc.TerminalFrame{Kind: rpc.TerminalNotice, Seq: rec.Seq, Data: []byte(text)})
	}
	for chunk := range slices.Chunk(rec.Data, rpc.MaxTerminalFrame) {
		if err := t.Send(rpc.TerminalFrame{Kind: rpc.TerminalData, Seq: rec.Seq, Data: chunk}); err != nil {
			return err
		}
	}
	return nil
}

// sendExit tells how the instance has ended, once that is known.
func (a *API) sendExit(ctx context.Context, session string, generation uint64, t rpc.Terminal) error {
	ctx, cancel := bound(ctx, exitPatience)
	defer cancel()
	v, gone, err := a.opts.Engine.Await(ctx, session, func(v *engine.View) bool {
		return v.Lease.Exit != nil && v.Lease.Exit.Generation >= generation
	})
	if err != nil || gone || v.Lease.Exit.Generation != generation {
		return err
	}
	data, err := json.Marshal(exitOf(v.Lease.Exit))
	if err != nil {
		return err
	}
	return t.Send(rpc.TerminalFrame{Kind: rpc.TerminalExit, Data: data})
}
