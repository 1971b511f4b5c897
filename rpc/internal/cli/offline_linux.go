package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/client"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs"
	"github.com/berthd/berth/statefs/spool"
)

// lockPoll is how often a reader of a spool looks whether its writer lives.
const lockPoll = 200 * time.Millisecond

// noDaemon tells whether err means that nobody serves the socket.
func noDaemon(err error) bool {
	var ue *client.UnreachableError
	return errors.As(err, &ue) && !ue.Sent && (errors.Is(ue, unix.ENOENT) || errors.Is(ue, unix.ECONNREFUSED))
}

// directory is the state directory that was asked for, or the usual one.
func (a *app) directory() string {
	if a.stateDir != "" {
		return a.stateDir
	}
	return defaultStateDir
}

// offlineLogs reads a session's output from the state directory. It needs no
// daemon and changes nothing; wrappers go on writing there while none runs.
func (a *app) offlineLogs(ctx context.Context, id string, q rpc.LogsQuery, sink func(rpc.LogRecord) error) error {
	gen, err := a.generationDir(id, &q.Generation)
	if err != nil {
		return err
	}
	r, err := spool.Open(filepath.Join(gen, wire.SpoolName))
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Seek(q.Since); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	done := make(chan struct{})
	go func() { // owned by this function, which waits for done
		defer close(done)
		lockLoop(ctx, filepath.Join(gen, wire.LockName), q.Follow, ended)
	}()
	defer func() { cancel(); <-done }()
	for rec, err := range r.Follow(ctx, spool.FollowOptions{Ended: ended}) {
		if err != nil {
			return err
		}
		if err := sink(offlineRecord(q.Generation, &rec)); err != nil {
			return err
		}
	}
	return nil
}

// generationDir finds the directory of one generation of a session, the newest
// one for 0. rpc.CodeNotFound: the state directory has none.
func (a *app) generationDir(id string, generation *uint64) (string, error) {
	if err := rpc.CheckSessionID(id); err != nil {
		return "", err
	}
	dir, err := filepath.Abs(a.directory())
	if err != nil {
		return "", err
	}
	layout, err := statefs.ReadLayout(dir)
	if err != nil {
		return "", err
	}
	if *generation == 0 {
		if *generation, err = newestGeneration(layout.SessionDir(id)); err != nil {
			return "", fmt.Errorf("looking for session %q in %q: %w", id, dir, err)
		}
	}
	gen := layout.GenerationDir(id, *generation)
	switch _, err := os.Stat(gen); {
	case errors.Is(err, fs.ErrNotExist):
		return "", rpc.Errorf(rpc.CodeNotFound, "%q has no output of generation %d of session %q", dir, *generation, id)
	case err != nil:
		return "", err
	}
	return gen, nil
}

// lockLoop closes ended once no wrapper holds the lock at path; at once
// without follow.
func lockLoop(ctx context.Context, path string, follow bool, ended chan<- struct{}) {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for follow && locked(path) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	close(ended)
}

// locked tells whether somebody holds a write lock on the file at path. It
// takes none: F_OFD_GETLK, fcntl_locking(2). What cannot be asked counts as held.
func locked(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return true
	}
	return l.Type != unix.F_UNLCK
}

// newestGeneration is the highest N of the directories gN in dir; 0 = none.
func newestGeneration(dir string) (uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	var newest uint64
	for _, e := range entries {
		if number, ok := strings.CutPrefix(e.Name(), "g"); ok {
			if n, err := strconv.ParseUint(number, 10, 64); err == nil {
				newest = max(newest, n)
			}
		}
	}
	return newest, nil
}

func offlineRecord(generation uint64, rec *spool.Record) rpc.LogRecord {
	out := rpc.LogRecord{Generation: generation, Seq: rec.Seq, At: rec.Time, Stream: rec.Stream.String(), Data: rec.Data}
	if rec.Gap != nil {
		out.Data, _ = json.Marshal(rec.Gap) // strings and numbers cannot fail
	}
	return out
}

// gapText says what a gap record has lost. Its data are a spool.Gap.
func gapText(data []byte) string {
	var g spool.Gap
	if json.Unmarshal(data, &g) != nil {
		return string(data)
	}
	text := g.Cause
	switch {
	case g.FromSeq > 0 && g.ToSeq > 0:
		text += fmt.Sprintf(", records %d to %d", g.FromSeq, g.ToSeq)
	case g.FromSeq > 0:
		text += fmt.Sprintf(", records from %d on", g.FromSeq)
	}
	for _, stream := range []string{"stdout", "stderr", "pty"} {
		if n := g.Bytes[stream]; n > 0 {
			text += fmt.Sprintf(", %s of %s", bytesText(n), stream)
		}
	}
	if g.Detail != "" {
		text += " (" + g.Detail + ")"
	}
	return text
}
