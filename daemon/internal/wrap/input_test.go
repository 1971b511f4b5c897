package wrap

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

func (c *fakeConn) message(id, text string) string {
	c.t.Helper()
	return c.request(wire.Frame{Kind: wire.KindInput, Input: &wire.Input{Message: id, Data: []byte(text)}})
}

func TestInputIsTakenOnce(t *testing.T) {
	t.Parallel()
	s := newSession(t, "cat").withDaemon().start()
	c := s.daemon.next()
	for range 3 {
		if e := c.message("m1", "one\n"); e != "" {
			t.Error(e)
		}
	}
	// Also on another connection.
	c.conn.Close()
	c = s.daemon.next()
	c.message("m1", "one\n")
	c.message("m2", "two\n")
	c.message("", "three\n")
	c.message("", "three\n")
	if e := c.request(wire.Frame{Kind: wire.KindInput, Input: &wire.Input{Data: []byte("last\n"), EOF: true}}); e != "" {
		t.Error(e)
	}
	if e := c.input("late\n"); !strings.Contains(e, "closed") && e != "" {
		t.Errorf("after the end: %q", e)
	}
	s.wait()
	if got := s.output(spool.Stdout); got != "one\ntwo\nthree\nthree\nlast\n" {
		t.Errorf("stdout %q", got)
	}
}

// An agent that does not read does not block the link.
func TestInputQueueFull(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "while [ ! -e \"$GO\" ]; do sleep 0.02; done; wc -c")
	stop := t.TempDir() + "/go"
	s.recipe.Env = append(s.recipe.Env, "GO="+stop)
	s.withDaemon().start()
	c := s.daemon.next()
	chunk := strings.Repeat("x", 300<<10)
	sent, full := 0, false
	for i := range 20 {
		switch e := c.message(fmt.Sprint("m", i), chunk); e {
		case "":
			sent++
		case "input queue full":
			full = true
		default:
			t.Fatal(e)
		}
	}
	if !full || sent == 0 {
		t.Fatalf("sent %d, full %v", sent, full)
	}
	c.await(wire.KindStatus) // the link lives
	touch(t, stop)
	// What was refused may be sent again under the same id.
	eventually(t, "there is room again", func() bool { return c.message("m19", chunk) == "" })
	sent++
	eventually(t, "the end is taken", func() bool {
		return c.request(wire.Frame{Kind: wire.KindInput, Input: &wire.Input{EOF: true}}) == ""
	})
	s.wait()
	if got := strings.TrimSpace(s.output(spool.Stdout)); got != fmt.Sprint(sent*len(chunk)) {
		t.Errorf("agent read %s bytes, sent %d", got, sent*len(chunk))
	}
}

func TestInputAfterTheAgentClosedIt(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "exec <&-; echo closed; sleep 1000").withDaemon().start()
	c := s.daemon.next()
	eventually(t, "stdin is closed", func() bool { return s.output(spool.Stdout) == "closed\n" })
	eventually(t, "input is refused", func() bool { return c.input("x") == errInputClosed.Error() })
}

func TestIDsAreBounded(t *testing.T) {
	t.Parallel()
	d := newIDs(3)
	for i := range 5 {
		d.add(fmt.Sprint(i))
	}
	d.add("")
	for i := range 5 {
		if got, want := d.has(fmt.Sprint(i)), i >= 2; got != want {
			t.Errorf("has(%d) = %v", i, got)
		}
	}
	if len(d.set) != 3 || d.has("") {
		t.Errorf("remembers %v", d.set)
	}
}
