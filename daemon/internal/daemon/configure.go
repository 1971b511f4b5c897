package daemon

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/berthd/berth/daemon/internal/config"
	"github.com/hashicorp/go-hclog"
)

// Flags are what the command line says.
type Flags struct {
	Config string
	// Explicit: the user has named Config, so it must exist.
	Explicit         bool
	Dev              bool
	StateDir, RunDir string
	LogLevel         string
}

// Configure reads the configuration and lays the command line over it.
func Configure(f Flags) (config.Config, error) {
	base := config.Default()
	if f.Dev {
		var err error
		if base, err = devDefaults(f); err != nil {
			return base, err
		}
	}
	path := f.Config
	if f.Dev && !f.Explicit {
		path = "" // trying out must not depend on what the host has configured
	}
	return config.Load(base, path, !f.Explicit, func(c *config.Config) {
		if f.StateDir != "" {
			c.StateDir = f.StateDir
		}
		if f.RunDir != "" {
			c.RunDir = f.RunDir
		}
		if f.LogLevel != "" {
			c.Log.Level = f.LogLevel
		}
	})
}

// devDefaults are the defaults for trying berth out: state in a temporary
// directory, programs from beside berthd, and as root sessions of nobody.
func devDefaults(f Flags) (config.Config, error) {
	c := config.Default()
	self, err := os.Executable()
	if err != nil {
		return c, fmt.Errorf("finding berthd's own directory: %w", err)
	}
	c.LibexecDir = filepath.Dir(self)
	c.Capacity.LowBytes, c.Capacity.LowPercent, c.Capacity.LowInodePercent = 256<<20, 0, 0
	c.Sessions.ReserveBytes, c.Sessions.ReserveInodes = 64<<20, 1000
	if os.Geteuid() == 0 {
		c.Sessions.DefaultOwner = "nobody"
	}
	base := filepath.Join(os.TempDir(), fmt.Sprintf("berth-dev-%d", os.Geteuid()))
	c.StateDir, c.RunDir = filepath.Join(base, "state"), filepath.Join(base, "run")
	if f.StateDir == "" {
		if err := os.MkdirAll(base, 0o711); err != nil {
			return c, fmt.Errorf("making the directory for trying out: %w", err)
		}
	}
	return c, nil
}

// Logger is the daemon's own log on standard error.
func Logger(l *config.Log) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: "berthd", Level: hclog.LevelFromString(l.Level), Output: os.Stderr, JSONFormat: l.Format == "json",
	})
}
