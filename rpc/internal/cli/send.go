package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
)

// maxSend is how much one request carries: base64 makes it a third longer,
// and the daemon's bound on a body is 1 MiB.
const maxSend = 512 << 10

func (a *app) sendCmd() *cobra.Command {
	var message string
	var eof, noNewline bool
	cmd := &cobra.Command{
		Use:   "send SESSION [TEXT]",
		Short: "Give a line of text, or standard input, to the agent",
		Long: `Give TEXT and a newline to the agent's input. Without TEXT, or with "-", give it
what is on standard input, as it is.`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 || args[1] == "-" {
				if message != "" {
					return usagef("--message is for one TEXT, not for standard input")
				}
				return failed(a.sendAll(cmd.Context(), args[0], a.in, eof), args[0], "send to session %q", args[0])
			}
			req := rpc.SendRequest{Message: message, Data: []byte(args[1]), EOF: eof}
			if !noNewline {
				req.Data = append(req.Data, '\n')
			}
			return failed(a.sendOne(cmd.Context(), args[0], req), args[0], "send to session %q", args[0])
		},
	}
	cmd.Flags().StringVar(&message, "message", "", "message id: a repeat with the same id is not written again (default: a new one)")
	cmd.Flags().BoolVar(&eof, "eof", false, "close the agent's input afterwards")
	cmd.Flags().BoolVarP(&noNewline, "no-newline", "n", false, "no newline after TEXT")
	return cmd
}

// sendOne sends one message; its id makes it safe to repeat.
func (a *app) sendOne(ctx context.Context, id string, req rpc.SendRequest) error {
	if req.Message == "" {
		req.Message = "berthctl-" + randomHex(16)
	}
	_, err := change(ctx, a, false, func(ctx context.Context) (rpc.SendReply, error) { return a.client().Send(ctx, id, req) })
	return err
}

// sendAll gives r to the agent as it comes, and with eof its end.
func (a *app) sendAll(ctx context.Context, id string, r io.Reader, eof bool) error {
	buf := make([]byte, maxSend)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := a.sendOne(ctx, id, rpc.SendRequest{Data: buf[:n]}); err != nil {
				return err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("reading standard input: %w", err)
		}
	}
	if !eof {
		return nil
	}
	return a.sendOne(ctx, id, rpc.SendRequest{EOF: true})
}
