package daemontest

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
)

// impostors are what others than wrappers might write to the wrappers' socket.
func (h *Host) impostors(s rpc.StartReply) map[string]string {
	hello := func(change string) string {
		return fmt.Sprintf(`{"kind":"hello","hello":{"version":1,"host":%q,"session":%q,"instance":%q,"generation":%d,"token":"x","pid":1,"status":{"phase":"running"}%s}}`+"\n",
			h.ID(), s.Session, s.Instance, s.Generation, change)
	}
	noise := make([]byte, 64<<10)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	return map[string]string{
		"nothing":         "",
		"an empty line":   "\n\n\n",
		"noise":           string(noise) + "\n",
		"a long line":     strings.Repeat("x", 3<<20),
		"half a hello":    hello("")[:40],
		"another host":    strings.Replace(hello(""), h.ID(), strings.Repeat("0", 32), 1),
		"another version": strings.Replace(hello(""), `"version":1`, `"version":99`, 1),
		"a bad token":     hello(""),
		"an old one":      strings.Replace(hello(""), `"generation":1`, `"generation":0`, 1),
		"a later one":     strings.Replace(hello(""), `"generation":1`, `"generation":18446744073709551615`, 1),
		"a bad number":    strings.Replace(hello(""), `"generation":1`, `"generation":-1`, 1),
		"an id of dots":   strings.Replace(hello(""), `"session":"s"`, `"session":"../../etc"`, 1),
		"a long id":       strings.Replace(hello(""), `"session":"s"`, `"session":"`+strings.Repeat("s", 500<<10)+`"`, 1),
		"a null hello":    `{"kind":"hello","hello":null}` + "\n",
		"no hello":        `{"kind":"exit","exit":{"kind":"code","code":0}}` + "\n" + hello(""),
		"deep nesting":    strings.Repeat(`{"a":`, 200_000) + "\n",
		"a second line":   hello("") + `{"kind":"exit","exit":{"kind":"code","code":0}}` + "\n",
		"HTTP":            "GET /v1/status HTTP/1.1\r\nHost: b\r\n\r\n",
	}
}

// TestImpostors: whatever is written to the wrappers' socket by who is none,
// and however it leaves, nothing of it is believed or kept, and the wrapper
// that is meant is not disturbed, also not under the next daemon.
func TestImpostors(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	s := h.mustStart(t, "s", shell("while read line; do echo got $line; done"))
	h.mustStart(t, "ended", shell("exit 0"))
	h.untilVacant(t, "ended")
	h.Until("what was owed is settled", patience, func() error {
		if e := h.eventsOf(t, "ended"); e[len(e)-1].Kind != "released" {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	before, fds := h.status(t), descriptors(t, h.PID())
	for range 2 {
		var silent []*peer
		for range 100 { // who says nothing holds up nobody
			c, err := h.dial("wrap.sock")
			if err != nil {
				t.Fatal(err)
			}
			silent = append(silent, c)
		}
		for name, text := range h.impostors(s) {
			c, err := h.dial("wrap.sock")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(c, text) // it may be cut off
			_ = c.Conn.(interface{ CloseWrite() error }).CloseWrite()
			if reply, _ := io.ReadAll(c); bytes.Contains(reply, []byte("welcome")) {
				t.Errorf("%s was answered %q", name, reply)
			}
			c.Close()
		}
		h.send(t, "s", rpc.SendRequest{Data: []byte("x\n")})
		for _, c := range silent {
			c.Close()
		}
	}
	h.untilOutput(t, "s", "got x\ngot x\n")
	h.untilAdopted(t, s)
	if after := h.status(t); after.Journal.LastSeq != before.Journal.LastSeq {
		t.Errorf("the journal has grown from %d to %d", before.Journal.LastSeq, after.Journal.LastSeq)
	}
	h.Until("their connections are given up", patience, func() error {
		h.Client.Close()
		if n := descriptors(t, h.PID()); n > fds {
			return fmt.Errorf("%d descriptors, %d before", n, fds)
		}
		return nil
	})
	h.Kill()
	h.Start()
	h.untilAdopted(t, s)
}
