// Package audit writes the engine's durable events into the daemon's log, one
// entry each, so that a session's entries read as its audit log, from its first
// start to its tombstone.
//
// It refuses to know where the log goes and decides nothing. What it writes is a
// copy: the journal is the truth, and only that is complete. daemon/internal/daemon
// runs it.
package audit

import (
	"context"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/statefs/record"
	"github.com/berthd/berth/systemd/journald/catalog"
)

// Source is where events come from; *engine.Engine is one.
type Source interface {
	Events(ctx context.Context, after uint64, follow bool, emit func(engine.Event) error) error
}

// Run logs every event after the number after, and then every new one, until
// the source ends. A slow log makes a gap, which is logged as one.
func Run(from Source, after uint64, cursor *Cursor, log hclog.Logger) error {
	return from.Events(context.Background(), after, true, func(ev engine.Event) error {
		write(log, &ev)
		cursor.passed(ev.Seq)
		return nil
	})
}

// write logs one event.
func write(log hclog.Logger, ev *engine.Event) {
	m, ok := catalog.Of(ev.Kind)
	if !ok { // the tests of this package see to it that there is none
		m = catalog.Message{Event: ev.Kind, Level: "info", Text: ev.Kind}
	}
	level := hclog.LevelFromString(m.Level)
	if level < log.GetLevel() {
		return
	}
	args := make([]any, 0, 24)
	add := func(key, value string) {
		if value != "" {
			args = append(args, key, value)
		}
	}
	generation, instance, how := ev.Generation, ev.Instance, ""
	if ev.Ended { // the lease no longer names it
		generation, instance, how = ev.Exit.Generation, ev.Exit.Instance, exit(ev.Exit)
	}
	add("session", ev.Session)
	if generation > 0 {
		args = append(args, "generation", generation)
	}
	add("instance", instance)
	add("state", ev.State)
	add("provider", ev.Provider)
	add("reason", ev.Reason)
	add("by", ev.By)
	add("exit", how)
	add("detail", ev.Detail)
	add("operation", ev.Operation)
	if ev.Kind == engine.KindGap {
		args = append(args, "from", ev.From, "to", ev.To)
	} else {
		args = append(args, "owner", ev.UID)
	}
	args = append(args, "event", m.Event, "seq", ev.Seq)
	log.Log(level, m.Text, args...)
}

// exit says how an agent has ended.
func exit(x *record.Exit) string {
	switch x.Kind {
	case "code":
		return fmt.Sprintf("code %d", x.Code)
	case "signal":
		return fmt.Sprintf("signal %d", x.Signal)
	case "unknown":
		return "unknown: " + x.Unknown
	}
	return x.Kind
}
