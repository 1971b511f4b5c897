package host

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	hclog "github.com/hashicorp/go-hclog"
)

// Config names one provider.
type Config struct {
	// Kind is the provider's name: [a-z][a-z0-9-]{0,31}. It must be what the
	// provider says of itself.
	Kind string
	// Path is the absolute path of its program.
	Path string
	// Args are the program's arguments. Everybody can read them: no secrets.
	Args []string
	// SHA256 pins the program, 64 hex digits; empty does not.
	SHA256 string
	// Env adds to the provider's environment, as NAME=value. Names that berth,
	// go-plugin or systemd give a meaning are refused.
	Env []string
	// UID and GID are who the provider runs as, without supplementary groups;
	// both 0 leave it with the daemon's.
	UID, GID uint32
}

// Options configure a Host.
type Options struct {
	// Providers are the plugins, in the order of preference.
	Providers []Config
	// SocketDir is the directory that holds a directory per provider, which
	// only the provider's user can enter. Absolute and short: a socket's path
	// has at most 107 bytes (unix(7)).
	SocketDir string
	// LogDir gets each provider's standard error as KIND.log; empty means
	// the provider's directory below SocketDir.
	LogDir string
	// HostID marks the plugin processes.
	HostID string
	// Controllers are the controllers that the daemon can set on a leaf; they
	// are told to the providers.
	Controllers []string
	// Cgroup makes the cgroup for one start of a plugin; nil leaves plugins in
	// the daemon's own.
	Cgroup func(kind string) (Cgroup, error)
	// Logger gets starts, ends and refusals; nil discards them.
	Logger hclog.Logger
	// Bounds are the limits.
	Bounds Bounds
}

// Cgroup is the cgroup of one plugin start (statefs/cgroupfs has it as Leaf). It
// is never used twice: a cgroup that was killed kills what enters it later.
type Cgroup interface {
	// OpenWork opens the directory that the plugin is cloned into (version 2).
	OpenWork() (*os.File, error)
	// Kill ends every process in it (cgroup.kill).
	Kill() error
	// Remove removes it once it is empty; it waits for that within ctx.
	Remove(ctx context.Context) error
}

var kindForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

const (
	// maxSocketPath is sizeof(sun_path) - 1 (unix(7)).
	maxSocketPath = 107
	// socketNameBytes is the longest that go-plugin appends to a provider's
	// directory: "/plugin-dir" and "/plugin", each with a random uint32.
	socketNameBytes = len("/plugin-dir") + 10 + len("/plugin") + 10
)

// validate checks o without touching anything outside, and fills what is unset.
func (o Options) validate() (Options, error) {
	o.Bounds = o.Bounds.withDefaults()
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if !filepath.IsAbs(o.SocketDir) || (o.LogDir != "" && !filepath.IsAbs(o.LogDir)) {
		return o, fmt.Errorf("checking plugin directories %q, %q: not absolute", o.SocketDir, o.LogDir)
	}
	if o.HostID == "" || strings.ContainsAny(o.HostID, "\x00\n") {
		return o, fmt.Errorf("checking host id %q: not usable as a marker", o.HostID)
	}
	seen := map[string]bool{}
	for _, c := range o.Providers {
		if seen[c.Kind] {
			return o, fmt.Errorf("checking provider %q: configured twice", c.Kind)
		}
		seen[c.Kind] = true
		if err := c.validate(); err != nil {
			return o, fmt.Errorf("checking provider %q: %w", c.Kind, err)
		}
		if n := len(o.SocketDir) + 1 + len(c.Kind) + socketNameBytes; n > maxSocketPath {
			return o, fmt.Errorf("checking provider %q: a socket below %q would have a path of %d bytes, at most %d work",
				c.Kind, o.SocketDir, n, maxSocketPath)
		}
	}
	return o, nil
}

func (c Config) validate() error {
	if !kindForm.MatchString(c.Kind) {
		return errors.New("a kind is [a-z][a-z0-9-]{0,31}")
	}
	if !filepath.IsAbs(c.Path) || strings.IndexByte(c.Path, 0) >= 0 {
		return fmt.Errorf("path %q is not absolute", c.Path)
	}
	if sum, err := hex.DecodeString(c.SHA256); err != nil || (len(sum) != 0 && len(sum) != 32) {
		return fmt.Errorf("checksum %q is not 64 hexadecimal digits", c.SHA256)
	}
	if (c.UID == 0) != (c.GID == 0) {
		return fmt.Errorf("uid %d and gid %d: set both or neither", c.UID, c.GID)
	}
	if slices.ContainsFunc(c.Args, func(a string) bool { return strings.IndexByte(a, 0) >= 0 }) {
		return errors.New("an argument holds a NUL byte")
	}
	for i, e := range c.Env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" || strings.IndexByte(e, 0) >= 0 {
			return fmt.Errorf("environment entry %d is not NAME=value", i)
		}
		if reserved(name) {
			return fmt.Errorf("environment entry %q has a meaning of its own", name)
		}
	}
	return nil
}
