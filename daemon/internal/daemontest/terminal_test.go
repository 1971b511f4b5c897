package daemontest

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/client"
)

// screen reads a terminal until what it shows contains want.
func screen(t *testing.T, term *client.Terminal, seen *strings.Builder, want string) (last uint64) {
	t.Helper()
	for !strings.Contains(seen.String(), want) {
		f, err := term.Recv()
		if err != nil {
			t.Fatalf("waiting for %q: %v; the screen is %q", want, err, seen.String())
		}
		if f.Kind == rpc.TerminalData {
			seen.Write(f.Data)
			last = f.Seq
		}
	}
	return last
}

func (h *Host) attach(t *testing.T, id string, q rpc.AttachQuery) *client.Terminal {
	t.Helper()
	var term *client.Terminal
	h.Until("attaching", patience, func() (err error) {
		term, err = h.Client.Attach(t.Context(), id, q)
		return err
	})
	t.Cleanup(func() { term.Close() })
	return term
}

func keys(t *testing.T, term *client.Terminal, text string) {
	t.Helper()
	if err := term.Send(rpc.TerminalFrame{Kind: rpc.TerminalData, Data: []byte(text)}); err != nil {
		t.Fatal(err)
	}
}

// echoing is a session whose agent tells what is typed and how large its
// terminal is.
func (h *Host) echoing(t *testing.T) rpc.StartReply {
	t.Helper()
	spec := shell(`echo "size $(stty size)"
		while :; do read line || continue; case $line in quit) exit 6;; size) echo "is $(stty size)";; *) echo "got <$line>";; esac; done`)
	spec.Terminal, spec.Rows, spec.Cols = true, 33, 111
	return h.mustStart(t, "s", spec)
}

// TestTerminal: the size is part of the start, a resize arrives, and a second
// client takes the keyboard: the first is told and only watches. case G4, G7
func TestTerminal(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	h.echoing(t)
	var first, second strings.Builder
	a := h.attach(t, "s", rpc.AttachQuery{})
	screen(t, a, &first, "size 33 111")
	keys(t, a, "one\n")
	screen(t, a, &first, "got <one>")
	if err := a.Send(rpc.ResizeFrame(rpc.Size{Rows: 44, Cols: 122})); err != nil {
		t.Fatal(err)
	}
	keys(t, a, "size\n")
	screen(t, a, &first, "is 44 122")

	b := h.attach(t, "s", rpc.AttachQuery{Since: 1})
	keys(t, b, "two\n")
	screen(t, b, &second, "got <two>")
	for told := false; !told; {
		f, err := a.Recv()
		if err != nil {
			t.Fatal(err)
		}
		first.Write(f.Data)
		told = f.Kind == rpc.TerminalNotice && strings.Contains(string(f.Data), "keyboard")
	}
	keys(t, a, "ghost\n")
	keys(t, b, "three\n")
	screen(t, a, &first, "got <three>") // it still watches
	screen(t, b, &second, "got <three>")
	if strings.Contains(second.String(), "ghost") {
		t.Errorf("the first client still types: %q", second.String())
	}
}

// TestTerminalSurvives: a terminal outlives the daemon and its clients, goes on
// at a number, and ends with the exit. case G6, A3, A23
func TestTerminalSurvives(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	started := h.echoing(t)
	var before, after strings.Builder
	a := h.attach(t, "s", rpc.AttachQuery{})
	keys(t, a, "three\n")
	last := screen(t, a, &before, "got <three>")
	h.Kill()
	h.Start()
	h.untilAdopted(t, started)
	b := h.attach(t, "s", rpc.AttachQuery{Since: last + 1})
	keys(t, b, "four\n")
	screen(t, b, &after, "got <four>")
	if strings.Contains(after.String(), "three") {
		t.Errorf("what was seen before comes again: %q", after.String())
	}
	b.Close() // detaching ends nothing
	h.untilAdopted(t, started)
	c := h.attach(t, "s", rpc.AttachQuery{Since: last + 1})
	keys(t, c, "quit\n")
	var exit rpc.Exit
	if err := json.Unmarshal(exitFrame(t, c), &exit); err != nil || exit.Kind != "code" || exit.Code != 6 {
		t.Errorf("exit %+v, %v", exit, err)
	}
	if _, err := c.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the exit: %v", err)
	}
	h.untilVacant(t, "s")
	_, err := h.Client.Attach(bounded(t), "s", rpc.AttachQuery{})
	refused(t, err, rpc.CodeNotRunning)
	h.mustStart(t, "pipes", shell("exec sleep 1000"))
	_, err = h.Client.Attach(bounded(t), "pipes", rpc.AttachQuery{})
	refused(t, err, rpc.CodeCapability)
}

// exitFrame reads a terminal to its exit.
func exitFrame(t *testing.T, term *client.Terminal) []byte {
	t.Helper()
	for {
		f, err := term.Recv()
		if err != nil {
			t.Fatalf("the terminal ended without an exit: %v", err)
		}
		if f.Kind == rpc.TerminalExit {
			return f.Data
		}
	}
}
