package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
)

func (a *app) gcCmd() *cobra.Command {
	var explain bool
	cmd := &cobra.Command{
		Use: "gc --explain", Short: "Show for every workspace why it would be reclaimed if room were needed, or why not", Args: cobra.NoArgs,
		Long: `Show for every workspace why it would be reclaimed if room were needed, or why
not. Nothing is reclaimed: the daemon does that by itself, when the disk is low
or a start finds no room.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !explain {
				return usagef("gc only explains: say --explain")
			}
			r, err := a.client().Gc(cmd.Context())
			if err != nil {
				return failed(err, "", "judge the workspaces")
			}
			return a.show(r, func() { a.gcText(r) })
		},
	}
	cmd.Flags().BoolVar(&explain, "explain", false, "say why")
	return cmd
}

func (a *app) gcText(r rpc.GCReply) {
	t := heading("SESSION", "RELEASED", "RECLAIMABLE", "WHY NOT", "HOLDS")
	for _, w := range r.Workspaces {
		may := cell{text: "no"}
		if w.Eligible {
			may = cell{text: "yes", sgr: yellow}
		}
		released := "never"
		if w.ReleasedSeconds != nil {
			released = seconds(*w.ReleasedSeconds) + " ago"
		}
		t.add(w.Session, released, may, orDash(strings.Join(w.WhyNot, "; ")), orDash(printable(w.Holds)))
	}
	a.print(t)
	if !r.Enabled {
		fmt.Fprintln(a.out, "nothing is reclaimed: capacity.reclaim is off")
	}
}
