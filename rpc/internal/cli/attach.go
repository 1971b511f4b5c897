package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/client"
)

func (a *app) attachCmd() *cobra.Command {
	var q rpc.AttachQuery
	var keys string
	cmd := a.oneSession("attach", "Join a session's terminal", func(ctx context.Context, id string) error {
		seq, err := parseKeys(keys)
		if err != nil {
			return usagef("--detach-keys: %s", err)
		}
		exit, err := a.attach(ctx, id, q, seq)
		if err != nil || exit == nil {
			return err
		}
		return a.agentEnd(id, rpc.Session{Exit: exit})
	})
	cmd.Long = `Join a session's terminal. Whoever attaches last writes; who wrote before goes on
watching. The session goes on when you detach, when your connection ends, and
when the daemon restarts: then this command finds its way back.`
	cmd.Annotations = map[string]string{agentVerb: "true"}
	cmd.Flags().BoolVar(&q.ReadOnly, "read-only", false, "only watch")
	cmd.Flags().Uint64Var(&q.Since, "since", 0, "replay output from this sequence number on (default: the last screenful)")
	detachKeysFlag(cmd, &keys)
	return cmd
}

func detachKeysFlag(cmd *cobra.Command, keys *string) {
	cmd.Flags().StringVar(keys, "detach-keys", defaultDetachKeys, "keys that detach: characters or ctrl-X, separated by commas; empty = none")
}

// attach joins a terminal until the agent has ended, and returns its exit, or
// until the user has left: nil.
func (a *app) attach(ctx context.Context, id string, q rpc.AttachQuery, keys []byte) (*rpc.Exit, error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	t := &attachment{a: a, id: id, q: q, detacher: detacher{keys: keys}}
	exit, err := t.run(ctx)
	if err == nil && exit == nil {
		fmt.Fprintf(a.err, "berthctl: detached; session %s goes on: berthctl attach %s\n", id, id)
	}
	return exit, failed(err, id, "attach to session %q", id)
}

// attachment is one user at one terminal, over as many connections as it takes.
type attachment struct {
	a        *app
	id       string
	q        rpc.AttachQuery
	detacher detacher

	raw     func() // makes the terminal raw again; nil = it is none
	pending []byte // typed, and not yet taken by a connection
	restart restart
}

// typed is what came from the keyboard.
type typed struct {
	data   []byte
	detach bool
	err    error // io.EOF: there is no more
}

// run returns the agent's exit, or nil when the user has detached. The user's
// terminal is restored on every way out.
func (t *attachment) run(ctx context.Context) (*rpc.Exit, error) {
	ctx, cancel := context.WithCancel(ctx)
	fd := int(t.a.in.Fd())
	if term.IsTerminal(fd) && !t.q.ReadOnly {
		old, err := term.MakeRaw(fd)
		if err != nil {
			cancel()
			return nil, fmt.Errorf("making the terminal raw: %w", err)
		}
		defer term.Restore(fd, old)
		t.raw = func() { term.MakeRaw(fd) }
		t.restart.cr = "\r"
	} else {
		t.detacher.keys = nil
	}
	keyboard := make(chan typed)
	in, err := newInput(ctx, t.a.in)
	if err != nil {
		cancel()
		return nil, err
	}
	defer in.Close()
	done := make(chan struct{})
	go func() { // owned by run, see join
		defer close(done)
		t.readKeyboard(ctx, in, keyboard)
	}()
	defer func() { cancel(); join(done) }() // before in is closed and the terminal restored
	return t.connections(ctx, keyboard)
}

func (t *attachment) readKeyboard(ctx context.Context, in io.Reader, out chan<- typed) {
	for {
		buf := make([]byte, 4096)
		n, err := in.Read(buf)
		k := typed{err: err}
		if err == nil {
			k.data, k.detach = t.detacher.feed(buf[:n])
		}
		select {
		case out <- k:
		case <-ctx.Done():
			return
		}
		if k.err != nil || k.detach {
			return
		}
	}
}

// errDetached ends an attachment on the user's wish.
var errDetached = errors.New("detached")

// connections attaches again and again until the agent or the user ends.
func (t *attachment) connections(ctx context.Context, keyboard <-chan typed) (*rpc.Exit, error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGWINCH, syscall.SIGCONT)
	defer signal.Stop(signals)
	c := t.a.client()
	attached := false
	for {
		t.q.Rows, t.q.Cols = t.size()
		conn, err := c.Attach(ctx, t.id, t.q)
		if attached && rpc.CodeOf(err) == rpc.CodeNotRunning {
			return t.ended(ctx, c)
		}
		if err == nil {
			attached = true
			var exit *rpc.Exit
			exit, err = t.converse(ctx, conn, keyboard, signals)
			conn.Close()
			if err == nil || errors.Is(err, errDetached) {
				return exit, nil
			}
		}
		switch {
		case t.a.again(ctx, &t.restart, err):
		case ctx.Err() != nil: // the user has left while the daemon was away
			return nil, nil
		default:
			return nil, err
		}
	}
}

// ended asks for the exit of an agent that ended while the daemon was away.
func (t *attachment) ended(ctx context.Context, c *client.Client) (*rpc.Exit, error) {
	s, err := read(ctx, func(ctx context.Context) (rpc.Session, error) { return c.Get(ctx, t.id) })
	if err != nil {
		return nil, err
	}
	if s.Exit == nil {
		return &rpc.Exit{Kind: "unknown", Unknown: "no exit record"}, nil
	}
	return s.Exit, nil
}

// converse runs one connection. No error and no exit cannot be: it ends with
// the agent's exit, errDetached, or what cut the connection.
func (t *attachment) converse(ctx context.Context, conn *client.Terminal, keyboard <-chan typed, signals <-chan os.Signal) (*rpc.Exit, error) {
	frames := make(chan received)
	rctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go receive(rctx, conn, frames) // owned by converse; the end of conn and of rctx end it
	if err := t.flush(conn); err != nil {
		return nil, err
	}
	for {
		select {
		case r := <-frames:
			if r.err != nil {
				return nil, t.lost(r.err)
			}
			if exit, err := t.show(r.frame); exit != nil || err != nil {
				return exit, err
			}
		case k, open := <-keyboard:
			if !open || errors.Is(k.err, io.EOF) {
				keyboard = nil // the agent may still have something to say
				continue
			}
			if k.err != nil {
				return nil, k.err
			}
			t.pending = append(t.pending, k.data...)
			if err := t.flush(conn); err != nil {
				return nil, err
			}
			if k.detach {
				return nil, errDetached
			}
		case s := <-signals:
			if s == syscall.SIGCONT && t.raw != nil {
				t.raw() // whoever stopped us has put the terminal back
			}
			if rows, cols := t.size(); rows > 0 && cols > 0 && !t.q.ReadOnly {
				if err := conn.Send(rpc.ResizeFrame(rpc.Size{Rows: rows, Cols: cols})); err != nil {
					return nil, t.lost(err)
				}
			}
		case <-ctx.Done():
			return nil, errDetached
		}
	}
}

type received struct {
	frame rpc.TerminalFrame
	err   error
}

func receive(ctx context.Context, conn *client.Terminal, out chan<- received) {
	for {
		f, err := conn.Recv()
		select {
		case out <- received{f, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// flush sends what was typed. It stays pending when the connection does not
// take it: nobody has read it then.
func (t *attachment) flush(conn *client.Terminal) error {
	if len(t.pending) == 0 {
		return nil
	}
	if t.q.ReadOnly {
		t.pending = nil
		return nil
	}
	if err := conn.Send(rpc.TerminalFrame{Kind: rpc.TerminalData, Data: t.pending}); err != nil {
		return t.lost(err)
	}
	t.pending = nil
	return nil
}

// lost gives the end of a connection the shape that again understands.
func (t *attachment) lost(err error) error {
	if errors.Is(err, io.EOF) {
		err = errors.New("the connection ended")
	}
	return &client.UnreachableError{Socket: t.a.socket, Sent: true, Err: err}
}

// show handles one frame of the daemon.
func (t *attachment) show(f rpc.TerminalFrame) (*rpc.Exit, error) {
	switch f.Kind {
	case rpc.TerminalData:
		t.restart.alive()
		if f.Seq > 0 {
			t.q.Since = f.Seq + 1
		}
		if _, err := t.a.out.Write(f.Data); err != nil {
			return nil, fmt.Errorf("writing output: %w", err)
		}
	case rpc.TerminalNotice:
		fmt.Fprintf(t.a.err, "%sberthctl: %s%s\n", t.restart.cr, printable(string(f.Data)), t.restart.cr)
	case rpc.TerminalExit:
		x := new(rpc.Exit)
		if err := json.Unmarshal(f.Data, x); err != nil {
			return nil, fmt.Errorf("decoding the exit of the agent: %w", err)
		}
		return x, nil
	case rpc.TerminalError:
		return nil, rpc.ParseTerminalError(f.Data)
	}
	return nil, nil
}

// size is the user's terminal's; 0, 0 when the output is none.
func (t *attachment) size() (rows, cols uint16) {
	f, ok := t.a.out.(*os.File)
	if !ok {
		return 0, 0
	}
	w, h, err := term.GetSize(int(f.Fd()))
	if err != nil || w <= 0 || h <= 0 || w > 0xffff || h > 0xffff {
		return 0, 0
	}
	return uint16(h), uint16(w)
}
