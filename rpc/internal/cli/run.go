package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/client"
)

// runFlags are run's own.
type runFlags struct {
	spec        specFlags
	session     string
	remove      bool
	discard     bool
	stdin       bool
	onInterrupt string
	detachKeys  string
}

func (a *app) runCmd() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Start a session, show its output and exit as its agent did",
		Long: `Start a session, show its output and exit as its agent did. The output goes on
where it was when the daemon restarts in between. Without --stdin the agent's
standard input is empty. With --terminal this is like start and attach.

The first interrupt (Ctrl-C, TERM) stops the session, or with
--on-interrupt=detach leaves it running; a second one leaves at once. A hang-up
of your terminal always leaves it running. What is left running is found with
"berthctl list" and shown with "berthctl logs -f SESSION".`,
		Example: `  berthctl run -- sh -c 'echo hello; exit 3'
  berthctl run --session fix-1 -w ~/src/app --limit-memory 4GiB -- codex exec "fix it"
  git diff | berthctl run --stdin --rm -- claude -p "review this"
  berthctl run -t -- opencode`,
		Args:        cobra.ArbitraryArgs,
		Annotations: map[string]string{agentVerb: "true"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.run(cmd.Context(), &f, args)
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows the command is its own
	f.spec.register(cmd)
	cmd.Flags().StringVarP(&f.session, "session", "s", "", "the session's id (default: made from the command's name)")
	cmd.Flags().BoolVar(&f.remove, "rm", false, "delete the session when its agent has ended")
	cmd.Flags().BoolVar(&f.discard, "discard", false, "with --rm: lose work in the workspace that is not committed and pushed")
	cmd.Flags().BoolVarP(&f.stdin, "stdin", "i", false, "give standard input to the agent")
	cmd.Flags().StringVar(&f.onInterrupt, "on-interrupt", "stop", "what the first interrupt does: stop or detach")
	detachKeysFlag(cmd, &f.detachKeys)
	cmd.RegisterFlagCompletionFunc("session", a.completeSession)
	cmd.RegisterFlagCompletionFunc("on-interrupt", cobra.FixedCompletions([]string{"stop", "detach"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) run(ctx context.Context, f *runFlags, command []string) error {
	keys, err := parseKeys(f.detachKeys)
	switch {
	case err != nil:
		return usagef("--detach-keys: %s", err)
	case f.onInterrupt != "stop" && f.onInterrupt != "detach":
		return usagef("--on-interrupt %q is neither stop nor detach", f.onInterrupt)
	case len(command) == 0 && f.session == "":
		return usagef("run needs a command after \"--\", or the --session of one that has one stored")
	case f.discard && !f.remove:
		return usagef("--discard is for --rm")
	case f.stdin && f.spec.terminal:
		return usagef("--stdin is not for --terminal, which is given what you type")
	}
	req, err := f.spec.request(command)
	if err != nil {
		return err
	}
	r := &running{a: a, f: f, id: f.session, req: req, keys: keys}
	if r.id == "" {
		r.id = madeID(command[0])
		fmt.Fprintf(a.err, "berthctl: session %s\n", r.id)
	}
	return r.run(ctx)
}

// madeID makes a session id from a program's name.
func madeID(program string) string {
	name := strings.Map(func(c rune) rune {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", c) {
			return c
		}
		return -1
	}, path.Base(program))
	name = strings.TrimLeft(name[:min(len(name), 32)], "_-")
	if name == "" {
		name = "run"
	}
	return name + "-" + randomHex(4)
}

// running is one session in the foreground.
type running struct {
	a     *app
	f     *runFlags
	id    string
	req   rpc.StartRequest
	keys  []byte
	reply rpc.StartReply
}

// run starts the session, follows it and cleans up after it.
func (r *running) run(ctx context.Context) error {
	// From here on an interrupt is a wish about the session, not about us.
	ctx = context.WithoutCancel(ctx)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if r.f.spec.terminal && r.req.Spec.Rows == 0 && r.req.Spec.Cols == 0 {
		r.req.Spec.Rows, r.req.Spec.Cols = (&attachment{a: r.a}).size()
	}
	fresh := r.fresh(ctx)
	if err := r.start(ctx, signals); err != nil {
		return err
	}
	var end rpc.Session
	if r.f.spec.terminal {
		exit, err := r.a.attach(ctx, r.id, rpc.AttachQuery{Since: 1}, r.keys)
		if err != nil || exit == nil {
			return err // it goes on
		}
		end.Exit = exit
	} else {
		var err error
		if end, err = r.foreground(ctx, signals, fresh); err != nil {
			return err
		}
	}
	err := r.ended(end)
	if !r.f.remove {
		return err
	}
	if derr := r.delete(ctx); derr != nil {
		if err == nil {
			return derr
		}
		fmt.Fprintf(r.a.err, "berthctl: %s\n", message(derr))
	}
	return err
}

// fresh tells whether nobody else feeds the session: it is vacant or new. An
// agent that already runs keeps its input.
func (r *running) fresh(ctx context.Context) bool {
	if r.f.session == "" {
		return true
	}
	s, err := read(ctx, func(ctx context.Context) (rpc.Session, error) { return r.a.client().Get(ctx, r.id) })
	if err == nil && s.State != "vacant" {
		fmt.Fprintf(r.a.err, "berthctl: session %s runs already; this is its output\n", r.id)
		return false
	}
	return true
}

// start starts the session. The key makes it safe to repeat.
func (r *running) start(ctx context.Context, signals <-chan os.Signal) error {
	sctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	started := make(chan error, 1)
	go func() { // ends with sctx; its result is taken below
		started <- r.a.retry(sctx, func() (err error) {
			r.reply, err = r.a.client().Start(sctx, r.id, r.req)
			return err
		})
	}()
	select {
	case err := <-started:
		return failed(err, r.id, "start session %q", r.id)
	case s := <-signals:
		cancel()
		<-started
		if r.leave(s) {
			return r.detached()
		}
		fmt.Fprintf(r.a.err, "berthctl: stopping session %s while it starts\n", r.id)
		if err := r.stop(ctx); err != nil {
			return err
		}
		return &agentExit{exitInterrupted}
	}
}

// foreground shows the output until the agent has ended.
func (r *running) foreground(ctx context.Context, signals <-chan os.Signal, fresh bool) (rpc.Session, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan outcome, 1)
	go func() { ended <- r.follow(ctx) }() // ends with ctx or the session
	fed := make(chan struct{})
	go func() { // ends with ctx, the session or the input, see join
		defer close(fed)
		if fresh || r.f.stdin {
			r.feed(ctx)
		}
	}()
	defer func() { cancel(); join(fed) }()
	stopping := false
	for {
		select {
		case o := <-ended:
			return o.session, o.err
		case s := <-signals:
			if stopping || r.leave(s) {
				return rpc.Session{}, r.detached()
			}
			stopping = true
			fmt.Fprintf(r.a.err, "berthctl: stopping session %s; interrupt again to leave at once\n", r.id)
			if err := r.stop(ctx); err != nil {
				return rpc.Session{}, err
			}
		}
	}
}

type outcome struct {
	session rpc.Session
	err     error
}

// follow shows the output of this generation and then asks how it ended.
func (r *running) follow(ctx context.Context) outcome {
	p := logPrinter{a: r.a}
	q := rpc.LogsQuery{Generation: r.reply.Generation, Follow: true}
	if err := r.a.followLogs(ctx, r.id, &q, p.print); err != nil {
		return outcome{err: failed(err, r.id, "show the output of session %q", r.id)}
	}
	reply, err := change(ctx, r.a, true, func(ctx context.Context) (rpc.WaitReply, error) { return r.a.client().Wait(ctx, r.id) })
	return outcome{reply.Session, failed(err, r.id, "wait for session %q", r.id)}
}

// feed gives the agent standard input, or its end at once.
func (r *running) feed(ctx context.Context) {
	var err error
	if r.f.stdin {
		var in *input
		if in, err = newInput(ctx, r.a.in); err == nil {
			defer in.Close()
			err = r.a.sendAll(ctx, r.id, in, true)
		}
	} else {
		err = r.a.sendOne(ctx, r.id, rpc.SendRequest{EOF: true})
	}
	var ue *client.UnreachableError
	switch code := rpc.CodeOf(err); {
	case err == nil, ctx.Err() != nil, code == rpc.CodeNotRunning, code == rpc.CodeCleanupPending:
	case !r.f.stdin && (errors.As(err, &ue) || code == rpc.CodeUnreachable): // how it ends is told by its output
	default:
		fmt.Fprintf(r.a.err, "berthctl: %s\n", message(failed(err, r.id, "give input to session %q", r.id)))
	}
}

// leave tells whether the first signal s leaves the session running.
func (r *running) leave(s os.Signal) bool {
	return s == syscall.SIGHUP || r.f.onInterrupt == "detach"
}

func (r *running) detached() error {
	fmt.Fprintf(r.a.err, "berthctl: left; session %s goes on: berthctl logs -f %s\n", r.id, r.id)
	return &agentExit{exitInterrupted}
}

func (r *running) stop(ctx context.Context) error {
	req := rpc.StopRequest{Key: "berthctl-" + randomHex(16), Why: "interrupt of berthctl run"}
	_, err := change(ctx, r.a, false, func(ctx context.Context) (rpc.StopReply, error) { return r.a.client().Stop(ctx, r.id, req) })
	return failed(err, r.id, "stop session %q", r.id)
}

func (r *running) delete(ctx context.Context) error {
	req := rpc.DeleteRequest{Key: "berthctl-" + randomHex(16), Discard: r.f.discard, Wait: true, Why: "berthctl run --rm"}
	reply, err := change(ctx, r.a, true, func(ctx context.Context) (rpc.DeleteReply, error) { return r.a.client().Delete(ctx, r.id, req) })
	if err == nil && reply.Tombstone == nil {
		err = fmt.Errorf("the deletion is held up%s", prefixed(": ", heldUp(reply.Deleting)))
	}
	return failed(err, r.id, "delete session %q", r.id)
}

// ended exits as the agent of this generation did.
func (r *running) ended(s rpc.Session) error {
	if s.Exit != nil && s.Exit.Generation != r.reply.Generation {
		return failed(fmt.Errorf("generation %d has taken the place of %d", s.Exit.Generation, r.reply.Generation),
			r.id, "tell the exit code of session %q", r.id)
	}
	if s.Exit != nil && s.Exit.Kind == "oom" {
		fmt.Fprintf(r.a.err, "berthctl: the agent was killed for lack of memory\n")
	}
	return r.a.agentEnd(r.id, s)
}
