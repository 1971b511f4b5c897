package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
)

func (a *app) eventsCmd() *cobra.Command {
	var q rpc.EventsQuery
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what has happened, oldest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.Session != "" {
				if err := rpc.CheckSessionID(q.Session); err != nil {
					return &usageError{message(err)}
				}
			}
			return failed(a.followEvents(cmd.Context(), q, a.printEvent), q.Session, "show events")
		},
	}
	cmd.Flags().BoolVarP(&q.Follow, "follow", "f", false, "go on until interrupted")
	cmd.Flags().Uint64Var(&q.After, "after", 0, "start after this sequence number (default: the oldest kept)")
	cmd.Flags().StringVar(&q.Session, "session", "", "only this session's")
	cmd.RegisterFlagCompletionFunc("session", a.completeSession)
	return cmd
}

func (a *app) followEvents(ctx context.Context, q rpc.EventsQuery, sink func(rpc.Event) error) error {
	c := a.client()
	defer c.Close()
	var r restart
	for {
		err := func() error {
			for e, err := range c.Events(ctx, q) {
				if err != nil {
					return err
				}
				r.alive()
				if err := sink(e); err != nil {
					return err
				}
				q.After = e.Seq
			}
			return nil
		}()
		if err == nil || !a.again(ctx, &r, err) {
			return err
		}
	}
}

func (a *app) printEvent(e rpc.Event) error {
	if a.output == "json" {
		return a.json(e, "")
	}
	var words []string
	add := func(name, value string) {
		if value != "" {
			words = append(words, name+printable(value))
		}
	}
	add("state ", e.State)
	add("reason ", e.Reason)
	add("by ", e.By)
	add("", e.Detail)
	if e.Exit != nil {
		add("", exitText(e.Exit))
	}
	if e.Kind == "gap" {
		add("", fmt.Sprintf("events %d to %d are lost", e.From, e.To))
	}
	session := e.Session
	if e.Generation > 0 {
		session += fmt.Sprintf(" g%d", e.Generation)
	}
	_, err := fmt.Fprintf(a.out, "%-6d %s  %-24s %s  %s\n", e.Seq, e.At.Local().Format(time.DateTime),
		orDash(printable(session)), a.paint(bold, printable(e.Kind)), strings.Join(words, ", "))
	return err
}
