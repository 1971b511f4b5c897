package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/berthd/berth/daemon/internal/metrics"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/cgroupfs"
)

// Bounds of the address that metrics may have of their own: a reader that is
// slow or says nothing must not keep a connection for ever.
const (
	scrapeHeaderBound = 5 * time.Second
	scrapeWriteBound  = 30 * time.Second
	scrapeIdleBound   = 2 * time.Minute
	scrapeHeaderBytes = 8 << 10
)

// metrics answers GET /metrics.
func (d *Daemon) metrics(started time.Time) http.Handler {
	s := &metrics.Sources{
		Version: d.version, Started: started, Snapshot: d.engine.Snapshot, Sums: d.engine.Sums, Stale: d.engine.StaleEvents,
		Failed:  func() bool { return d.engine.Err() != nil },
		Journal: d.journal.Stats, Room: d.room, Scans: d.scanner.Scans,
		Plugins: d.plugins.Status, LogDropped: d.log.Dropped, Kept: d.keeper.Kept, Leaves: d.leaves,
	}
	return s.Handler()
}

// room measures the daemon's own directories, as `berthctl capacity` does.
func (d *Daemon) room(ctx context.Context) []rpc.Root {
	reply, err := d.api.Capacity(ctx, rpc.Peer{})
	if err != nil {
		return nil
	}
	return reply.Roots
}

// leaves counts the leaves in all trees; none without cgroups.
func (d *Daemon) leaves() (int, error) {
	if d.trees.Mode() == cgroupfs.None {
		return 0, nil
	}
	found, err := d.trees.List()
	return len(found), err
}

// listenMetrics opens the address that metrics are to have beside the
// operators' socket, if any. Nobody is asked there who they are.
func (d *Daemon) listenMetrics() error {
	address := d.cfg.Metrics.Listen
	if address == "" {
		return nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listening on metrics.listen: %w", err)
	}
	d.closers = append(d.closers, ignoreClosed(l.Close))
	d.scraped = l
	if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		d.log.Warn("metrics are open to everybody who reaches their address: there is no access control on it", "address", a.String())
	}
	d.log.Info("serving metrics", "address", l.Addr().String())
	return nil
}

// serveMetrics serves that address until it is closed. Its end is not the
// daemon's.
func (d *Daemon) serveMetrics(handler http.Handler) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", handler)
	d.scrapes = &http.Server{
		Handler: mux, ReadHeaderTimeout: scrapeHeaderBound, ReadTimeout: scrapeHeaderBound, WriteTimeout: scrapeWriteBound,
		IdleTimeout: scrapeIdleBound, MaxHeaderBytes: scrapeHeaderBytes,
	}
	go func() { // ends with endMetrics
		if err := d.scrapes.Serve(d.scraped); !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("metrics are no longer served on their address", "error", err)
		}
	}()
}

// endMetrics closes the address and what reads there.
func (d *Daemon) endMetrics() {
	if d.scrapes != nil {
		d.scrapes.Close()
	}
}
