package statefs

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strconv"
)

// Names within the state directory; part of the format, see FORMAT.md.
const (
	lockName       = "lock"
	hostName       = "host.json"
	journalName    = "journal"
	sessionsName   = "sessions"
	workspacesName = "workspaces"
	trashName      = "trash"
	salvagesName   = "salvage"
	cacheName      = "cache"
)

// Layout says where things are in a state directory. It is a value without
// descriptors: its methods touch no disk, and what they name need not exist.
type Layout struct {
	path   string
	hostID string
}

// ReadLayout looks at the state directory dir without taking its lock, for
// tools that read beside a running daemon or a copy on another machine. It
// writes nothing. Errors: one that matches fs.ErrNotExist when dir is no state
// directory, ErrHost when host.json cannot be understood.
func ReadLayout(dir string) (Layout, error) {
	if !filepath.IsAbs(dir) {
		return Layout{}, fmt.Errorf("reading state directory %q: not an absolute path", dir)
	}
	dir = filepath.Clean(dir)
	h, err := readHost(filepath.Join(dir, hostName))
	if err != nil {
		return Layout{}, fmt.Errorf("reading state directory %q: %w", dir, err)
	}
	return Layout{path: dir, hostID: h.HostID}, nil
}

// Path returns the state directory's absolute path, as it was given.
func (l Layout) Path() string { return l.path }

// HostID returns the host's id: 32 hexadecimal digits, made once.
func (l Layout) HostID() string { return l.hostID }

// Journal returns the journal's directory.
func (l Layout) Journal() string { return filepath.Join(l.path, journalName) }

// Sessions returns the directory that holds a directory for every session.
func (l Layout) Sessions() string { return filepath.Join(l.path, sessionsName) }

// Workspaces returns the directory that holds the workspaces that berth makes,
// unless the configuration names another.
func (l Layout) Workspaces() string { return filepath.Join(l.path, workspacesName) }

// Cache returns the directory of what can be had again at the cost of time. Nobody
// but the daemon gets into it.
func (l Layout) Cache() string { return filepath.Join(l.path, cacheName) }

// SessionDir returns the directory of what is kept of session id, beside its
// workspace. For an id that SafeName refuses it is a path that is never made.
func (l Layout) SessionDir(id string) string {
	return filepath.Join(l.Sessions(), safeBase(id))
}

// GenerationDir returns the directory of one generation of session id: lock,
// status.json, exit.json, spool, wrap.log.
func (l Layout) GenerationDir(id string, generation uint64) string {
	return filepath.Join(l.SessionDir(id), generationName(generation))
}

// WorkspaceDir returns the directory of session id below Workspaces.
func (l Layout) WorkspaceDir(id string) string {
	return filepath.Join(l.Workspaces(), safeBase(id))
}

func generationName(generation uint64) string {
	return "g" + strconv.FormatUint(generation, 10)
}

// safeBase returns id, or for an unsafe one a hidden name that nothing makes:
// an id out of a damaged record must not lead out of its directory, and a path
// is no place for an error.
func safeBase(id string) string {
	if SafeName(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return ".unsafe-" + hex.EncodeToString(sum[:])
}
