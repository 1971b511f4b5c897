package daemon

import (
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthd/berth/daemon/internal/audit"
	"github.com/berthd/berth/daemon/internal/config"
	"github.com/berthd/berth/systemd/journald"
	"github.com/berthd/berth/systemd/journald/native"
)

const (
	// logBound bounds the wait for a log that is slow, at the daemon's end.
	logBound = 2 * time.Second
	// auditCursor is the file in the runtime directory that says which events
	// the log has.
	auditCursor = "log.cursor"
)

// Log is the daemon's log: journald, or lines on standard error.
type Log struct {
	hclog.Logger
	// Format is journald, text or json.
	Format string
	queue  *journald.Queue // nil unless journald
}

// OpenLog opens the log that is configured. Close ends it.
func OpenLog(c *config.Log) *Log {
	l := &Log{Format: c.Format}
	if l.Format == "auto" {
		if l.Format = "text"; journald.Connected() {
			l.Format = "journald"
		}
	}
	level := hclog.LevelFromString(c.Level)
	if l.Format != "journald" {
		l.Logger = hclog.New(&hclog.LoggerOptions{
			Name: native.DaemonIdentifier, Level: level, Output: os.Stderr, JSONFormat: l.Format == "json",
		})
		return l
	}
	l.queue = journald.NewQueue(native.SocketPath(""))
	l.Logger = journald.New(native.DaemonIdentifier, level, l.queue)
	return l
}

// ofHost has every entry from here on carry the host's id, where an entry has
// fields.
func (l *Log) ofHost(id string) {
	if j, ok := l.Logger.(*journald.Logger); ok {
		l.Logger = j.WithFields(native.Host, id)
	}
}

// Dropped counts entries that journald did not take.
func (l *Log) Dropped() uint64 {
	if l.queue == nil {
		return 0
	}
	return l.queue.Dropped()
}

// idle reports whether nothing waits to be sent.
func (l *Log) idle() bool { return l.queue == nil || l.queue.Idle() }

// Close sends what waits, within a bound.
func (l *Log) Close() error {
	if l.queue == nil {
		return nil
	}
	return l.queue.Close(logBound)
}

// audit logs the engine's events until the engine ends.
func (d *Daemon) audit() (end func()) {
	log := d.log.Named("audit")
	cursor, after, err := audit.OpenCursor(filepath.Join(d.cfg.RunDir, auditCursor), d.engine.Snapshot().LastSeq, d.log.idle)
	if err != nil {
		log.Warn("events that a killed daemon did not log cannot be found", "error", err)
	}
	ended := make(chan struct{})
	go func() { // ends with the engine; end waits for it
		defer close(ended)
		if err := audit.Run(d.engine, after, cursor, log); err != nil {
			log.Error("events are no longer logged", "error", err)
		}
	}()
	return func() {
		<-ended
		if err := cursor.Close(logBound); err != nil {
			log.Warn("closing the log's cursor", "error", err)
		}
	}
}

// agentSocket is where wrappers copy the agents' output to; empty = nowhere.
func (d *Daemon) agentSocket() string {
	c := &d.cfg.Log
	if c.Agent == "journald" || c.Agent == "auto" && d.log.Format == "journald" {
		return native.SocketPath(c.AgentNamespace)
	}
	return ""
}
