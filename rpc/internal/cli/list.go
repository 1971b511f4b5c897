package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
)

func (a *app) listCmd() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls", "ps"},
		Short:   "List sessions",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := read(cmd.Context(), a.client().List)
			if err != nil {
				return failed(err, "", "list sessions")
			}
			return a.show(reply, func() { a.listText(reply, quiet) })
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "only ids, one a line")
	return cmd
}

func (a *app) listText(reply rpc.ListReply, quiet bool) {
	if quiet {
		for _, s := range reply.Sessions {
			fmt.Fprintln(a.out, s.Session)
		}
		return
	}
	t := heading("SESSION", "STATE", "GEN", "PID", "PROVIDER", "UID", "CHANGED", "COMMAND", "NOTE")
	for _, s := range reply.Sessions {
		t.add(s.Session, a.state(s), orDash(s.Generation), orDash(s.PID), orDash(s.Provider), s.UID,
			a.since(s.LastChange), short(commandText(s.Command), 40), note(s))
	}
	a.print(t)
	if reply.State == "reconciling" {
		fmt.Fprintln(a.err, "berthctl: the daemon is still adopting the processes of an earlier one")
	}
}

// state is a session's state in its colour.
func (a *app) state(s rpc.Session) cell {
	c := cell{text: s.State}
	switch s.State {
	case "starting", "ready", "active", "warm":
		c.sgr = green
	case "stop_needed", "stopping":
		c.sgr = yellow
	case "quarantined":
		c.sgr = red
	}
	if s.Adoption != "" && s.Adoption != "adopted" {
		c.text += " (" + s.Adoption + ")"
	}
	return c
}

// note is the one thing about a session that a person should see first.
func note(s rpc.Session) string {
	switch {
	case s.Problem != "":
		return s.Problem
	case s.Deleting != nil:
		return "deleting: " + s.Deleting.Step
	case s.Stop != nil:
		return stopText(s.Stop)
	case s.Link == "down":
		return "no connection to its process"
	case s.Exit != nil && s.State == "vacant":
		return exitText(s.Exit)
	}
	return ""
}

func stopText(s *rpc.StopState) string {
	text := fmt.Sprintf("stop for %s, attempt %d", s.Reason, s.Attempts)
	if s.LastError != "" {
		text += ": " + s.LastError
	}
	if s.NextTryIn > 0 {
		text += ", next try in " + seconds(s.NextTryIn)
	}
	return text
}

// exitText says how an instance ended.
func exitText(x *rpc.Exit) string {
	var text string
	switch x.Kind {
	case "code":
		text = fmt.Sprintf("ended with code %d", x.Code)
	case "signal":
		text = "ended by " + signalText(x.Signal)
	case "oom":
		text = "ended for lack of memory"
	default:
		text = "how it ended is not known"
		if x.Unknown != "" {
			text += " (" + x.Unknown + ")"
		}
	}
	if x.Reason != "" {
		text += ", stopped for " + x.Reason
	}
	if x.By != "" {
		text += " by " + x.By
	}
	return text
}

func short(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return strings.TrimSpace(string(r[:n-1])) + "…"
	}
	return s
}

func (a *app) getCmd() *cobra.Command {
	return a.oneSession("get", "Show one session", func(ctx context.Context, id string) error {
		s, err := read(ctx, func(ctx context.Context) (rpc.Session, error) { return a.client().Get(ctx, id) })
		if err != nil {
			return failed(err, id, "get session %q", id)
		}
		return a.show(s, func() { a.sessionText(s) })
	})
}

func (a *app) sessionText(s rpc.Session) {
	exit := ""
	if s.Exit != nil {
		exit = fmt.Sprintf("generation %d %s", s.Exit.Generation, exitText(s.Exit))
	}
	stop, deleting := "", ""
	if s.Stop != nil {
		stop = stopText(s.Stop)
	}
	if s.Deleting != nil {
		deleting = s.Deleting.Step + " " + s.Deleting.LastError
	}
	reserved := ""
	if s.ReservedBytes > 0 || s.ReservedInodes > 0 {
		reserved = fmt.Sprintf("%s, %d inodes", bytesText(s.ReservedBytes), s.ReservedInodes)
	}
	a.fields(
		"Session", cell{text: s.Session, sgr: bold},
		"State", a.state(s),
		"Problem", cell{text: s.Problem, sgr: red},
		"Stop", stop,
		"Deleting", strings.TrimSpace(deleting),
		"Owner", fmt.Sprintf("uid %d", s.UID),
		"Generation", zeroEmpty(s.Generation),
		"Instance", s.Instance,
		"Process", zeroEmpty(s.PID),
		"Agent", zeroEmpty(s.AgentPID),
		"Connection", s.Link,
		"Provider", s.Provider,
		"Command", commandText(s.Command),
		"Workspace", s.Workspace,
		"Reserved", reserved,
		"Last exit", exit,
		"Last change", fmt.Sprintf("%s ago (%s)", a.since(s.LastChange), s.LastEvent),
	)
}

func zeroEmpty[T int | uint64](v T) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprint(v)
}
