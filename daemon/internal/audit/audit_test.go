package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/statefs/record"
	"github.com/berthd/berth/systemd/journald/catalog"
)

// aboutDaemon are messages that are no events of a session.
var aboutDaemon = []string{
	"gap", "daemon_started", "daemon_ended", "journal_failed", "provider_failed", "log_dropped", "agent_dropped",
}

// Every kind of durable event has its message, and every message its kind.
func TestEveryEventHasItsMessage(t *testing.T) {
	t.Parallel()
	kinds := slices.Concat(aboutDaemon, written(t))
	for _, k := range lease.EventKinds() {
		kinds = append(kinds, k.String())
	}
	for _, k := range kinds {
		if _, ok := catalog.Of(k); !ok {
			t.Errorf("the event %q has no message in systemd/journald/catalog", k)
		}
	}
	for _, m := range catalog.Messages() {
		if !slices.Contains(kinds, m.Event) {
			t.Errorf("nothing makes the event %q of the catalog", m.Event)
		}
	}
}

// written are the events that the engine names itself: put(d, "NAME", …) and
// Event{Kind: "NAME"}.
func written(t *testing.T) (found []string) {
	t.Helper()
	names, err := filepath.Glob("../engine/*.go")
	if err != nil || len(names) == 0 {
		t.Fatalf("no sources of the engine: %v", err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := eventIn(n).(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, _ := strconv.Unquote(lit.Value)
				found = append(found, text)
			}
			return true
		})
	}
	for _, must := range []string{"unreadable", "delete_requested", "deleted", "released"} {
		if !slices.Contains(found, must) {
			t.Errorf("the sources no longer show the event %q: this test is blind", must)
		}
	}
	return found
}

// eventIn is where a node names an event; nil where it does not.
func eventIn(n ast.Node) ast.Expr {
	switch n := n.(type) {
	case *ast.CallExpr:
		if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "put" && len(n.Args) == 3 {
			return n.Args[1]
		}
	case *ast.CompositeLit:
		if typ, ok := n.Type.(*ast.Ident); !ok || typ.Name != "Event" {
			return nil
		}
		for _, e := range n.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok && fmt.Sprint(kv.Key) == "Kind" {
				return kv.Value
			}
		}
	}
	return nil
}

// events is a Source of some events.
type events []engine.Event

func (s events) Events(_ context.Context, after uint64, _ bool, emit func(engine.Event) error) error {
	for _, ev := range s {
		if ev.Seq > after {
			if err := emit(ev); err != nil {
				return err
			}
		}
	}
	return nil
}

// logged runs the audit and returns the lines of the log.
func logged(t *testing.T, level hclog.Level, cursor *Cursor, after uint64, s ...engine.Event) []string {
	t.Helper()
	var out bytes.Buffer
	log := hclog.New(&hclog.LoggerOptions{Level: level, Output: &out, DisableTime: true})
	if err := Run(events(s), after, cursor, log); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func TestLines(t *testing.T) {
	t.Parallel()
	exit := &record.Exit{Instance: "i1", Generation: 3, Kind: "signal", Signal: 9}
	got := logged(t, hclog.Info, &Cursor{}, 0,
		engine.Event{Seq: 7, Session: "s", UID: 5, Generation: 3, Instance: "i1", Kind: "allocate", State: "starting", Provider: "process", Operation: "k"},
		engine.Event{Seq: 8, Session: "s", UID: 5, Kind: "owned_absent", State: "vacant", Exit: exit, Ended: true},
		engine.Event{Seq: 9, Session: "s", UID: 5, Kind: "released", State: "vacant", Exit: exit},
		engine.Event{Seq: 20, Kind: engine.KindGap, From: 10, To: 20},
		engine.Event{Seq: 21, Session: "s", Kind: "exhaust", State: "quarantined", Reason: "operator", By: "me", Detail: "it is stuck"},
	)
	want := []string{
		"[INFO]  the intent to start is recorded: session=s generation=3 instance=i1 state=starting provider=process operation=k owner=5 event=allocate seq=7",
		`[INFO]  the instance has ended: session=s generation=3 instance=i1 state=vacant exit="signal 9" owner=5 event=owned_absent seq=8`,
		"[INFO]  the sandbox is released: session=s state=vacant owner=5 event=released seq=9",
		"[WARN]  events are missing here: from=10 to=20 event=gap seq=20",
		`[ERROR] the session is quarantined: session=s state=quarantined reason=operator by=me detail="it is stuck" owner=0 event=exhaust seq=21`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if quiet := logged(t, hclog.Warn, &Cursor{}, 8, engine.Event{Seq: 9, Kind: "released"}); quiet[0] != "" {
		t.Errorf("at warn it says %q", quiet)
	}
}

// What a daemon that was killed has not passed on, the next one does.
func TestCursor(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "cursor")
	busy := true
	open := func(last uint64) (*Cursor, uint64) {
		t.Helper()
		c, after, err := OpenCursor(path, last, func() bool { return !busy })
		if err != nil {
			t.Fatal(err)
		}
		return c, after
	}
	c, after := open(5)
	if after != 5 { // what was before the first one is history
		t.Errorf("a new cursor is at %d", after)
	}
	c.passed(6)
	c.move() // as the timer does
	if c, after = open(9); after != 5 {
		t.Errorf("it is at %d, and the log has not taken 6", after)
	}
	busy = false
	c.passed(8)
	c.move()
	if c, after = open(9); after != 8 {
		t.Errorf("it is at %d, and the log has taken 8", after)
	}
	c.passed(9)
	if err := c.Close(time.Second); err != nil {
		t.Error(err)
	}
	if c, after = open(9); after != 9 {
		t.Errorf("after an ordinary end it is at %d", after)
	}
	if err := c.Close(time.Second); err != nil {
		t.Error(err)
	}
	if _, after = open(3); after != 3 { // another journal's
		t.Errorf("beyond the journal's end it is %d", after)
	}
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, after = open(3); after != 3 {
		t.Errorf("from garbage it is %d", after)
	}
	if _, after, err := OpenCursor(filepath.Join(path, "no"), 3, nil); err == nil || after != 3 || errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %d, %v", after, err)
	}
}
