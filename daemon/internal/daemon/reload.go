package daemon

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/berthd/berth/daemon/internal/api"
	"github.com/berthd/berth/daemon/internal/config"
	"github.com/hashicorp/go-hclog"
)

// reloadBound bounds how long the engine is waited for with a new configuration.
const reloadBound = 10 * time.Second

// reloads reads the configuration again at each signal.
func (d *Daemon) reloads(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-signals:
			d.reload(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// reload takes over what can change while the daemon runs. With a mistake in
// the new configuration all of the old one stays.
func (d *Daemon) reload(ctx context.Context) {
	d.told(d.manager.Reloading())
	changed, refused, err := d.reconfigure(ctx)
	note := ""
	switch {
	case err != nil:
		note = "not reloaded: " + oneLine(err.Error()) + "; "
		d.log.Error("the new configuration is not used, the old one stays", "error", err)
	case len(refused) > 0:
		note = "needs a restart: " + strings.Join(refused, ", ") + "; "
		d.log.Warn("configuration reloaded; what follows needs a restart", "changed", changed, "refused", refused)
	default:
		d.log.Info("configuration reloaded", "changed", changed)
	}
	d.note.Store(&note)
	d.told(d.manager.Ready(d.statusLine()))
}

// oneLine makes an error of several lines fit for a status.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

// reconfigure reads and checks everything before it changes anything.
func (d *Daemon) reconfigure(ctx context.Context) (changed, refused []string, err error) {
	next, err := Configure(d.flags)
	if err != nil {
		return nil, nil, err
	}
	merged, changed, refused := d.cfg.Reload(&next)
	who, err := access(&merged.Socket)
	if err != nil {
		return nil, nil, err
	}
	defaults, err := apiDefaults(&merged)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, reloadBound)
	defer cancel()
	if err := d.engine.Reconfigure(ctx, rules(&merged), settings(&merged)); err != nil {
		return nil, nil, fmt.Errorf("telling the engine: %w", err)
	}
	d.api.Reconfigure(api.Tuning{Defaults: defaults, Marks: marks(&merged), StateMarks: stateMarks(&merged)})
	d.cleaner.Reconfigure(cleaning(&merged))
	d.server.SetAccess(who)
	d.log.SetLevel(hclog.LevelFromString(merged.Log.Level))
	d.cfg = merged
	return changed, refused, nil
}

// apiDefaults is the part of the configuration that completes requests.
func apiDefaults(c *config.Config) (api.Defaults, error) {
	s := &c.Sessions
	defaults := api.Defaults{AllowRoot: s.AllowRoot, ReserveBytes: s.ReserveBytes, ReserveInodes: s.ReserveInodes}
	if s.DefaultOwner != "" {
		o, err := api.LookupOwner(s.DefaultOwner)
		if err != nil {
			return defaults, fmt.Errorf("reading sessions.default_owner: %w", err)
		}
		defaults.Owner = &o
	}
	return defaults, nil
}
