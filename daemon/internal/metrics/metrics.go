// Package metrics shows the daemon in Prometheus' text form. Everything is read
// when it is asked for, from published snapshots and running sums: nothing is
// kept here, and no read waits for a session.
//
// The form is written by hand: client_golang and expfmt bring protobuf types
// and collectors, a megabyte and more of every daemon's memory, for what is a
// page of text. Their linter reads it in a test. man/berth-metrics.7 explains
// each metric.
package metrics

import (
	"context"
	"net/http"
	"time"

	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/tally"
	"github.com/berthd/berth/plugins/host"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/journal"
)

// roomBound bounds how long a dead file system can hold up a reader.
const roomBound = 2 * time.Second

// Sources are what is shown.
type Sources struct {
	Version    string
	Started    time.Time
	Snapshot   func() *engine.Snapshot
	Sums       func() *engine.Sums
	Stale      func() uint64
	Failed     func() bool // the journal has failed
	Journal    func() journal.Stats
	Room       func(context.Context) []rpc.Root
	Scans      func() (times *tally.Times, failures uint64)
	Plugins    func() []host.Status
	LogDropped func() uint64
	Kept       func() int
	Leaves     func() (int, error)
}

// Handler answers with all metrics.
func (s *Sources) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(s.Text(r.Context())) // who has gone need not be told
	})
}

// Text reads everything.
func (s *Sources) Text(ctx context.Context) []byte {
	p := &page{}
	p.gauge("berth_info", "The daemon's version, as a label of a value that is always 1.")
	p.add(1, "version", s.Version)
	s.sessions(p)
	s.sums(p)
	s.journal(p)
	s.room(ctx, p)
	s.scans(p)
	s.plugins(p)
	p.counter("berth_log_dropped_total", "Entries of the daemon's log that journald did not take.")
	p.add(float64(s.LogDropped()))
	s.process(p)
	return p.text
}

func (s *Sources) sums(p *page) {
	sums := s.Sums()
	p.counter("berth_starts_total", "Starts of instances, by what came of them.")
	sums.Starts.Each(func(result string, n uint64) { p.add(float64(n), "result", result) })
	p.histogram("berth_start_duration_seconds", "Time from the intent on disk to the verified wrapper.")
	p.times(sums.StartTimes)
	p.counter("berth_stops_total", "Stops whose absence was proven, by their reason.")
	sums.Stops.Each(func(reason string, n uint64) { p.add(float64(n), "reason", reason) })
	p.histogram("berth_stop_duration_seconds", "Time from the request of a stop to proven absence.")
	p.times(sums.StopTimes)
	p.counter("berth_exits_total", "Ends of instances, by the kind of their exit.")
	sums.Exits.Each(func(kind string, n uint64) { p.add(float64(n), "kind", kind) })
	p.counter("berth_quarantines_total", "Sessions that have come into quarantine, by the reason of the stop.")
	sums.Quarantines.Each(func(reason string, n uint64) { p.add(float64(n), "reason", reason) })
	p.counter("berth_stale_events_total", "Events about another instance, attempt or deadline, which changed nothing.")
	p.add(float64(s.Stale()))
}

func (s *Sources) journal(p *page) {
	j := s.Journal()
	p.gauge("berth_journal_failed", "1 once the journal has failed and nothing can be changed.")
	p.add(number(s.Failed()))
	p.counter("berth_journal_commits_total", "Commits that the journal has acknowledged, each one write and one fdatasync.")
	p.add(float64(j.Commits))
	p.counter("berth_journal_records_total", "Records that the journal has acknowledged.")
	p.add(float64(j.Records))
	p.counter("berth_journal_snapshots_total", "Snapshots that the journal has written.")
	p.add(float64(j.Snapshots))
	p.gauge("berth_journal_flushing_seconds", "How long the commit under way has taken so far.")
	p.add(j.Flushing.Seconds())
	p.gauge("berth_journal_room_missing", "1 while the journal cannot set aside the room that it wants.")
	p.add(number(j.RoomErr != nil))
	p.histogram("berth_journal_fsync_duration_seconds", "Time of the journal's commits on the disk.")
	bounds := make([]time.Duration, journal.SyncBuckets-1)
	for i := range bounds {
		bounds[i] = 2 << i * time.Microsecond
	}
	p.classes(bounds, j.Syncs[:], j.SyncTime)
}

// room tells of the file systems that hold the daemon's own directories. One
// that does not answer is missing: unknown is not zero.
func (s *Sources) room(ctx context.Context, p *page) {
	ctx, cancel := context.WithTimeout(ctx, roomBound)
	defer cancel()
	roots := s.Room(ctx)
	each := func(value func(rpc.Root) float64) {
		for _, r := range roots {
			if r.Known {
				p.add(value(r), "root", r.Name)
			}
		}
	}
	p.gauge("berth_room_known", "1 where the file system of a root has answered.")
	for _, r := range roots {
		p.add(number(r.Known), "root", r.Name)
	}
	p.gauge("berth_room_free_bytes", "Bytes that an unprivileged process may still use, by root.")
	each(func(r rpc.Root) float64 { return float64(r.FreeBytes) })
	p.gauge("berth_room_size_bytes", "Size of the file system, by root.")
	each(func(r rpc.Root) float64 { return float64(r.TotalBytes) })
	p.gauge("berth_room_free_inodes", "Inodes that are free, by root; 0 of 0 where they are made as needed.")
	each(func(r rpc.Root) float64 { return float64(r.FreeInodes) })
	p.gauge("berth_room_size_inodes", "Inodes of the file system, by root.")
	each(func(r rpc.Root) float64 { return float64(r.TotalInodes) })
	p.gauge("berth_room_low_bytes", "The low mark in bytes, by root.")
	each(func(r rpc.Root) float64 { return float64(r.LowBytes) })
	p.gauge("berth_room_low", "1 while room is short, so that starts are refused, by root.")
	each(func(r rpc.Root) float64 { return number(r.Low) })
}

func (s *Sources) scans(p *page) {
	times, failures := s.Scans()
	p.histogram("berth_scan_duration_seconds", "Time of scans of all processes for markers.")
	p.times(times)
	p.counter("berth_scan_failures_total", "Scans that came to no answer.")
	p.add(float64(failures))
}

func (s *Sources) plugins(p *page) {
	all := s.Plugins()
	p.gauge("berth_provider_ready", "1 while the provider's process takes calls.")
	for _, one := range all {
		p.add(number(one.State == host.Ready), "provider", one.Kind)
	}
	p.counter("berth_provider_restarts_total", "Starts of the provider's process after the first.")
	for _, one := range all {
		p.add(float64(one.Restarts), "provider", one.Kind)
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
