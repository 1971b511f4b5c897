package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
)

func (a *app) logsCmd() *cobra.Command {
	var q rpc.LogsQuery
	var stamps bool
	cmd := a.oneSession("logs", "Show a session's output", func(ctx context.Context, id string) error {
		p := logPrinter{a: a, stamps: stamps}
		return failed(a.followLogs(ctx, id, q, p.print), id, "show the output of session %q", id)
	})
	cmd.Long = `Show a session's output: what the agent wrote to its standard output, and to its
standard error, each to ours. With -o json, one record a line.`
	cmd.Flags().BoolVarP(&q.Follow, "follow", "f", false, "go on until the session ends")
	cmd.Flags().Uint64Var(&q.Since, "since", 0, "start at this sequence number (default: the oldest kept)")
	cmd.Flags().Uint64Var(&q.Generation, "generation", 0, "the generation to show (default: the newest)")
	cmd.Flags().BoolVar(&stamps, "timestamps", false, "begin every record with its time and number")
	return cmd
}

// followLogs calls sink for each record. It goes on where it was when the
// daemon restarts in between, or has cut off a reader that was slow.
func (a *app) followLogs(ctx context.Context, id string, q rpc.LogsQuery, sink func(rpc.LogRecord) error) error {
	c := a.client()
	defer c.Close()
	var r restart
	for {
		err := func() error {
			for rec, err := range c.Logs(ctx, id, q) {
				if err != nil {
					return err
				}
				r.alive()
				if err := sink(rec); err != nil {
					return err
				}
				// What comes next belongs to the same generation, also when a
				// newer one has started meanwhile.
				q.Generation, q.Since = rec.Generation, rec.Seq+1
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
		_, err := fmt.Fprintf(p.a.err, "berthctl: output is missing here: %s\n", printable(string(r.Data)))
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
