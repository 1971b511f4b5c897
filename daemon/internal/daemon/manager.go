package daemon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/systemd/notify"
)

const (
	// OperatorsSocket is the name under which a service manager passes the
	// operators' socket, see berthd.socket.
	OperatorsSocket = "operators"
	// extendEvery and extendBy ask the manager for time while the daemon starts
	// or ends; workBound is when it stops asking, since it then hangs.
	extendEvery = 5 * time.Second
	extendBy    = 30 * time.Second
	workBound   = 10 * time.Minute
	// adoptingEvery and servingEvery are how often the status line is looked at.
	adoptingEvery = 250 * time.Millisecond
	servingEvery  = 5 * time.Second
	// pingsPerWatchdog is how many answers fit into the watchdog's interval.
	pingsPerWatchdog = 3
)

// told logs that the service manager did not hear something. That is no reason
// to stop: a deaf manager is not the sessions' fault.
func (d *Daemon) told(err error) {
	if err != nil {
		d.log.Warn("the service manager does not listen", "error", err)
	}
}

// working asks for time until the returned function is called.
func (d *Daemon) working() (done func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // ended by done
		defer close(stopped)
		tick := time.NewTicker(extendEvery)
		defer tick.Stop()
		for end := time.Now().Add(workBound); time.Now().Before(end); {
			d.told(d.manager.Extend(extendBy))
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// announce says that the daemon is ready, and from then on how it does.
func (d *Daemon) announce(ctx context.Context) {
	if !d.manager.Present() {
		return
	}
	line := d.statusLine()
	d.told(d.manager.Ready(line))
	for {
		every := servingEvery
		if !d.engine.Snapshot().Settled {
			every = adoptingEvery
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
		if now := d.statusLine(); now != line {
			line = now
			d.told(d.manager.Status(line))
		}
	}
}

// statusLine is the daemon's state in one line for people.
func (d *Daemon) statusLine() string {
	note := ""
	if n := d.note.Load(); n != nil {
		note = *n
	}
	return note + countLine(d.engine.Snapshot())
}

// countLine counts sessions by state.
func countLine(s *engine.Snapshot) string {
	states, waiting := map[string]int{}, 0
	s.Sessions.Root().Walk(func(_ []byte, v *engine.View) bool {
		states[v.State.Kind.String()]++
		if v.Adoption != "" && v.Adoption != engine.Adopted {
			waiting++
		}
		return false
	})
	var counts []string
	for _, state := range slices.Sorted(maps.Keys(states)) {
		counts = append(counts, fmt.Sprintf("%d %s", states[state], state))
	}
	line := "no sessions"
	if len(counts) > 0 {
		line = "sessions: " + strings.Join(counts, ", ")
	}
	if !s.Settled {
		line = fmt.Sprintf("adopting wrappers, %d to go; ", waiting) + line
	}
	return line
}

// watchdog answers the manager's watchdog for as long as the engine's loop
// turns and the journal's writer is not stuck. A daemon that the kernel holds
// is ended by the manager then: its successor may fare better.
func (d *Daemon) watchdog(ctx context.Context, manager *notify.Manager, interval time.Duration) {
	if interval <= 0 || !manager.Present() {
		return
	}
	every := interval / pingsPerWatchdog
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := d.alive(ctx, every); err == nil {
			d.told(manager.Alive())
		} else if ctx.Err() == nil {
			d.log.Error("not answering the watchdog", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// alive checks what all changes go through, for at most limit.
func (d *Daemon) alive(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if took := d.journal.Stats().Flushing; took > limit {
		return fmt.Errorf("the journal has been writing for %s", took.Round(time.Millisecond))
	}
	if err := d.engine.Turn(ctx); err != nil {
		return fmt.Errorf("the engine's loop does not turn: %w", err)
	}
	return nil
}
