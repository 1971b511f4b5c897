// Package cli is berthctl: one verb per file, on top of the typed client. It
// owns words and shapes for people (tables, hints, exit codes) and what is
// read directly from a state directory when no daemon answers. It refuses to
// know how the daemon decides anything.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berthd/berth/rpc/client"
)

const (
	// defaultSocket is where berthd listens unless it is told otherwise.
	defaultSocket = "/run/berth/berth.sock"
	// defaultStateDir is where berthd keeps its state unless it is told otherwise.
	defaultStateDir = "/var/lib/berth"
	// socketVariable overrides defaultSocket.
	socketVariable = "BERTH_SOCKET"

	// readTimeout bounds calls that read and calls that answer at once.
	readTimeout = 30 * time.Second
	// startTimeout bounds a start: the daemon's own bound on an attempt is 12
	// minutes, and 60 seconds more.
	startTimeout = 15 * time.Minute
	// completeTimeout bounds the look-up of ids for shell completion.
	completeTimeout = 500 * time.Millisecond
)

// app is one run of berthctl.
type app struct {
	version  string
	socket   string
	stateDir string
	output   string
	noColor  bool

	in       *os.File
	out, err io.Writer
	// tty tells whether out is a terminal.
	tty bool
	now func() time.Time
	// ran is set once a verb's own work has begun: errors before are usage errors.
	ran bool
	// agentVerb is set for verbs whose exit code is the agent's.
	agentVerb bool
	// help is the command that explains the verb.
	help string
}

// Main runs berthctl, which is of that version, with os.Args and returns its
// exit code.
func Main(version string) int {
	a := &app{version: version, in: os.Stdin, out: os.Stdout, err: os.Stderr, tty: term.IsTerminal(int(os.Stdout.Fd())), now: time.Now}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return a.exit(a.root().ExecuteContextC(ctx))
}

func (a *app) root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "berthctl",
		Short: "Control berth: sessions of AI coding agents on this host",
		Long: `berthctl controls berthd, the daemon that gives every agent session on this
host one workspace, one sandbox and at most one live process.

A session has an id that you choose. "berthctl run" starts one and shows its
output; "berthctl start" starts one and returns.

With -o json, replies are as the daemon gave them (streams one object a line),
and errors are one object on standard error: {"error", "exit", "try"}.

` + exitTable(),
		Example: `  berthctl run -- claude -p "fix the failing test"
  berthctl start fix-1 --workspace ~/src/app -- codex exec "fix it"
  berthctl logs -f fix-1
  berthctl explain fix-1
  berthctl stop fix-1 --wait && berthctl delete fix-1`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return a.begin(cmd)
		},
	}
	cmd.SetOut(a.out)
	cmd.SetErr(a.err)
	f := cmd.PersistentFlags()
	f.StringVar(&a.socket, "socket", "", "the daemon's socket (default $"+socketVariable+" or "+defaultSocket+")")
	f.StringVarP(&a.output, "output", "o", "table", "output format: table or json")
	f.BoolVar(&a.noColor, "no-color", false, "no colours (also with NO_COLOR set, or when the output is no terminal)")
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.AddGroup(
		&cobra.Group{ID: "session", Title: "Sessions:"},
		&cobra.Group{ID: "look", Title: "Looking:"},
		&cobra.Group{ID: "host", Title: "The host and the daemon:"},
	)
	a.add(cmd, "session", a.runCmd(), a.startCmd(), a.attachCmd(), a.sendCmd(), a.stopCmd(), a.deleteCmd())
	a.add(cmd, "look", a.listCmd(), a.getCmd(), a.explainCmd(), a.logsCmd(), a.eventsCmd(), a.waitCmd())
	a.add(cmd, "host", a.statusCmd(), a.capacityCmd(), a.gcCmd(), a.providersCmd(), a.scanCmd(), a.drainCmd(), a.undrainCmd(), a.leaseCmd(), a.opCmd(), a.journalCmd(), a.versionCmd())
	return cmd
}

func (a *app) add(root *cobra.Command, group string, cmds ...*cobra.Command) {
	for _, c := range cmds {
		c.GroupID = group
		root.AddCommand(c)
	}
}

// begin checks the global flags, once the verb's own are parsed.
func (a *app) begin(cmd *cobra.Command) error {
	if a.output != "table" && a.output != "json" {
		return fmt.Errorf("output format %q is neither table nor json", a.output)
	}
	if a.socket == "" {
		a.socket = os.Getenv(socketVariable)
	}
	if a.socket == "" {
		a.socket = defaultSocket
	}
	a.ran = true
	return nil
}

func (a *app) client() *client.Client { return client.New(a.socket) }

// oneSession makes a command that takes one session id and completes it.
func (a *app) oneSession(verb, short string, run func(ctx context.Context, id string) error) *cobra.Command {
	return &cobra.Command{
		Use:               verb + " SESSION",
		Short:             short,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			return run(cmd.Context(), args[0])
		},
	}
}

// completeSession completes the first argument with the daemon's session ids.
func (a *app) completeSession(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || a.begin(cmd) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	reply, err := a.client().List(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var ids []string
	for _, s := range reply.Sessions {
		ids = append(ids, s.Session+"\t"+s.State)
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// read calls f with the bound of a call that answers at once.
func read[R any](ctx context.Context, f func(context.Context) (R, error)) (R, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readTimeout, errSlow)
	defer cancel()
	return f(ctx)
}

var errSlow = errors.New("no answer for " + readTimeout.String())
