package scope

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// Socket is the manager's own socket, for root alone.
const Socket = "/run/systemd/private"

var (
	// ErrSilent: PID 1 has not answered in time. What was asked of it may still happen.
	ErrSilent = errors.New("systemd does not answer")
	// ErrRefused: PID 1 has answered that it will not.
	ErrRefused = errors.New("systemd refuses")
)

// Manager is the system's service manager. Its methods may be called concurrently.
type Manager struct {
	socket string
	slots  chan struct{} // a token per caller that may wait for PID 1 now
	gate   chan struct{} // a token for who may look at or replace conn
	conn   *conn         // nil until the first call
}

// New returns the manager behind the socket. It connects with the first call.
func New(socket string) *Manager {
	return &Manager{socket: socket, slots: make(chan struct{}, callsAtOnce), gate: make(chan struct{}, 1)}
}

// Close ends the connection. No call must be under way.
func (m *Manager) Close() {
	if m.conn != nil {
		m.conn.close()
		m.conn = nil
	}
}

// call runs f with a connection, in one of the slots and within callBound; when PID 1 has ended the
// connection meanwhile it runs f again, with again set: what was asked may have been done.
func (m *Manager) call(ctx context.Context, f func(ctx context.Context, c *conn, again bool) error) error {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return ErrSilent
	}
	for again := false; ; again = true {
		c, err := m.connection(ctx)
		lost := err != nil && ended(err)
		if err == nil {
			err = f(ctx, c, again)
			lost = err != nil && c.lost()
		}
		if !lost {
			return explain(ctx, err)
		}
		select {
		case <-time.After(reexecPause):
		case <-ctx.Done():
			return explain(ctx, err)
		}
	}
}

// ended reports whether an attempt to connect was cut off: a PID 1 that is about to execute itself anew
// drops what it has accepted, and goes on listening.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, dbus.ErrClosed) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// explain puts an error into one of the package's classes, where it is of one.
func explain(ctx context.Context, err error) error {
	var refusal dbus.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrRefused):
		return err
	case errors.As(err, &refusal):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrSilent, err)
	}
	return err
}

// connection returns the connection, and makes one where there is none that lives.
func (m *Manager) connection(ctx context.Context) (*conn, error) {
	select {
	case m.gate <- struct{}{}:
		defer func() { <-m.gate }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if m.conn != nil && !m.conn.lost() {
		return m.conn, nil
	}
	if m.conn != nil {
		m.conn.close()
		m.conn = nil
	}
	c, err := connect(ctx, m.socket)
	if err != nil {
		return nil, err
	}
	m.conn = c
	return c, nil
}

// Slice is what is known of a slice.
type Slice struct {
	// ControlGroup is its cgroup, as a path from the root of the hierarchy as PID 1 sees it.
	ControlGroup string
	// Version is that of systemd, a number such as 252; 0 when it does not say.
	Version int
}

// StartSlice starts a slice, unless it is active, which makes its cgroup and keeps it until the slice is
// stopped.
func (m *Manager) StartSlice(ctx context.Context, name string) (Slice, error) {
	var slice Slice
	err := m.call(ctx, func(ctx context.Context, c *conn, _ bool) error {
		active, err := c.GetUnitPropertyContext(ctx, name, "ActiveState")
		if err != nil {
			return err
		}
		if active.Value.Value() != "active" {
			// fail: a slice that is about to stop is not kept from it.
			if err := c.run(ctx, name, func() (int, error) { return c.StartUnitContext(ctx, name, "fail", nil) }); err != nil {
				return err
			}
		}
		path, err := c.GetUnitTypePropertyContext(ctx, name, "Slice", "ControlGroup")
		if err != nil {
			return err
		}
		slice.ControlGroup, _ = path.Value.Value().(string)
		if slice.ControlGroup == "" {
			return fmt.Errorf("%w: it has no cgroup", ErrRefused)
		}
		slice.Version = c.version
		return nil
	})
	if err != nil {
		return Slice{}, fmt.Errorf("starting slice %q: %w", name, err)
	}
	return slice, nil
}

// Adopt has PID 1 make the scope around its process, which is in the scope's own cgroup already, and returns
// once PID 1 holds that process to be in it. The process is in the cgroup of that name afterwards as before;
// when it was in a child of it, it is not any more. On an error the scope may exist or come to be.
func (m *Manager) Adopt(ctx context.Context, u Unit) error {
	if u.PID <= 0 { // which systemd takes for the caller
		return fmt.Errorf("making scope %q: %d is no process", u.Name, u.PID)
	}
	err := m.call(ctx, func(ctx context.Context, c *conn, again bool) error {
		if again && holds(ctx, c, &u) == nil {
			return nil
		}
		err := c.run(ctx, u.Name, func() (int, error) {
			return c.StartTransientUnitContext(ctx, u.Name, "fail", u.properties(c.version), nil)
		})
		if err != nil {
			return err
		}
		return holds(ctx, c, &u)
	})
	if err != nil {
		return fmt.Errorf("making scope %q: %w", u.Name, err)
	}
	return nil
}

// holds asks which unit the process is in.
func holds(ctx context.Context, c *conn, u *Unit) error {
	name, err := c.GetUnitNameByPID(ctx, uint32(u.PID))
	if err != nil {
		return err
	}
	if name != u.Name {
		return fmt.Errorf("%w: process %d is in unit %q", ErrRefused, u.PID, name)
	}
	return nil
}

// Running lists the loaded units whose names match the pattern, see fnmatch(3), and that systemd holds to be
// active, in no order.
func (m *Manager) Running(ctx context.Context, pattern string) ([]string, error) {
	var names []string
	err := m.call(ctx, func(ctx context.Context, c *conn, _ bool) error {
		units, err := c.ListUnitsByPatternsContext(ctx, []string{"active"}, []string{pattern})
		if err != nil {
			return err
		}
		names = names[:0]
		for _, u := range units {
			names = append(names, u.Name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing units %q: %w", pattern, err)
	}
	return names, nil
}

// Stop stops a unit, of which it need not be true any more that there is one.
func (m *Manager) Stop(ctx context.Context, name string) error {
	err := m.call(ctx, func(ctx context.Context, c *conn, _ bool) error {
		err := c.run(ctx, name, func() (int, error) { return c.StopUnitContext(ctx, name, "fail", nil) })
		var refusal dbus.Error
		if errors.As(err, &refusal) && refusal.Name == "org.freedesktop.systemd1.NoSuchUnit" {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("stopping unit %q: %w", name, err)
	}
	return nil
}
