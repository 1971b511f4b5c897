package wrap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

// journalSocket is what journald has, a datagram socket, as far as wrappers can
// tell.
type journalSocket struct {
	path string
	conn *net.UnixConn
	buf  []byte
}

func newJournalSocket(t *testing.T) *journalSocket {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &journalSocket{path, conn, make([]byte, 1<<20)}
}

// read returns the fields of the next entry; nil once none has come for a while.
func (j *journalSocket) read(t *testing.T, patience time.Duration) map[string]string {
	t.Helper()
	j.conn.SetReadDeadline(time.Now().Add(patience))
	n, err := j.conn.Read(j.buf)
	if err != nil {
		return nil
	}
	fields := map[string]string{}
	for rest := j.buf[:n]; len(rest) > 0; {
		head, after, _ := bytes.Cut(rest, []byte{'\n'})
		if name, value, ok := bytes.Cut(head, []byte{'='}); ok {
			fields[string(name)], rest = string(value), after
			continue
		}
		size := binary.LittleEndian.Uint64(after)
		fields[string(head)], rest = string(after[8:8+size]), after[8+size+1:]
	}
	return fields
}

// copied makes a session with a copy in journald.
func copied(t *testing.T, rate int, argv ...string) (*session, *journalSocket) {
	t.Helper()
	j := newJournalSocket(t)
	s := newSession(t, argv...)
	s.launch.JournalSocket, s.launch.Provider, s.launch.JournalRate = j.path, "process", rate
	return s, j
}

// Every line is an entry, with where it is in the spool; what has no end yet, or
// is too long, is one too.
func TestMirrorLines(t *testing.T) {
	t.Parallel()
	s, j := copied(t, 0, "sh", "-c", `printf 'one\n\ntwo\r\nth'; sleep 0.05; printf 'ree\n'; head -c 40000 /dev/zero | tr '\0' x; echo; printf 'a\001\377b'`)
	s.withDaemon().start()
	x := strings.Repeat("x", lineMax)
	want := []string{"one", "", "two", "three", x, x, strings.Repeat("x", 40000-2*lineMax), "a\x01\xffb"}
	for i, text := range want {
		e := j.read(t, patience)
		for name, value := range map[string]string{
			"MESSAGE": text, "PRIORITY": "6", "SYSLOG_IDENTIFIER": "berth-agent", "BERTH_LINE": strconv.Itoa(i + 1),
			"BERTH_SESSION": "s1", "BERTH_GENERATION": "1", "BERTH_INSTANCE": s.launch.Instance, "BERTH_HOST": testHost,
			"BERTH_PROVIDER": "process", "BERTH_STREAM": "stdout",
		} {
			if e[name] != value {
				t.Errorf("entry %d: %s is %.100q, want %.100q", i, name, e[name], value)
			}
		}
		seq, _ := strconv.ParseUint(e["BERTH_SPOOL_SEQ"], 10, 64)
		if !s.holds(seq, text) {
			t.Errorf("entry %d: record %d of the spool has not the end of %.100q", i, seq, text)
		}
	}
	if code := s.wait(); code != 0 {
		t.Errorf("the wrapper ended with %d", code)
	}
	if e := j.read(t, 10*time.Millisecond); e != nil {
		t.Errorf("one more entry: %v", e)
	}
}

// holds reports whether record seq of the spool has the end of a line: its last
// byte, or the line feed behind that.
func (s *session) holds(seq uint64, text string) bool {
	s.t.Helper()
	var ok bool
	eventually(s.t, "the record is in the spool", func() bool {
		for _, r := range s.records() {
			if r.Seq == seq {
				ok = bytes.ContainsAny(r.Data, "\n"+text[max(len(text)-1, 0):])
				return true
			}
		}
		return false
	})
	return ok
}

// Standard error has a priority of its own.
func TestMirrorPriority(t *testing.T) {
	t.Parallel()
	s, j := copied(t, 0, "sh", "-c", "echo bad >&2")
	s.start()
	if e := j.read(t, patience); e["MESSAGE"] != "bad" || e["PRIORITY"] != "5" || e["BERTH_STREAM"] != "stderr" {
		t.Errorf("the entry is %v", e)
	}
	s.wait()
}

// case J1, T61: a journald that takes nothing holds up neither agent nor spool,
// and what it missed is counted, by number and by an entry.
func TestMirrorStuck(t *testing.T) {
	t.Parallel()
	const n = 100_000
	s, j := copied(t, 0, "sh", "-c", fmt.Sprintf("seq %d; echo done; cat; echo last", n))
	s.withDaemon().start()
	c := s.daemon.next()
	eventually(t, "all is in the spool", func() bool {
		return strings.HasSuffix(s.output(spool.Stdout), "\ndone\n")
	})
	if got := s.output(spool.Stdout); strings.Count(got, "\n") != n+1 {
		t.Fatalf("the spool has %d lines", strings.Count(got, "\n"))
	}
	var counted uint64
	eventually(t, "the loss is reported", func() bool {
		counted = c.await(wire.KindStatus).Status.JournalDropped
		return counted > 0
	})
	seen, told := 0, 0
	for {
		e := j.read(t, patience)
		lost, _ := strconv.Atoi(e["BERTH_DROPPED"])
		switch {
		case e == nil:
			t.Fatalf("no more entries after %d and %d missing", seen, told)
		case lost > 0 && (e["PRIORITY"] != "4" || e["BERTH_EVENT"] != "agent_dropped" || len(e["MESSAGE_ID"]) != 32):
			t.Errorf("the entry of the loss is %v", e)
		case lost == 0 && e["BERTH_LINE"] != strconv.Itoa(seen+told+1):
			t.Fatalf("line %s comes where %d should", e["BERTH_LINE"], seen+told+1)
		}
		if told += lost; lost == 0 {
			seen++
		}
		if text := e["MESSAGE"]; lost == 0 && seen+told <= n && text != strconv.Itoa(seen+told) {
			t.Fatalf("line %d is %q", seen+told, text)
		}
		if e["MESSAGE"] == "last" {
			break
		}
		if seen+told == n+1 {
			c.request(wire.Frame{Kind: wire.KindInput, ID: 1, Input: &wire.Input{EOF: true}})
		}
	}
	t.Logf("%d lines came, %d were told to be missing", seen, told)
	if told == 0 || uint64(told) < counted || seen+told != n+2 {
		t.Errorf("%d came, %d were told to be missing, %d were counted", seen, told, counted)
	}
	s.wait()
}

// A session that is faster than its rate does not fill journald.
func TestMirrorRate(t *testing.T) {
	t.Parallel()
	s, j := copied(t, 5, "sh", "-c", "seq 1000")
	s.start()
	seen, told := 0, 0
	for told+seen < 1000 {
		e := j.read(t, patience)
		if e == nil {
			break
		}
		if lost := e["BERTH_DROPPED"]; lost != "" {
			k, _ := strconv.Atoi(lost)
			told += k
		} else {
			seen++
		}
	}
	if seen < 50 || seen > 60 || seen+told != 1000 {
		t.Errorf("%d lines came, and %d were told to be missing", seen, told)
	}
	s.wait()
}

// Without a journald the wrapper ends in time, and no goroutine was there
// before the first output.
func TestMirrorAway(t *testing.T) {
	t.Parallel()
	s := newSession(t, "sh", "-c", "seq 100000; exit 4")
	s.launch.JournalSocket = filepath.Join(t.TempDir(), "nobody")
	begin := time.Now()
	s.start()
	if code := s.wait(); code != 0 || s.exit().Exit.Code != 4 {
		t.Errorf("wrapper %d, agent %+v", code, s.exit().Exit)
	}
	if took := time.Since(begin); took > patience {
		t.Errorf("it took %v", took)
	}
	if got := strings.Count(s.output(spool.Stdout), "\n"); got != 100000 {
		t.Errorf("the spool has %d lines", got)
	}
}

// However the pieces are cut and whichever of them are lost, each line is one
// entry or one lost line, and keeps its number.
func TestMirrorCountsLines(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 2000 {
		m := newMirror(&wire.Launch{JournalSocket: "/nowhere"})
		m.started = true // its loop is this test
		var lines, told, open int
		count := func(p piece) {
			told += int(p.lost)
			m.feed.lose(p)
			for data := p.data; len(data) > 0; {
				i := bytes.IndexByte(data, '\n')
				if i < 0 {
					m.feed.partial[p.stream] = append(m.feed.partial[p.stream], data...)
					break
				}
				m.feed.partial[p.stream], data = nil, data[i+1:]
				lines++
			}
		}
		want := 0
		for range rng.IntN(30) {
			data := []byte(strings.Repeat("x", rng.IntN(3)) + strings.Repeat("\n", rng.IntN(3)) + strings.Repeat("y", rng.IntN(3)))
			want += bytes.Count(data, lineFeed)
			if len(data) > 0 {
				open = 0
				if data[len(data)-1] != '\n' {
					open = 1
				}
			}
			m.bytes = 0
			if rng.IntN(2) == 0 {
				m.bytes = mirrorBytes // no room
			}
			m.put(spool.Stdout, 0, data)
			if rng.IntN(3) == 0 {
				for p, ok := m.next(); ok; p, ok = m.next() {
					count(p)
				}
			}
		}
		for p, ok := m.next(); ok; p, ok = m.next() {
			count(p)
		}
		if len(m.feed.partial[spool.Stdout]) > 0 {
			lines++
		}
		if lines+told != want+open {
			t.Fatalf("round %d: %d lines and %d lost of %d", round, lines, told, want+open)
		}
	}
}
