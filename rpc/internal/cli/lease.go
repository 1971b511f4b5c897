package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
)

func (a *app) leaseCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lease",
		Short: "Settle what berth cannot settle by itself",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.resolveCmd())
	return cmd
}

func (a *app) resolveCmd() *cobra.Command {
	var adopt, abandon, verified bool
	var why, key string
	cmd := a.oneSession("resolve", "Adopt or abandon the lease of a quarantined session", func(ctx context.Context, id string) error {
		switch {
		case adopt == abandon:
			return usagef("lease resolve needs one of --adopt and --abandon")
		case !verified:
			return usagef("lease resolve needs --i-verified: look at \"berthctl explain %s\" and at the processes yourself first", id)
		case why == "":
			return usagef("lease resolve needs --why: the decision is audited")
		}
		setKey(&key)
		req := rpc.ResolveRequest{Key: key, Action: "abandon", Verified: true, Why: why}
		if adopt {
			req.Action = "adopt"
		}
		s, err := read(ctx, func(ctx context.Context) (rpc.Session, error) { return a.client().Resolve(ctx, id, req) })
		if err != nil {
			return failed(err, id, "resolve the lease of session %q", id)
		}
		return a.show(s, func() { fmt.Fprintf(a.out, "%s is %s%s\n", id, s.State, prefixed(": ", note(s))) })
	})
	cmd.Long = `Adopt or abandon the lease of a quarantined session: one whose process berth could
not stop, or whose record it could not read. Adopting takes the running process
back; abandoning says that you have made sure that nothing of it is alive.
Abandoning also gives up what a provider does not release, for good, of a
session that nothing runs of. Berth believes you, and keeps what you said in
the session's record and in its tombstone.`
	cmd.Flags().StringVar(&key, "key", "", "operation key (default: a new one)")
	cmd.Flags().BoolVar(&adopt, "adopt", false, "the process that runs is the session's: take it back")
	cmd.Flags().BoolVar(&abandon, "abandon", false, "nothing of the session is alive: give the lease up")
	cmd.Flags().BoolVar(&verified, "i-verified", false, "you have looked")
	cmd.Flags().StringVar(&why, "why", "", "the reason, for the audit log")
	return cmd
}
