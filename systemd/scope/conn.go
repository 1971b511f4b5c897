package scope

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

const (
	busName     = "org.freedesktop.systemd1"
	busPath     = dbus.ObjectPath("/org/freedesktop/systemd1")
	manager     = busName + ".Manager"
	jobRemoved  = manager + ".JobRemoved"
	getProperty = "org.freedesktop.DBus.Properties.Get"
)

// conn is one connection to PID 1, until that ends it.
type conn struct {
	*systemd.Conn
	calls, signals *dbus.Conn // what Conn is made of
	end            context.CancelFunc
	version        int

	mu   sync.Mutex
	jobs map[string]chan<- job // by unit, who waits for its jobs
}

// job is the end of a job.
type job struct {
	id     uint32
	result string
}

// connect makes a connection within ctx. The goroutine that does it is let go when ctx ends, since it waits
// for what is closed then.
func connect(ctx context.Context, socket string) (*conn, error) {
	life, end := context.WithCancel(context.Background())
	c := &conn{end: end, jobs: map[string]chan<- job{}}
	made := make(chan error, 1)
	go func() { made <- c.open(life, socket) }()
	select {
	case err := <-made:
		if err == nil {
			return c, nil
		}
		end()
		return nil, fmt.Errorf("connecting to %s: %w", socket, err)
	case <-ctx.Done():
		end()
		return nil, fmt.Errorf("connecting to %s: %w", socket, ctx.Err())
	}
}

// open connects both halves and asks for the version.
func (c *conn) open(life context.Context, socket string) error {
	var halves []*dbus.Conn
	both, err := systemd.NewConnection(func() (*dbus.Conn, error) {
		half, err := dbus.Dial("unix:path="+socket, dbus.WithContext(life))
		if err != nil {
			return nil, err
		}
		if err := half.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
			return nil, errors.Join(err, half.Close())
		}
		halves = append(halves, half)
		return half, nil
	})
	if err != nil {
		return err
	}
	c.Conn, c.calls, c.signals = both, halves[0], halves[1]
	ended := make(chan *dbus.Signal, 64)
	c.signals.Signal(ended)
	go c.dispatch(ended) // ends with the connection, which closes the channel
	var version string
	if err := c.calls.Object(busName, busPath).CallWithContext(life, getProperty, 0, manager, "Version").Store(&version); err != nil {
		return fmt.Errorf("asking for the version: %w", err)
	}
	c.version = parseVersion(version)
	return nil
}

// parseVersion returns the number that a version such as "252.38-1~deb12u1" begins with, 0 when it begins
// with none.
func parseVersion(s string) int {
	s = strings.TrimPrefix(s, "v")
	end := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(s)
	}
	n, err := strconv.Atoi(s[:end])
	if err != nil {
		return 0
	}
	return n
}

// close ends the connection.
func (c *conn) close() {
	c.Conn.Close()
	c.end()
}

// lost reports whether PID 1 has ended the connection.
func (c *conn) lost() bool { return !c.Connected() }

// dispatch tells those who wait of the ends of their jobs. Nobody is waited for: a channel has room for all
// jobs of its unit that somebody can have asked for.
func (c *conn) dispatch(signals <-chan *dbus.Signal) {
	for s := range signals {
		if s.Name != jobRemoved {
			continue
		}
		var done job
		var path dbus.ObjectPath
		var unit string
		if dbus.Store(s.Body, &done.id, &path, &unit, &done.result) != nil {
			continue
		}
		c.mu.Lock()
		if waiting, ok := c.jobs[unit]; ok {
			select {
			case waiting <- done:
			default:
			}
		}
		c.mu.Unlock()
	}
}

// run enqueues a job for a unit by start, and returns when it is over.
func (c *conn) run(ctx context.Context, unit string, start func() (id int, err error)) error {
	done := make(chan job, 8)
	c.mu.Lock()
	if _, ok := c.jobs[unit]; ok {
		c.mu.Unlock()
		return errors.New("somebody else waits for a job of it")
	}
	c.jobs[unit] = done // before the job exists: it may be over before it is known here
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.jobs, unit)
		c.mu.Unlock()
	}()
	id, err := start()
	if err != nil {
		return err
	}
	for {
		select {
		case j := <-done:
			switch {
			case int(j.id) != id:
			case j.result != "done":
				return fmt.Errorf("its job ended as %q", j.result)
			default:
				return nil
			}
		case <-c.signals.Context().Done():
			return dbus.ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
