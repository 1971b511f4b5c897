package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
)

func (a *app) statusCmd() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the daemon's account of itself", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := read(cmd.Context(), a.client().Status)
			if err != nil {
				return failed(err, "", "get the daemon's status")
			}
			return a.show(s, func() { a.statusText(s) })
		},
	}
}

func (a *app) statusText(s rpc.StatusReply) {
	state := cell{text: s.State, sgr: green}
	if s.State != "ready" {
		state.sgr = yellow
	}
	journal := cell{text: fmt.Sprintf("healthy, record %d, last fsync %.0f µs", s.Journal.LastSeq, s.Journal.LastFsyncMicros)}
	if !s.Journal.Healthy {
		journal = cell{text: "FAILED: " + s.Journal.Error, sgr: red}
	}
	a.fields(
		"State", state,
		"Problems", cell{text: strings.Join(s.Problems, "; "), sgr: red},
		"Draining", cell{text: strings.TrimSpace(drainedBy(s.Drain)), sgr: yellow},
		"Version", s.Version,
		"Process", fmt.Sprintf("%d, for %s", s.PID, a.since(s.StartedAt)),
		"Host", s.HostID,
		"Epoch", s.Epoch,
		"Cgroups", strings.TrimSpace(s.Cgroup+" "+s.CgroupPath),
		"Leaves", withReason(s.Leaves, s.LeavesReason),
		"Evidence", s.Evidence,
		"Sessions", countsText(s.Sessions),
		"Adoption", countsText(s.Adoption),
		"Journal", journal,
		"Recovery", strings.Join(s.Journal.Recovery, "; "),
		"State dir", s.StateDir,
		"Stale events", zeroEmpty(s.Stale),
		"Log", s.Log,
		"Dropped log entries", zeroEmpty(s.LogDropped),
	)
}

func withReason(what, reason string) string {
	if reason == "" {
		return what
	}
	return what + ": " + reason
}

func countsText(m map[string]int) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		words = append(words, fmt.Sprintf("%d %s", m[k], k))
	}
	return strings.Join(words, ", ")
}

func (a *app) capacityCmd() *cobra.Command {
	return &cobra.Command{
		Use: "capacity", Aliases: []string{"df"}, Short: "Show the room on the file systems that berth uses", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := read(cmd.Context(), a.client().Capacity)
			if err != nil {
				return failed(err, "", "get the capacity")
			}
			return a.show(c, func() { a.capacityText(c) })
		},
	}
}

func (a *app) capacityText(c rpc.CapacityReply) {
	t := heading("ROOT", "FREE", "OF", "RESERVED", "LOW MARK", "INODES FREE", "RESERVED", "LOW MARK", "AGE", "STATE", "PATH")
	for _, r := range c.Roots {
		state := cell{text: "ok", sgr: green}
		switch {
		case !r.Known:
			state = cell{text: "unknown: " + r.Error, sgr: red}
		case r.Low:
			state = cell{text: "low", sgr: yellow}
		}
		inodes := "-" // a file system without a fixed number of them
		if r.TotalInodes > 0 {
			inodes = fmt.Sprint(r.FreeInodes)
		}
		t.add(r.Name, bytesText(r.FreeBytes), bytesText(r.TotalBytes), bytesText(r.ReservedBytes), bytesText(r.LowBytes),
			inodes, r.ReservedInodes, r.LowInodes, seconds(r.AgeSeconds), state, r.Path)
	}
	a.print(t)
}

func (a *app) providersCmd() *cobra.Command {
	return &cobra.Command{
		Use: "providers", Short: "List the sandbox providers and what they can do", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := read(cmd.Context(), a.client().Providers)
			if err != nil {
				return failed(err, "", "list the providers")
			}
			return a.show(p, func() { a.providersText(p) })
		},
	}
}

func (a *app) providersText(reply rpc.ProvidersReply) {
	t := heading("PROVIDER", "STATE", "VERSION", "PID", "RESTARTS", "SINCE", "CAPABILITIES", "LAST ERROR")
	for _, p := range reply.Providers {
		state := cell{text: p.State, sgr: green}
		if p.State != "ready" {
			state.sgr = yellow
		}
		t.add(p.Kind, state, orDash(p.Version), orDash(p.PID), p.Restarts, a.since(p.Since),
			orDash(strings.Join(p.Capabilities, ",")), p.LastError)
	}
	a.print(t)
}

func (a *app) scanCmd() *cobra.Command {
	return &cobra.Command{
		Use: "scan", Short: "Look through all processes of the host for those that carry berth's marks", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := read(cmd.Context(), a.client().Scan)
			if err != nil {
				return failed(err, "", "scan the host")
			}
			return a.show(s, func() {
				a.print(processTable(s.Processes))
				fmt.Fprintf(a.out, "%d processes read in %.1f ms, %d could not be read\n", s.Scanned, s.TookMillis, s.Unreadable)
			})
		},
	}
}

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show the versions of berthctl and of the daemon", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			daemon, err := read(cmd.Context(), a.client().Version)
			both := struct {
				Client string            `json:"client"`
				Daemon *rpc.VersionReply `json:"daemon,omitempty"`
			}{Client: a.version}
			if err == nil {
				both.Daemon = &daemon
			}
			if err := a.show(both, func() { a.versionText(both.Client, both.Daemon) }); err != nil {
				return err
			}
			return failed(err, "", "get the daemon's version")
		},
	}
}

func (a *app) versionText(own string, d *rpc.VersionReply) {
	fmt.Fprintf(a.out, "berthctl %s, api %d\n", own, rpc.APIVersion)
	if d != nil {
		fmt.Fprintf(a.out, "berthd   %s, api %d, wrapper protocol %d, provider contract %d, %s\n", d.Version, d.API, d.Wrapper, d.Contract, d.Go)
	}
}
