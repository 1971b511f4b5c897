package wrap

import (
	"fmt"
	"syscall"

	"github.com/berthd/berth/rpc/wire"
)

// hello introduces the wrapper.
func (w *wrapper) hello() *wire.Frame {
	return &wire.Frame{Kind: wire.KindHello, Hello: &wire.Hello{
		Version: wire.Version, Host: w.launch.Host, Session: w.launch.Session,
		Instance: w.launch.Instance, Generation: w.launch.Generation,
		Token: w.launch.Token, PID: w.self.PID, Status: w.status(),
	}}
}

// handle does what a frame asks and answers it. An error ends the connection.
func (c *conn) handle(f wire.Frame) error {
	switch f.Kind {
	case wire.KindWelcome:
		c.welcome = true
		return nil
	case wire.KindReject:
		return fmt.Errorf("%w: %s", errRejected, f.Error)
	}
	if !c.welcome {
		return c.reply(f.ID, errUnwelcome)
	}
	if f.Kind == wire.KindWatch {
		c.watch(f.Watch)
		if f.Watch {
			return c.sendSpool()
		}
		return nil
	}
	return c.reply(f.ID, c.link.w.request(f))
}

// reply answers request id; requests without one want no answer.
func (c *conn) reply(id uint64, err error) error {
	if id == 0 {
		return nil
	}
	f := wire.Frame{Kind: wire.KindReply, ID: id}
	if err != nil {
		f.Error = err.Error()
	}
	return c.write(&f)
}

// request does what the daemon asks of the agent. It never blocks.
func (w *wrapper) request(f wire.Frame) error {
	switch {
	case f.Kind == wire.KindInput && f.Input != nil:
		return w.in.put(*f.Input)
	case f.Kind == wire.KindResize && f.Resize != nil:
		return w.resize(*f.Resize)
	case f.Kind == wire.KindSignal && f.Signal > 0 && f.Signal <= 64:
		if w.agent == nil {
			return errEnded
		}
		return w.agent.signal(syscall.Signal(f.Signal))
	case f.Kind == wire.KindStop && f.Stop != nil:
		w.stop(*f.Stop)
		return nil
	default:
		return fmt.Errorf("frame of kind %q is unknown or incomplete", f.Kind)
	}
}

func (w *wrapper) resize(size wire.Size) error {
	if w.agent == nil {
		return errEnded
	}
	return w.agent.resize(size)
}

// stop remembers who ends the agent and why, and ends it when asked to.
func (w *wrapper) stop(s wire.Stop) {
	w.state.askStop(s)
	w.event("stop", map[string]any{"reason": s.Reason, "by": s.By})
	if s.Signal {
		w.stops.run(s.Grace)
	}
}
