package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs"
)

func (a *app) logsCmd() *cobra.Command {
	var q rpc.LogsQuery
	var stamps bool
	cmd := a.oneSession("logs", "Show a session's output", func(ctx context.Context, id string) error {
		p := logPrinter{a: a, stamps: stamps}
		return failed(a.logs(ctx, id, q, p.print), id, "show the output of session %q", id)
	})
	cmd.Long = `Show a session's output: what the agent wrote to its standard output, and to its
standard error, each to ours. With -o json, one record a line.

When no daemon runs, or with --state-dir, the output is read directly from the
state directory, which takes its owner's rights.`
	cmd.Flags().BoolVarP(&q.Follow, "follow", "f", false, "go on until the session ends")
	cmd.Flags().Uint64Var(&q.Since, "since", 0, "start at this sequence number (default: the oldest kept)")
	cmd.Flags().Uint64Var(&q.Generation, "generation", 0, "the generation to show (default: the newest)")
	stateDirFlag(cmd, &a.stateDir)
	cmd.Flags().BoolVar(&stamps, "timestamps", false, "begin every record with its time and number")
	return cmd
}

// logs asks the daemon, or reads the state directory where there is none.
func (a *app) logs(ctx context.Context, id string, q rpc.LogsQuery, sink func(rpc.LogRecord) error) error {
	if a.stateDir != "" {
		return a.offlineLogs(ctx, id, q, sink)
	}
	err := a.followLogs(ctx, id, &q, sink)
	if !noDaemon(err) {
		return err
	}
	if _, serr := statefs.ReadLayout(a.directory()); serr != nil {
		return err // nothing here that could answer instead
	}
	fmt.Fprintf(a.err, "berthctl: no daemon runs; reading %s\n", a.directory())
	return a.offlineLogs(ctx, id, q, sink)
}

// followLogs calls sink for each record. It goes on where it was when the
// daemon restarts in between, or has cut off a reader that was slow. q is left
// at what comes next.
func (a *app) followLogs(ctx context.Context, id string, q *rpc.LogsQuery, sink func(rpc.LogRecord) error) error {
	c := a.client()
	defer c.Close()
	var r restart
	for {
		err := func() error {
			for rec, err := range c.Logs(ctx, id, *q) {
				if err != nil {
					return err
				}
				r.alive()
				if err := sink(rec); err != nil {
					return err
				}
				if rec.Stream == "gap" {
					continue // what follows it has a number of its own
				}
				// What comes next belongs to the same generation, also when a
				// newer one has started meanwhile.
				q.Generation, q.Since = rec.Generation, max(q.Since, rec.Seq+1)
			}
			return nil
		}()
		if err == nil || !a.again(ctx, &r, err) {
			return err
		}
	}
}

// logPrinter writes records where they belong.
type logPrinter struct {
	a      *app
	stamps bool
}

func (p *logPrinter) print(r rpc.LogRecord) error {
	if p.a.output == "json" {
		return p.a.json(r, "")
	}
	var w io.Writer
	switch r.Stream {
	case "stdout", "pty":
		w = p.a.out
	case "stderr":
		w = p.a.err
	case "gap":
		_, err := fmt.Fprintf(p.a.err, "berthctl: output is missing here: %s\n", printable(gapText(r.Data)))
		return err
	default:
		return nil
	}
	if p.stamps {
		if _, err := fmt.Fprintf(w, "%s %d %s ", r.At.Format(time.RFC3339Nano), r.Seq, r.Stream); err != nil {
			return err
		}
	}
	_, err := w.Write(r.Data)
	return err
}
