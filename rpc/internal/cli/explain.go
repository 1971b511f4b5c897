package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
)

func (a *app) explainCmd() *cobra.Command {
	return a.oneSession("explain", "Show what is known about a session, and how", func(ctx context.Context, id string) error {
		x, err := read(ctx, func(ctx context.Context) (rpc.ExplainReply, error) { return a.client().Explain(ctx, id) })
		if err != nil {
			return failed(err, id, "explain session %q", id)
		}
		return a.show(x, func() { a.explainText(id, x) })
	})
}

func (a *app) explainText(id string, x rpc.ExplainReply) {
	switch {
	case x.Tombstone != nil:
		t := x.Tombstone
		fmt.Fprintf(a.out, "%s was deleted %s ago (%s%s); its last generation was %d.\n\n",
			id, a.since(t.At), printable(t.Reason), prefixed(" by ", t.By), t.LastGeneration)
	case x.Session != nil:
		a.sessionText(*x.Session)
		fmt.Fprintln(a.out)
	}
	verdict := cell{text: fmt.Sprintf("%s (%s evidence)", x.Verdict, x.Strength)}
	if x.Verdict == "unknown" || x.Strength == "weak" {
		verdict.sgr = yellow
	}
	a.fields("Verdict", verdict, "Leaf", x.Leaf)
	t := heading("WITNESS", "ANSWER", "AGE", "DETAIL")
	for _, w := range x.Witnesses {
		t.add(w.Name, w.Answer, seconds(w.AgeSeconds), w.Detail)
	}
	fmt.Fprintln(a.out)
	a.print(t)
	if len(x.Processes) > 0 {
		fmt.Fprintln(a.out)
		a.print(processTable(x.Processes))
	}
	for _, d := range x.Debts {
		fmt.Fprintf(a.out, "\nStill owed: %s", printable(d))
	}
	for _, n := range x.Notes {
		fmt.Fprintf(a.out, "\nNote: %s", printable(n))
	}
	if len(x.Debts)+len(x.Notes) > 0 {
		fmt.Fprintln(a.out)
	}
}

func processTable(ps []rpc.Process) table {
	t := heading("PID", "UID", "KIND", "SESSION", "GEN", "COMMAND", "DETAIL")
	for _, p := range ps {
		c := cell{text: p.Kind}
		switch p.Kind {
		case "escaped", "forged", "orphan", "stuck":
			c.sgr = red
		case "legacy":
			c.sgr = yellow
		}
		detail := p.Detail
		if p.Zombie {
			detail = "zombie" + prefixed(", ", detail)
		}
		t.add(p.PID, p.UID, c, orDash(p.Session), orDash(p.Generation), p.Comm, detail)
	}
	return t
}
