package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
)

func (a *app) startCmd() *cobra.Command {
	var spec specFlags
	cmd := &cobra.Command{
		Use:   "start SESSION [flags] [-- COMMAND [ARG...]]",
		Short: "Start a session and return once its process is verified",
		Long: `Start a session and return once its process is verified. Without a command
the session's stored specification is used. Starting a session that runs with
the same specification is no error and starts nothing.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[0]
			req, err := spec.request(args[1:])
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), startTimeout)
			defer cancel()
			reply, err := change(ctx, a, true, func(ctx context.Context) (rpc.StartReply, error) { return a.client().Start(ctx, id, req) })
			if err != nil {
				return failed(err, id, "start session %q", id)
			}
			return a.show(reply, func() {
				fmt.Fprintf(a.out, "%s started: generation %d, process %d, provider %s, workspace %s\n",
					id, reply.Generation, reply.PID, reply.Provider, printable(reply.Workspace))
			})
		},
	}
	spec.register(cmd)
	return cmd
}
