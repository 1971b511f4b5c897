package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
)

func (a *app) drainCmd() *cobra.Command {
	var req rpc.DrainRequest
	cmd := &cobra.Command{
		Use: "drain", Short: "Start nothing on this host any more; with --kill stop all sessions too", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req.Wait = req.Wait || req.Kill
			setKey(&req.Key)
			reply, err := change(cmd.Context(), a, req.Wait, func(ctx context.Context) (rpc.DrainReply, error) { return a.client().Drain(ctx, req) })
			if err != nil {
				return failed(err, "", "drain the host")
			}
			if err := a.show(reply, func() { a.drainText(reply) }); err != nil {
				return err
			}
			if n := reply.Sessions["quarantined"]; req.Wait && n > 0 {
				return failed(fmt.Errorf("%d sessions are quarantined", n), "", "drain the host")
			}
			return nil
		},
	}
	cmd.Long = `Start nothing on this host any more, also not after a restart of the daemon, until
"berthctl undrain". Sessions that run go on, and everything else can be done with
them; --kill stops them all and returns when they have ended.`
	cmd.Flags().StringVar(&req.Key, "key", "", "operation key (default: a new one)")
	cmd.Flags().BoolVar(&req.Kill, "kill", false, "stop all sessions, and wait for their end")
	cmd.Flags().BoolVar(&req.Wait, "wait", false, "return when no session runs any more")
	cmd.Flags().StringVar(&req.Why, "why", "", "a reason, which refused starts are told")
	return cmd
}

func (a *app) undrainCmd() *cobra.Command {
	var req rpc.UndrainRequest
	cmd := &cobra.Command{
		Use: "undrain", Short: "Let sessions be started again", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			setKey(&req.Key)
			reply, err := change(cmd.Context(), a, false, func(ctx context.Context) (rpc.DrainReply, error) {
				return a.client().Undrain(ctx, req)
			})
			if err != nil {
				return failed(err, "", "end the drain of the host")
			}
			return a.show(reply, func() { a.drainText(reply) })
		},
	}
	cmd.Flags().StringVar(&req.Key, "key", "", "operation key (default: a new one)")
	return cmd
}

func (a *app) drainText(r rpc.DrainReply) {
	state := "sessions may be started"
	if r.Drain != nil {
		state = "nothing is started" + drainedBy(r.Drain)
	}
	sessions := countsText(r.Sessions)
	if sessions == "" {
		sessions = "none"
	}
	fmt.Fprintf(a.out, "%s; sessions: %s\n", state, sessions)
}

// drainedBy says who has drained the host, when and why; empty for nobody.
func drainedBy(d *rpc.Drain) string {
	if d == nil {
		return ""
	}
	return prefixed(" by ", d.By) + d.Since.Local().Format(" since "+time.DateTime) + prefixed(": ", d.Why)
}
