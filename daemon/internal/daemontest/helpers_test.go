package daemontest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/cgroupfs"
)

// patience bounds every wait of these tests; on a calm machine each takes a
// small part of it; in an emulated machine it may take a hundred times as long.
const patience = 2 * time.Minute

// quickStops are stop attempts that follow each other soon.
const quickStops = "[stop]\ndelays = [\"50ms\", \"100ms\", \"200ms\"]\n"

// quickTables is the configuration of most tests: quick stops, a short grace.
func quickTables() string { return quickStops + Sessions() + "grace = \"300ms\"\n" }

// running makes a host whose daemon runs, with further configuration tables.
func running(t *testing.T, tables string) *Host {
	t.Helper()
	h := New(t, Options{Config: tables + quickTables()})
	h.Start()
	return h
}

// needRoot skips what only root can set up or look at.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// needFence skips what is about leaves.
func needFence(t *testing.T) {
	t.Helper()
	needRoot(t)
	if _, mode := cgroupfs.Detect(); mode == cgroupfs.None {
		t.Skip("needs a cgroup v2 tree")
	}
}

// bounded is a context that ends with the test, or when patience does.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// shell is a session that runs a shell script.
func shell(script string) *rpc.SessionSpec {
	return &rpc.SessionSpec{Command: []string{"sh", "-c", script}}
}

// stubborn runs until it is killed, with children that ignore TERM as it does.
const stubborn = "trap '' TERM HUP INT; sleep 1000 & while :; do sleep 1000; done"

// mustStart starts a session, again while something of its last instance is
// still owed to a provider.
func (h *Host) mustStart(t *testing.T, id string, spec *rpc.SessionSpec) rpc.StartReply {
	t.Helper()
	return h.mustStartAs(t, id, rpc.StartRequest{Spec: spec})
}

func (h *Host) mustStartAs(t *testing.T, id string, req rpc.StartRequest) rpc.StartReply {
	t.Helper()
	var reply rpc.StartReply
	h.Until("the start of "+id, patience, func() (err error) {
		reply, err = h.Client.Start(bounded(t), id, req)
		if err != nil && rpc.CodeOf(err) != rpc.CodeCleanupPending {
			t.Fatalf("starting %s: %v\n%s", id, err, h.Log())
		}
		return err
	})
	return reply
}

func (h *Host) mustGet(t *testing.T, id string) rpc.Session {
	t.Helper()
	s, err := h.Client.Get(bounded(t), id)
	if err != nil {
		t.Fatalf("getting %s: %v\n%s", id, err, h.Log())
	}
	return s
}

func (h *Host) mustStop(t *testing.T, id string) rpc.Session {
	t.Helper()
	reply, err := h.Client.Stop(bounded(t), id, rpc.StopRequest{Wait: true})
	if err != nil || reply.Session.State != "vacant" {
		t.Fatalf("stopping %s: %+v, %v\n%s", id, reply.Session, err, h.Log())
	}
	return reply.Session
}

// mustDelete deletes and expects the tombstone.
func (h *Host) mustDelete(t *testing.T, id string) rpc.Tombstone {
	t.Helper()
	var reply rpc.DeleteReply
	h.Until("the deletion of "+id, patience, func() (err error) {
		reply, err = h.Client.Delete(bounded(t), id, rpc.DeleteRequest{Discard: true, Wait: true, Key: "delete " + id})
		if err == nil && reply.Tombstone == nil {
			err = fmt.Errorf("it is held up: %+v", reply.Deleting)
		}
		return err
	})
	return *reply.Tombstone
}

// until polls a session until ok says yes.
func (h *Host) until(t *testing.T, id, what string, ok func(rpc.Session) bool) rpc.Session {
	t.Helper()
	var s rpc.Session
	h.Until(id+" "+what, patience, func() (err error) {
		if s, err = h.Client.Get(bounded(t), id); err != nil {
			return err
		}
		if !ok(s) {
			return fmt.Errorf("%+v, stop %+v, exit %+v", s, s.Stop, s.Exit)
		}
		return nil
	})
	return s
}

func (h *Host) untilVacant(t *testing.T, id string) rpc.Session {
	t.Helper()
	return h.until(t, id, "is vacant", func(s rpc.Session) bool { return s.State == "vacant" })
}

// untilAdopted waits until the wrapper has called the new daemon and is the
// one that started answered.
func (h *Host) untilAdopted(t *testing.T, started rpc.StartReply) rpc.Session {
	t.Helper()
	s := h.until(t, started.Session, "is adopted", func(s rpc.Session) bool { return s.Link == "up" })
	if s.State != "active" || s.PID != started.PID || s.AgentPID != started.AgentPID ||
		s.Instance != started.Instance || s.Generation != started.Generation {
		t.Errorf("%s was started as %+v and is %+v", started.Session, started, s)
	}
	return s
}

// events are the session's durable events so far.
func (h *Host) eventsOf(t *testing.T, id string) []rpc.Event {
	t.Helper()
	var all []rpc.Event
	for e, err := range h.Client.Events(bounded(t), rpc.EventsQuery{Session: id}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// output is what the agent of a generation has printed, 0 = the newest.
func (h *Host) output(t *testing.T, id string, generation uint64) string {
	t.Helper()
	var b strings.Builder
	for r, err := range h.Client.Logs(bounded(t), id, rpc.LogsQuery{Generation: generation}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Stream == "stdout" || r.Stream == "stderr" || r.Stream == "pty" {
			b.Write(r.Data)
		}
	}
	return b.String()
}

// untilOutput waits until the agent has printed want.
func (h *Host) untilOutput(t *testing.T, id, want string) string {
	t.Helper()
	var out string
	h.Until(fmt.Sprintf("%s prints %q", id, want), patience, func() error {
		if out = h.output(t, id, 0); !strings.Contains(out, want) {
			return fmt.Errorf("it has printed %q", out)
		}
		return nil
	})
	return out
}

// refused expects an *rpc.Error of one of the codes.
func refused(t *testing.T, err error, codes ...rpc.Code) *rpc.Error {
	t.Helper()
	var e *rpc.Error
	if !errors.As(err, &e) || !slices.Contains(codes, e.Code) {
		t.Fatalf("got %v, want a refusal %v", err, codes)
	}
	if e.Message == "" {
		t.Errorf("%s says nothing", e.Code)
	}
	return e
}

// peer is a raw connection to one of the daemon's sockets.
type peer struct {
	net.Conn
	r *bufio.Reader
}

// dial connects to the socket of that name in the runtime directory.
func (h *Host) dial(name string) (*peer, error) {
	c, err := net.Dial("unix", h.Run+"/"+name)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &peer{c, bufio.NewReader(c)}, nil
}

// call sends one request with a body of JSON text and returns the status, the
// refusal that the reply holds, if any, and the reply.
func (p *peer) call(verb, path, body string) (status int, refusal rpc.Error, reply []byte, err error) {
	text := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: berth\r\n", verb, path)
	if verb == "POST" {
		text += fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	if _, err := io.WriteString(p, text+"\r\n"+body); err != nil {
		return 0, refusal, nil, err
	}
	return p.answer()
}

// answer reads one reply.
func (p *peer) answer() (status int, refusal rpc.Error, reply []byte, err error) {
	resp, err := http.ReadResponse(p.r, nil)
	if err != nil {
		return 0, refusal, nil, err
	}
	defer resp.Body.Close()
	if reply, err = io.ReadAll(resp.Body); err != nil {
		return 0, refusal, nil, err
	}
	if resp.StatusCode != http.StatusOK {
		err = json.Unmarshal(reply, &refusal)
	}
	return resp.StatusCode, refusal, reply, err
}

// ctl runs berthctl against the host and returns its exit code and output.
func (h *Host) ctl(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.bin+"/berthctl", args...)
	cmd.Env = append(os.Environ(), "BERTH_SOCKET="+h.Run+"/berth.sock")
	data, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(data)
}

// refusesToStart runs the daemon, which must end by itself, and returns what it
// says.
func (h *Host) refusesToStart(t *testing.T, args ...string) string {
	t.Helper()
	cmd := h.command()
	cmd.Args = append(cmd.Args, args...)
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }) // its own child
	defer timer.Stop()
	if err := cmd.Wait(); err == nil {
		t.Errorf("the daemon ended well and said %q", out.String())
	}
	if code := cmd.ProcessState.ExitCode(); code < 1 {
		t.Errorf("the daemon did not refuse but %v: %s", cmd.ProcessState, out.String())
	}
	return out.String()
}
