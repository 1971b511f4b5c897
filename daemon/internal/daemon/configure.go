package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/berthd/berth/daemon/internal/api"
	"github.com/berthd/berth/daemon/internal/config"
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

// Check reports what in a configuration names something that this host does
// not have: users, groups, programs.
func Check(c *config.Config) error {
	var errs []error
	if _, err := access(&c.Socket); err != nil {
		errs = append(errs, err)
	}
	if name := c.Sessions.DefaultOwner; name != "" {
		if _, err := api.LookupOwner(name); err != nil {
			errs = append(errs, fmt.Errorf("reading sessions.default_owner: %w", err))
		}
	}
	programs := []string{c.WrapPath(), c.WorkspacePath()}
	for _, p := range c.Providers {
		programs = append(programs, p.Path)
	}
	for _, path := range programs {
		if _, err := os.Stat(path); err != nil {
			errs = append(errs, fmt.Errorf("finding a program: %w", err))
		}
	}
	return errors.Join(errs...)
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
	c.Leaves = config.LeavesSubtree // the slice is the installed daemon's
	c.Capacity.LowBytes, c.Capacity.LowPercent, c.Capacity.LowInodePercent = 256<<20, 0, 0
	c.Sessions.ReserveBytes, c.Sessions.ReserveInodes = 64<<20, 1000
	if os.Geteuid() == 0 {
		c.Sessions.DefaultOwner = "nobody"
	}
	base := filepath.Join(os.TempDir(), fmt.Sprintf("berth-dev-%d", os.Geteuid()))
	c.StateDir, c.RunDir = filepath.Join(base, "state"), filepath.Join(base, "run")
	if f.StateDir == "" {
		if err := ownDir(base); err != nil {
			return c, fmt.Errorf("making the directory for trying out: %w", err)
		}
	}
	return c, nil
}

// ownDir makes a directory whose name others can guess, and refuses one that
// is somebody else's.
func ownDir(path string) error {
	if err := os.Mkdir(path, 0o711); err == nil || !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%q is not a directory that only uid %d can write", path, os.Geteuid())
	}
	return nil
}
