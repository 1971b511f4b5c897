package daemontest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// The users of these tests have no names and no processes but the tests' own.
var (
	strangerUID = uidBase() + 50
	readerUID   = uidBase() + 51
	userUID     = uidBase() + 52
	otherUID    = uidBase() + 53
	operatorUID = uidBase() + 54
	accessGID   = uidBase() + 55
)

// by makes one request as another user.
func (h *Host) by(t *testing.T, uid int, verb, path, body string) (status int, refusal rpc.Error, reply []byte) {
	t.Helper()
	var err error
	as(t, uid, uid, []int{accessGID}, func() {
		var c *peer
		if c, err = h.dial("berth.sock"); err != nil {
			return
		}
		defer c.Close()
		status, refusal, reply, err = c.call(verb, path, body)
	})
	if err != nil {
		t.Fatalf("uid %d: %s %s: %v", uid, verb, path, err)
	}
	return status, refusal, reply
}

// forbidden expects the request to be refused with one of the codes.
func (h *Host) forbidden(t *testing.T, uid int, verb, path, body string, codes ...rpc.Code) {
	t.Helper()
	status, refusal, reply := h.by(t, uid, verb, path, body)
	if status == 200 || !slices.Contains(codes, refusal.Code) {
		t.Errorf("uid %d: %s %s %s: %d %s, want %v", uid, verb, path, body, status, reply, codes)
	}
}

// TestConnectNeedsGroup: another uid without the group is refused at connect,
// also at the moment when the socket is made; with the group it gets in.
// case T76
func TestConnectNeedsGroup(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := running(t, fmt.Sprintf("[socket]\ngroup = %q\n", fmt.Sprint(accessGID)))
	as(t, strangerUID, strangerUID, nil, func() {
		if _, err := h.dial("berth.sock"); !errors.Is(err, unix.EACCES) {
			t.Errorf("without the group: %v, want EACCES", err)
		}
	})
	if status, _, reply := h.by(t, userUID, "GET", "/v1/sessions", ""); status != 200 {
		t.Errorf("with the group: %d %s", status, reply)
	}
	stop := make(chan struct{})
	racing := make(chan struct{})
	go func() { // ended by stop
		defer close(racing)
		as(t, strangerUID, strangerUID, nil, func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, name := range []string{"berth.sock", "wrap.sock"} {
					if c, err := h.dial(name); err == nil {
						c.Close()
						t.Errorf("somebody without the group could connect to %s while it was made", name)
					}
				}
			}
		})
	}()
	for range 5 {
		h.Kill()
		h.Start()
	}
	close(stop)
	<-racing
	for path, want := range map[string]os.FileMode{
		h.Run + "/berth.sock": 0o660, h.Run + "/wrap.sock": 0o600, h.State + "/journal": 0o700, h.State + "/sessions": 0o700,
	} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

// TestRoles: a reader reads everything and changes nothing, a user has its own
// sessions and sees no others, an operator does everything, and a uid that has
// no name of its own is nobody.
func TestRoles(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := running(t, fmt.Sprintf("[socket]\nmode = 0o666\nreader_users = [\"%d\"]\noperator_users = [\"%d\"]\n", readerUID, operatorUID))
	const start = `{"key":"k","spec":{"command":["sleep","1000"]}}`
	for _, uid := range []int{userUID, otherUID} { // the same key, which is each one's own
		if status, _, reply := h.by(t, uid, "POST", fmt.Sprintf("/v1/sessions/of-%d/start", uid), start); status != 200 {
			t.Fatalf("uid %d: %s\n%s", uid, reply, h.Log())
		}
	}
	own, others := fmt.Sprintf("/v1/sessions/of-%d", userUID), fmt.Sprintf("/v1/sessions/of-%d", otherUID)
	h.mustStart(t, "roots", shell("exec sleep 1000"))
	session := h.mustGet(t, fmt.Sprintf("of-%d", userUID))
	if uids := statusField(t, session.AgentPID, "Uid:"); uids != fmt.Sprintf("%d %[1]d %[1]d %[1]d", userUID) {
		t.Errorf("the agent runs as %s", uids)
	}

	h.sees(t, userUID, fmt.Sprintf("of-%d", userUID))
	h.sees(t, readerUID, fmt.Sprintf("of-%d", userUID), fmt.Sprintf("of-%d", otherUID), "roots")
	h.sees(t, operatorUID, fmt.Sprintf("of-%d", userUID), fmt.Sprintf("of-%d", otherUID), "roots")

	h.hides(t, others, start)
	h.hides(t, "/v1/sessions/roots", start)
	h.forbidden(t, userUID, "POST", "/v1/sessions/new/start", fmt.Sprintf(`{"owner":"%d","spec":{"command":["sleep"]}}`, otherUID), rpc.CodeForbidden)
	h.forbidden(t, userUID, "POST", own+"/resolve", `{"action":"abandon","verified":true,"why":"x"}`, rpc.CodeForbidden)

	for _, r := range []struct{ path, body string }{
		{"/start", start}, {"/stop", "{}"}, {"/delete", `{"discard":true}`}, {"/send", `{"data":"eA=="}`},
		{"/resolve", `{"action":"abandon","verified":true,"why":"x"}`},
	} {
		h.forbidden(t, readerUID, "POST", own+r.path, r.body, rpc.CodeForbidden)
		h.forbidden(t, readerUID, "POST", "/v1/sessions/new"+r.path, r.body, rpc.CodeForbidden)
	}
	for _, path := range []string{own, own + "/explain", own + "/logs", "/v1/status", "/v1/events", "/v1/scan", "/v1/capacity"} {
		if status, _, reply := h.by(t, readerUID, "GET", path, ""); status != 200 {
			t.Errorf("a reader's %s: %d %s", path, status, reply)
		}
	}
	h.forbidden(t, Nobody, "GET", "/v1/status", "", rpc.CodeForbidden) // several people's uid
	if _, err := h.Client.Get(bounded(t), "new"); rpc.CodeOf(err) != rpc.CodeNotFound {
		t.Errorf("a refused start has made something: %v", err)
	}
	if status, _, reply := h.by(t, operatorUID, "POST", others+"/stop", `{"wait":true}`); status != 200 {
		t.Errorf("the operator's stop: %d %s", status, reply)
	}
	if status, _, reply := h.by(t, userUID, "POST", own+"/stop", `{"wait":true}`); status != 200 {
		t.Errorf("the owner's stop: %d %s", status, reply)
	}
}

// hides expects that a user can do nothing with a session of somebody else.
func (h *Host) hides(t *testing.T, path, start string) {
	t.Helper()
	for _, r := range []struct{ verb, what, body string }{
		{"GET", "", ""}, {"GET", "/explain", ""}, {"GET", "/logs", ""}, {"GET", "/wait", ""}, {"POST", "/stop", "{}"},
		{"POST", "/delete", `{"discard":true}`}, {"POST", "/send", `{"data":"eA=="}`}, {"POST", "/start", start},
	} {
		h.forbidden(t, userUID, r.verb, path+r.what, r.body, rpc.CodeNotFound, rpc.CodeForbidden, rpc.CodeOperationConflict)
	}
}

// sees expects the user to list exactly these sessions, and to be told events
// and processes of no others.
func (h *Host) sees(t *testing.T, uid int, want ...string) {
	t.Helper()
	_, _, reply := h.by(t, uid, "GET", "/v1/sessions", "")
	var list rpc.ListReply
	if err := json.Unmarshal(reply, &list); err != nil {
		t.Fatalf("%v: %s", err, reply)
	}
	var got []string
	for _, s := range list.Sessions {
		got = append(got, s.Session)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("uid %d sees %v, want %v", uid, got, want)
	}
	_, _, events := h.by(t, uid, "GET", "/v1/events", "")
	_, _, scan := h.by(t, uid, "GET", "/v1/scan", "")
	for _, s := range []string{"roots", fmt.Sprintf("of-%d", userUID), fmt.Sprintf("of-%d", otherUID)} {
		for name, data := range map[string][]byte{"events": events, "scan": scan} {
			if strings.Contains(string(data), `"`+s+`"`) != slices.Contains(want, s) {
				t.Errorf("uid %d: %s tell of %s: %v", uid, name, s, !slices.Contains(want, s))
			}
		}
	}
}

// statusField is a field of /proc/PID/status, with single spaces.
func statusField(t *testing.T, pid int, name string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, name); ok {
			return strings.Join(strings.Fields(v), " ")
		}
	}
	t.Fatalf("process %d has no %s", pid, name)
	return ""
}

// TestAgentPrivileges: an agent of a daemon of root has its user's ids, no
// group more, no capability and no way to get one. case T57, H1
func TestAgentPrivileges(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := running(t, "")
	s := h.mustStartAs(t, "s", rpc.StartRequest{Owner: fmt.Sprint(userUID), Spec: shell("exec sleep 1000")})
	for field, want := range map[string]string{
		"Uid:": fmt.Sprintf("%d %[1]d %[1]d %[1]d", userUID), "Gid:": fmt.Sprintf("%d %[1]d %[1]d %[1]d", userUID),
		"Groups:": "", "CapEff:": "0000000000000000", "CapPrm:": "0000000000000000", "CapInh:": "0000000000000000",
		"CapAmb:": "0000000000000000", "NoNewPrivs:": "1",
	} {
		if got := statusField(t, s.AgentPID, field); got != want {
			t.Errorf("the agent's %s %q, want %q", field, got, want)
		}
	}
	info, err := os.Stat(s.Workspace)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("workspace: %v, %v", info.Mode(), err)
	}
	// What an agent can reach of berth: its own workspace and nothing else.
	probe := fmt.Sprintf("for p in %s/journal %s/sessions %s/host.json %s/wrap.sock %s/berthd.log %s; do cat $p/* $p >/dev/null 2>&1 && echo reads $p; ls $p >/dev/null 2>&1 && test -d $p && echo lists $p; done; echo done",
		h.State, h.State, h.State, h.Run, h.Dir, h.State+"/workspaces")
	h.mustStartAs(t, "probe", rpc.StartRequest{Owner: fmt.Sprint(otherUID), Spec: shell(probe)})
	h.untilVacant(t, "probe")
	if out := h.output(t, "probe", 0); out != "done\n" {
		t.Errorf("an agent %s", out)
	}
}
