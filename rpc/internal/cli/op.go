package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
)

func (a *app) opCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "op", Short: "Show what operation keys were used for", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.opGetCmd(), a.opListCmd())
	return cmd
}

func (a *app) opGetCmd() *cobra.Command {
	var q rpc.OperationsQuery
	cmd := &cobra.Command{
		Use: "get KEY", Short: "Show the operations of one key, with their answers", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Key = args[0]
			reply, err := a.operations(cmd, q)
			if err != nil {
				return err
			}
			if len(reply.Operations) == 0 {
				return failed(rpc.Errorf(rpc.CodeNotFound, "no operation has that key"), "", "get operation %q", q.Key)
			}
			return a.show(reply, func() {
				for i, op := range reply.Operations {
					if i > 0 {
						fmt.Fprintln(a.out)
					}
					a.operationText(op)
				}
			})
		},
	}
	cmd.Flags().StringVar(&q.Kind, "kind", "", "only of that kind: start, stop, delete, resolve, drain or undrain")
	return cmd
}

func (a *app) opListCmd() *cobra.Command {
	var q rpc.OperationsQuery
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List operations", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := a.operations(cmd, q)
			if err != nil {
				return err
			}
			return a.show(reply, func() {
				t := heading("UID", "KIND", "KEY", "SESSION", "GEN", "STATE", "CONFLICTS", "AGE")
				for _, op := range reply.Operations {
					t.add(op.UID, op.Kind, op.Key, orDash(op.Session), orDash(op.Generation), operationState(op), orDash(op.Conflicts), a.since(op.At))
				}
				a.print(t)
				if reply.Truncated {
					fmt.Fprintln(a.out, "there are more: say a session or a kind")
				}
			})
		},
	}
	cmd.Flags().StringVar(&q.Kind, "kind", "", "only of that kind: start, stop, delete, resolve, drain or undrain")
	cmd.Flags().StringVar(&q.Session, "session", "", "only of that session")
	return cmd
}

func (a *app) operations(cmd *cobra.Command, q rpc.OperationsQuery) (rpc.OperationsReply, error) {
	reply, err := read(cmd.Context(), func(ctx context.Context) (rpc.OperationsReply, error) { return a.client().Operations(ctx, q) })
	if err != nil {
		return reply, failed(err, "", "list operations")
	}
	return reply, nil
}

func (a *app) operationText(op rpc.Operation) {
	a.fields(
		"Key", op.Key,
		"Kind", op.Kind,
		"User", op.UID,
		"Session", op.Session,
		"Generation", zeroEmpty(op.Generation),
		"State", operationState(op),
		"Conflicts", zeroEmpty(op.Conflicts),
		"Since", a.since(op.At),
		"Error", prefixed("", op.Message),
		"Answer", string(op.Result),
	)
}

func operationState(op rpc.Operation) cell {
	c := cell{text: op.State}
	switch op.State {
	case "failed":
		c = cell{text: op.State + " (" + string(op.ErrorCode) + ")", sgr: red}
	case "reconcile_pending":
		c.sgr = yellow
	}
	return c
}
