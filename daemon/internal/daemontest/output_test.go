package daemontest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/client"
	"golang.org/x/sys/unix"
)

// send sends input, again while the wrapper cannot be reached.
func (h *Host) send(t *testing.T, id string, req rpc.SendRequest) {
	t.Helper()
	h.Until("input is taken", patience, func() error {
		_, err := h.Client.Send(bounded(t), id, req)
		if err != nil && rpc.CodeOf(err) != rpc.CodeUnreachable {
			t.Fatalf("sending to %s: %v", id, err)
		}
		return err
	})
}

// TestSendOnce: input under a message id is written once, however often it is
// sent, across restarts of the daemon too; without an id it is written each
// time; end of input ends the agent. case G8, J6
func TestSendOnce(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	h.mustStart(t, "s", shell("cat; echo end"))
	for round := range 3 {
		for i := range 10 {
			h.send(t, "s", rpc.SendRequest{Message: fmt.Sprintf("m%d", i), Data: fmt.Appendf(nil, "message %d\n", i)})
		}
		h.send(t, "s", rpc.SendRequest{Data: fmt.Appendf(nil, "round %d\n", round)})
		h.Kill()
		h.Start()
	}
	h.send(t, "s", rpc.SendRequest{Message: "eof", EOF: true})
	if s := h.untilVacant(t, "s"); s.Exit.Kind != "code" || s.Exit.Code != 0 {
		t.Errorf("exit %+v", s.Exit)
	}
	want := ""
	for i := range 10 {
		want += fmt.Sprintf("message %d\n", i)
	}
	want += "round 0\nround 1\nround 2\nend\n"
	if out := h.output(t, "s", 0); out != want {
		t.Errorf("the agent has read %q, want %q", out, want)
	}
	_, err := h.Client.Send(bounded(t), "s", rpc.SendRequest{Data: []byte("x")})
	refused(t, err, rpc.CodeNotRunning)
}

// TestInputOfDeafAgent: an agent that does not read blocks nobody: what is more
// than the wrapper keeps for it is refused. case T60, C11
func TestInputOfDeafAgent(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	h.mustStart(t, "deaf", shell("exec sleep 1000"))
	data := make([]byte, 256<<10)
	var err error
	for i := 0; err == nil; i++ {
		if i > 1000 {
			t.Fatal("the wrapper takes everything")
		}
		_, err = h.Client.Send(bounded(t), "deaf", rpc.SendRequest{Data: data})
	}
	if e := refused(t, err, rpc.CodeUnreachable, rpc.CodeBusy); !e.Retryable {
		t.Errorf("%+v", e)
	}
	h.mustStop(t, "deaf")
}

// TestFollowAcrossRestarts: a client that follows a session's output and its
// events and comes back with the last number it has, sees each once and in
// order, whatever happens to the daemon meanwhile. case T60, G16, A23, J1
func TestFollowAcrossRestarts(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	const lines = 3000
	h.mustStart(t, "s", shell(fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); [ $((i%%100)) = 0 ] && sleep 0.05; done", lines)))
	ctx := bounded(t)
	restarts := make(chan struct{}) // one for every restart that is wanted
	followed := make(chan error, 1)
	var text strings.Builder
	go func() { // ends with the output, or ctx
		defer close(restarts)
		followed <- follow(ctx, h.Client, &text, restarts)
	}()
	for range restarts {
		h.Kill()
		h.Start()
	}
	if err := <-followed; err != nil {
		t.Fatal(err)
	}
	for i := range lines {
		line, rest, _ := strings.Cut(text.String(), "\n")
		if want := fmt.Sprintf("line %d", i); line != want {
			t.Fatalf("%q where %q belongs", line, want)
		}
		text.Reset()
		text.WriteString(rest)
	}
	if text.Len() > 0 {
		t.Errorf("something behind the end: %q", text.String())
	}
	h.untilVacant(t, "s")
	h.eventsAddUp(t, "s")
}

// follow collects the output of session s until it ends, and asks for a restart
// after each fifth of it.
func follow(ctx context.Context, c *client.Client, text *strings.Builder, restarts chan<- struct{}) error {
	var last, asked uint64
	for ctx.Err() == nil {
		ended := true
		for r, err := range c.Logs(ctx, "s", rpc.LogsQuery{Since: last + 1, Follow: true}) {
			if err != nil {
				var gone *client.UnreachableError
				var e *rpc.Error
				if !errors.As(err, &gone) && !(errors.As(err, &e) && e.Retryable) {
					return err
				}
				ended = false
				break
			}
			switch {
			case r.Seq != last+1:
				return fmt.Errorf("record %d after %d", r.Seq, last)
			case r.Stream == "stdout":
				text.Write(r.Data)
			case r.Stream == "gap":
				return fmt.Errorf("a gap: %s", r.Data)
			}
			if last = r.Seq; asked < 4 && uint64(strings.Count(text.String(), "\n")) > (asked+1)*600 {
				asked++
				restarts <- struct{}{}
			}
		}
		if ended {
			return nil
		}
		time.Sleep(time.Millisecond) // until the daemon is back
	}
	return ctx.Err()
}

// eventsAddUp compares the events read in pieces with those read at once.
func (h *Host) eventsAddUp(t *testing.T, id string) {
	t.Helper()
	all := h.eventsOf(t, id)
	if len(all) < 5 {
		t.Fatalf("%d events", len(all))
	}
	var last uint64
	for i, e := range all {
		if e.Seq <= last {
			t.Errorf("event %d after %d", e.Seq, last)
		}
		last = e.Seq
		var rest []rpc.Event
		for e, err := range h.Client.Events(bounded(t), rpc.EventsQuery{Session: id, After: e.Seq}) {
			if err != nil {
				t.Fatal(err)
			}
			rest = append(rest, e)
		}
		if len(rest) != len(all)-i-1 {
			t.Errorf("%d events after number %d, want %d", len(rest), e.Seq, len(all)-i-1)
		}
	}
	first, end := all[0], all[len(all)-1]
	if first.Kind != "allocate" || end.State != "vacant" {
		t.Errorf("from %+v to %+v", first, end)
	}
}

// TestManyLines: an agent that prints much while nobody reads is not held up,
// and what was dropped is said. case T60, G10
func TestManyLines(t *testing.T) {
	t.Parallel()
	h := running(t, "[wrapper]\nspool_file_bytes = 65536\nspool_files = 3\n")
	h.mustStart(t, "s", shell("i=0; while [ $i -lt 20000 ]; do echo this is line number $i of many; i=$((i+1)); done"))
	h.Kill()
	h.Start()
	if s := h.untilVacant(t, "s"); s.Exit.Kind != "code" || s.Exit.Code != 0 {
		t.Errorf("exit %+v", s.Exit)
	}
	var gaps int
	var last uint64
	var text strings.Builder
	for r, err := range h.Client.Logs(bounded(t), "s", rpc.LogsQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Stream == "gap" {
			gaps++
		} else if last != 0 && r.Seq != last+1 {
			t.Errorf("record %d after %d and no gap", r.Seq, last)
		}
		last = r.Seq
		if r.Stream == "stdout" {
			text.Write(r.Data)
		}
	}
	if gaps == 0 || !strings.HasSuffix(text.String(), "line number 19999 of many\n") || text.Len() > 4*65536 {
		t.Errorf("%d gaps, %d bytes, the end is %.100q", gaps, text.Len(), text.String()[max(0, text.Len()-100):])
	}
}

// TestExits: the exit is that of wait, or unknown with a reason, never 0 by
// default; berthctl run passes it on. case G8, D8
func TestExits(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	for script, want := range map[string]rpc.Exit{
		"exit 0":        {Kind: "code"},
		"exit 3":        {Kind: "code", Code: 3},
		"exit 255":      {Kind: "code", Code: 255},
		"kill -TERM $$": {Kind: "signal", Signal: 15},
		"kill -KILL $$": {Kind: "signal", Signal: 9},
		"kill -SEGV $$": {Kind: "signal", Signal: 11},
	} {
		id := strings.NewReplacer(" ", "", "-", "", "$", "").Replace(script)
		h.mustStart(t, id, shell(script))
		s := h.untilVacant(t, id)
		if s.Exit.Kind != want.Kind || s.Exit.Code != want.Code || s.Exit.Signal != want.Signal || s.Exit.Unknown != "" {
			t.Errorf("%s: exit %+v", script, s.Exit)
		}
		code := want.Code
		if want.Signal != 0 {
			code = 128 + want.Signal
		}
		if got, out := h.ctl(t, "run", "--session", "ctl"+id, "--", "sh", "-c", script); got != code {
			t.Errorf("berthctl run %q: code %d, %s", script, got, out)
		}
	}
	// Who asked for the end, and why, is part of it.
	h.mustStart(t, "asked", shell("exec sleep 1000"))
	if s := h.mustStop(t, "asked"); s.Exit.Reason != "operator" || s.Exit.By == "" || s.Exit.Kind != "signal" || s.Exit.Signal != 15 {
		t.Errorf("asked: exit %+v", s.Exit)
	}
	// A graceful end is the agent's own.
	h.mustStart(t, "graceful", shell("trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"))
	h.untilOutput(t, "graceful", "ready")
	if s := h.mustStop(t, "graceful"); s.Exit.Reason != "operator" || s.Exit.Kind != "code" || s.Exit.Code != 5 {
		t.Errorf("graceful: exit %+v", s.Exit)
	}
	// Nobody saw this one.
	lost := h.mustStart(t, "lost", shell("exec sleep 1000"))
	hold(t, lost.PID).signal(t, unix.SIGKILL)
	if s := h.untilVacant(t, "lost"); s.Exit.Kind != "unknown" || s.Exit.Unknown == "" {
		t.Errorf("lost: exit %+v", s.Exit)
	}
}

// TestChildKeepsOutput: the agent ends and a child of it keeps its output open;
// the exit comes all the same. case T63, G11, T38
func TestChildKeepsOutput(t *testing.T) {
	t.Parallel()
	h := running(t, "[wrapper]\ndrain_timeout = \"200ms\"\n")
	h.mustStart(t, "s", shell("sleep 1000 & echo ok; exit 4"))
	if s := h.untilVacant(t, "s"); s.Exit.Kind != "code" || s.Exit.Code != 4 {
		t.Errorf("exit %+v", s.Exit)
	}
	if out := h.output(t, "s", 0); out != "ok\n" {
		t.Errorf("output %q", out)
	}
}

// TestBytes: what the agent writes arrives as it was, bytes that are no text,
// and characters that are cut anywhere. case G1, G2
func TestBytes(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	var want []byte
	for i := range 256 {
		want = append(want, byte(i), byte(255-i))
	}
	want = append(want, strings.Repeat("🦀é€", 1000)...)
	h.mustStart(t, "s", shell("cat"))
	for i := 0; i < len(want); i += 97 {
		h.send(t, "s", rpc.SendRequest{Data: want[i:min(i+97, len(want))]})
	}
	h.send(t, "s", rpc.SendRequest{EOF: true})
	h.untilVacant(t, "s")
	if got := h.output(t, "s", 0); got != string(want) {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
}
