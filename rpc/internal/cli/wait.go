package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
)

func (a *app) waitCmd() *cobra.Command {
	cmd := a.oneSession("wait", "Wait until a session runs nothing; exit as its agent did", func(ctx context.Context, id string) error {
		reply, err := change(ctx, a, true, func(ctx context.Context) (rpc.WaitReply, error) { return a.client().Wait(ctx, id) })
		if err != nil {
			return failed(err, id, "wait for session %q", id)
		}
		err = a.show(reply, func() {
			fmt.Fprintf(a.out, "%s is %s%s\n", id, reply.Session.State, prefixed(": ", note(reply.Session)))
		})
		if err != nil {
			return err
		}
		return a.agentEnd(id, reply.Session)
	})
	cmd.Annotations = map[string]string{agentVerb: "true"}
	return cmd
}

// agentEnd is the end of a verb whose exit code is the agent's.
func (a *app) agentEnd(id string, s rpc.Session) error {
	code, err := agentCode(s.Exit)
	if err != nil {
		return failed(err, id, "tell the exit code of session %q", id)
	}
	if code == 0 {
		return nil
	}
	return &agentExit{code}
}
