package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
)

func (a *app) stopCmd() *cobra.Command {
	var req rpc.StopRequest
	cmd := a.oneSession("stop", "Stop a session; its workspace and its record stay", func(ctx context.Context, id string) error {
		setKey(&req.Key)
		reply, err := change(ctx, a, req.Wait, func(ctx context.Context) (rpc.StopReply, error) { return a.client().Stop(ctx, id, req) })
		if err != nil {
			return failed(err, id, "stop session %q", id)
		}
		err = a.show(reply, func() {
			fmt.Fprintf(a.out, "%s is %s%s\n", id, reply.Session.State, prefixed(": ", note(reply.Session)))
		})
		if err == nil && req.Wait && reply.Session.State != "vacant" {
			return failed(fmt.Errorf("it is %s", reply.Session.State), id, "stop session %q", id)
		}
		return err
	})
	cmd.Flags().BoolVar(&req.Wait, "wait", false, "return when nothing of it is alive any more, or berth has given up")
	cmd.Flags().StringVar(&req.Why, "why", "", "a reason for the audit log")
	cmd.Flags().StringVar(&req.Key, "key", "", "operation key (default: a new one)")
	return cmd
}

func (a *app) deleteCmd() *cobra.Command {
	var req rpc.DeleteRequest
	cmd := a.oneSession("delete", "Stop a session and delete it for good, its workspace included", func(ctx context.Context, id string) error {
		if req.Discard && req.Salvage {
			return usagef("--discard loses what --salvage saves: give one of them")
		}
		setKey(&req.Key)
		reply, err := change(ctx, a, req.Wait, func(ctx context.Context) (rpc.DeleteReply, error) { return a.client().Delete(ctx, id, req) })
		if err != nil {
			return failed(err, id, "delete session %q", id)
		}
		err = a.show(reply, func() { a.deleteText(id, reply) })
		if err == nil && req.Wait && reply.Tombstone == nil {
			return failed(fmt.Errorf("the deletion is held up%s", prefixed(": ", heldUp(reply.Deleting))), id, "delete session %q", id)
		}
		return err
	})
	cmd.Aliases = []string{"rm"}
	cmd.Long = `Stop a session and delete it for good. Its id is never used again. A workspace
that berth made is deleted with it. When that would lose work (changed or
untracked files, commits that no remote has, a stash, an unfinished merge, files
outside git), the deletion is refused with a list of it, unless --salvage saves
it on the host or --discard agrees to lose it. Files that git ignores are no
work. A directory that was given with --workspace is left alone.`
	cmd.Flags().BoolVar(&req.Discard, "discard", false, "lose the work in the workspace that berth made")
	cmd.Flags().BoolVar(&req.Salvage, "salvage", false, "save the work in the workspace that berth made, then delete it")
	cmd.Flags().BoolVar(&req.Wait, "wait", false, "return when it is gone, or the deletion is held up")
	cmd.Flags().StringVar(&req.Why, "why", "", "a reason for the audit log")
	cmd.Flags().StringVar(&req.Key, "key", "", "operation key (default: a new one)")
	return cmd
}

func (a *app) deleteText(id string, reply rpc.DeleteReply) {
	if reply.Tombstone != nil {
		fmt.Fprintf(a.out, "%s is deleted (last generation %d)\n", id, reply.Tombstone.LastGeneration)
		if saved := reply.Tombstone.Saved; saved != "" {
			fmt.Fprintf(a.out, "its work is saved in %s\n", printable(saved))
		}
		return
	}
	fmt.Fprintf(a.out, "%s is being deleted%s\n", id, prefixed(": ", heldUp(reply.Deleting)))
}

func heldUp(d *rpc.DeleteState) string {
	if d == nil {
		return ""
	}
	return d.Step + prefixed(": ", d.LastError)
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + printable(s)
}

func setKey(key *string) {
	if *key == "" {
		*key = "berthctl-" + randomHex(16)
	}
}
