package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Stamp is the note in a workspace's git directory that says who has prepared it.
// An agent can write what it likes there: the journal is the truth of what berth
// has done, the stamp tells of what another daemon, or a journal that is lost, has.
type Stamp struct {
	Version    int    `json:"version"`
	Host       string `json:"host"`
	Session    string `json:"session"`
	Generation uint64 `json:"generation"`
	Finished   bool   `json:"finished"`
}

// StampPath is where the stamp is, below the workspace.
const StampPath = ".git/berth/stamp.json"

const (
	stampVersion = 1
	maxStamp     = 4 << 10
)

// of reports whether a stamp is of the session that another one names.
func (s *Stamp) of(o *Stamp) bool { return s.Host == o.Host && s.Session == o.Session }

// beneath is how the stamp is reached: by no link, and nowhere else.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

func openStamp(root string, flags int) (*os.File, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK), Resolve: beneath}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o644
	}
	fd, err := unix.Openat2(dir, StampPath, &how)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), StampPath), nil
}

// readStamp returns the stamp of a workspace; false when it has none that can be
// read.
func readStamp(root string) (s Stamp, ok bool) {
	f, err := openStamp(root, unix.O_RDONLY)
	if err != nil {
		return s, false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return s, false
	}
	data, err := io.ReadAll(io.LimitReader(f, maxStamp))
	if err != nil || json.Unmarshal(data, &s) != nil {
		return Stamp{}, false
	}
	return s, s.Version == stampVersion && s.Session != ""
}

// stamp writes the stamp, where the workspace has a git directory of its own. It
// is on the disk before the daemon is told that the step has ended.
func (p *preparation) stamp(finished bool) error {
	git := filepath.Join(p.root, ".git")
	if info, err := os.Lstat(git); err != nil || !info.IsDir() {
		return nil
	}
	if err := os.Mkdir(filepath.Dir(filepath.Join(p.root, StampPath)), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	s := p.Stamp
	s.Version, s.Finished = stampVersion, finished
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := openStamp(p.root, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}

// claim finds out what has been done in a workspace that has content already. One
// that this session has prepared is done; one that another session has finished is
// taken over, and is this session's from then on; one that another session has
// not finished is left alone.
func (p *preparation) claim(context.Context) error {
	have, ok := readStamp(p.root)
	switch {
	case !ok:
		return nil
	case have.of(&p.Stamp):
		p.end.Prepared = have.Finished
		return nil
	case !have.Finished:
		return failed(FailedForeign, "session %q was preparing the workspace and has not finished; remove %s when it never will", clip(have.Session), StampPath)
	}
	p.end.From = clip(have.Session)
	return nil
}
