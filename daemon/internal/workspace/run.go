package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Run is the program berth-workspace: it reads one Request from in, writes one
// Report to out and returns the exit code. It ends at once when in does.
func Run(in io.Reader, out io.Writer) int {
	for fd := logFD; fd <= mirrorFD+1; fd++ { // nothing that runs here gets them, nor the program itself
		unix.CloseOnExec(fd)
	}
	var req Request
	dec := json.NewDecoder(io.LimitReader(in, maxRequest))
	if err := dec.Decode(&req); err != nil {
		fmt.Fprintln(os.Stderr, "berth-workspace: reading the request:", err)
		return 2
	}
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, in)
		// The daemon is gone, or wants no more: end, with everything that runs here.
		running.killAll()
		_ = unix.Kill(0, unix.SIGKILL)
	}()
	report, err := do(&req)
	if report == nil {
		report = &Report{}
	}
	if err != nil {
		report.Error = clip(err.Error())
	}
	if err := json.NewEncoder(out).Encode(report); err != nil {
		fmt.Fprintln(os.Stderr, "berth-workspace: writing the report:", err)
		return 1
	}
	return 0
}

func do(req *Request) (*Report, error) {
	if !filepath.IsAbs(req.Root) || req.Seconds <= 0 {
		return nil, errors.New("the request names no workspace or no time")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(req.Seconds)*time.Second)
	defer cancel()
	if req.Step != nil {
		ctx, stop := keepFree(ctx, req.Root, req.KeepFree)
		defer stop()
		return &Report{End: prepare(ctx, req)}, nil
	}
	if err := confine(); err != nil {
		return nil, err
	}
	switch req.Verb {
	case VerbInspect:
		return look(ctx, req.Root, req.Ignored)
	case VerbSalvage:
		ctx, stop := keepFree(ctx, req.Out, req.KeepFree)
		defer stop()
		report, err := Salvage(ctx, req.Root, req.Out)
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
		return report, err
	default:
		return nil, fmt.Errorf("unknown verb %q", req.Verb)
	}
}

// keepFree ends the context it returns when the file system of dir has less than
// least bytes left: what is saved must not fill the disk that the journal is on.
func keepFree(ctx context.Context, dir string, least uint64) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	look := func() {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			cancel(fmt.Errorf("looking for room: %w", err))
		} else if free := st.Bavail * uint64(st.Frsize); free < least {
			cancel(fmt.Errorf("%w: %d bytes are free and %d must stay free", errNoRoom, free, least))
		}
	}
	look()
	go func() { // ends with the context
		tick := time.NewTicker(roomEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				look()
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// maxRequest bounds a Request; a specification has 64 KiB at most.
const maxRequest = 1 << 20

// roomEvery is how often the room is looked at: a disk writes some hundred
// megabytes meanwhile.
const roomEvery = 100 * time.Millisecond

// confine bounds what a hostile repository can make git use.
func confine() error {
	for _, l := range []struct {
		name     string
		resource int
		limit    uint64
	}{{"data", unix.RLIMIT_DATA, 4 << 30}, {"core", unix.RLIMIT_CORE, 0}} {
		if err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: l.limit, Max: l.limit}); err != nil {
			return fmt.Errorf("limiting %s: %w", l.name, err)
		}
	}
	return nil
}
