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
	var req Request
	dec := json.NewDecoder(io.LimitReader(in, 64<<10))
	if err := dec.Decode(&req); err != nil {
		fmt.Fprintln(os.Stderr, "berth-workspace: reading the request:", err)
		return 2
	}
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, in)
		os.Exit(3) // the daemon is gone; whoever comes next begins anew
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
	if err := confine(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(req.Seconds)*time.Second)
	defer cancel()
	switch req.Verb {
	case VerbInspect:
		return Inspect(ctx, req.Root)
	case VerbSalvage:
		return Salvage(ctx, req.Root, req.Out)
	default:
		return nil, fmt.Errorf("unknown verb %q", req.Verb)
	}
}

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
