package daemontest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berthd/berth/rpc"
)

// TestLateWork: a delete without discard is accepted while the workspace is
// empty, and the agent leaves something there as it ends. It is kept until the
// client agrees to lose it. case F1, E5
func TestLateWork(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	started := h.mustStart(t, "late", shell("trap 'echo saved > late.txt; exit 0' TERM; echo ready; while :; do sleep 0.05; done"))
	h.untilOutput(t, "late", "ready")
	reply, err := h.Client.Delete(bounded(t), "late", rpc.DeleteRequest{Wait: true})
	if err != nil || reply.Deleting == nil || !strings.Contains(reply.Deleting.LastError, "discard") {
		t.Fatalf("delete with work left at the end: %+v, %v\n%s", reply, err, h.Log())
	}
	file := filepath.Join(started.Workspace, "late.txt")
	if data, err := os.ReadFile(file); err != nil || string(data) != "saved\n" {
		t.Errorf("the late work is %q, %v", data, err)
	}
	h.mustDelete(t, "late") // with discard
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was to be lost is still there: %v", err)
	}
}

// TestNamedWorkspaces: a directory that a client names is one session's, with
// all that lies in it and above it; what is no directory of the owner's has one
// answer, whatever there is; a path that fits no answer is refused.
func TestNamedWorkspaces(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	owner := sessionOwner(t, h)
	temp := t.TempDir()
	for _, dir := range []string{temp, filepath.Dir(temp)} { // the owner must get there
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(temp, "trees")
	for _, dir := range []string{"a/sub", "ab"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	own := func(dirs ...string) {
		for _, dir := range dirs {
			if err := os.Chown(dir, owner, owner); err != nil {
				t.Fatal(err)
			}
		}
	}
	own(root, root+"/a", root+"/a/sub", root+"/ab")
	at := func(id, path string) error {
		_, err := h.Client.Start(bounded(t), id, rpc.StartRequest{
			Key: "start " + id, Spec: &rpc.SessionSpec{Command: []string{"sleep", "1000"}, Workspace: path},
		})
		return err
	}
	if err := errors.Join(at("a", root+"/a"), at("ab", root+"/ab")); err != nil {
		t.Fatal(err, h.Log())
	}
	for i, path := range []string{root, root + "/a/sub", root + "/a", root + "/ab/../a/sub"} {
		refused(t, at(fmt.Sprintf("n%d", i), path), rpc.CodeWorkspaceInUse)
	}
	var texts []string
	for _, path := range []string{root + "/missing", "/proc/1/root/etc", "/root", "/etc/passwd"} {
		e := refused(t, at("no", path), rpc.CodeWorkspaceMissing)
		texts = append(texts, strings.ReplaceAll(e.Message, path, "PATH"))
	}
	for _, text := range texts[1:] {
		if text != texts[0] {
			t.Errorf("answers tell paths apart: %q and %q", text, texts[0])
		}
	}
	deep := root + "/a2"
	for range 16 {
		deep += "/" + strings.Repeat("<", 200)
		if err := os.MkdirAll(deep, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	own(deep)
	refused(t, at("deep", deep), rpc.CodeInvalidRequest)
	h.mustGet(t, "a")
}

// sessionOwner is the uid that sessions of these tests run as.
func sessionOwner(t *testing.T, h *Host) int {
	t.Helper()
	h.mustStart(t, "whose", &rpc.SessionSpec{Command: []string{"true"}})
	return int(h.untilVacant(t, "whose").UID)
}

// TestLargeRequests: many starts at once that together are more than the
// journal takes in one append, and keys that no record holds.
func TestLargeRequests(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	const n = 48
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			id := fmt.Sprintf("large%d", i)
			_, err := h.Client.Start(bounded(t), id, rpc.StartRequest{Key: id, Spec: &rpc.SessionSpec{
				Command: []string{"true"}, Env: []string{"LARGE=" + strings.Repeat("x", 60<<10)},
			}})
			if err != nil {
				t.Errorf("starting %s: %v", id, err)
			}
		})
	}
	wg.Wait()
	long := strings.Repeat("k", 1<<19)
	_, err := h.Client.Stop(bounded(t), "large0", rpc.StopRequest{Key: long})
	refused(t, err, rpc.CodeInvalidRequest)
	_, err = h.Client.Stop(bounded(t), "large0", rpc.StopRequest{Why: long})
	refused(t, err, rpc.CodeInvalidRequest)
	_, err = h.Client.Delete(bounded(t), "large0", rpc.DeleteRequest{Key: long})
	refused(t, err, rpc.CodeInvalidRequest)
	h.mustStop(t, "large0")
	status, err := h.Client.Status(bounded(t))
	if err != nil || !status.Journal.Healthy {
		t.Errorf("the journal: %+v, %v", status.Journal, err)
	}
}

// TestStopWhileRestarted: a stop that waits is answered although the session is
// started again before anybody has seen it vacant.
func TestStopWhileRestarted(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	spec := &rpc.SessionSpec{Command: []string{"sleep", "1000"}}
	h.mustStart(t, "x", spec)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = h.Client.Start(t.Context(), "x", rpc.StartRequest{Spec: spec}) // refused while it is stopped
			}
		}
	}()
	for range 20 {
		if _, err := h.Client.Stop(bounded(t), "x", rpc.StopRequest{Wait: true}); err != nil {
			t.Fatalf("stop: %v\n%s", err, h.Log())
		}
	}
	close(stop)
	<-stopped
	h.mustStop(t, "x")
}
