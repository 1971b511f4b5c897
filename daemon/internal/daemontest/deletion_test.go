package daemontest

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

var kills = flag.Int("kills", 1, "how often TestDeleteKilled kills the daemon at each step of a deletion")

// files is how many files the workspaces of these tests hold.
const files = 3000

// fillWorkspace makes files in directories of 100, as the owner of the workspace.
func fillWorkspace(t *testing.T, dir string) {
	t.Helper()
	for i := range files {
		sub := fmt.Sprintf("%s/d%d", dir, i/100)
		if i%100 == 0 {
			if err := os.Mkdir(sub, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(fmt.Sprintf("%s/f%d", sub, i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// deletion is one that the daemon is killed in.
type deletion struct {
	id, workspace, session string
	before                 func() // brings about what the step waits for
	reached                func() error
	after                  func() // lets it go on
}

// explained is what explain says of a session.
func (h *Host) explained(t *testing.T, id string) rpc.ExplainReply {
	t.Helper()
	x, err := h.Client.Explain(bounded(t), id)
	if err != nil {
		t.Fatalf("explaining %s: %v\n%s", id, err, h.Log())
	}
	return x
}

// atStep says whether a deletion has come to a step.
func (h *Host) atStep(t *testing.T, id, step string) func() error {
	return func() error {
		x := h.explained(t, id)
		if x.Session == nil || x.Session.Deleting == nil {
			return nil // it was quicker than this test
		}
		if x.Session.Deleting.Step != step {
			return fmt.Errorf("it is at step %q", x.Session.Deleting.Step)
		}
		return nil
	}
}

// TestDeleteKilled kills the daemon at each step of a deletion: after each
// restart the session is hidden, its workspace is whole or gone, and the
// deletion is finished without being asked for again. case T51, A7, B7, B8
func TestDeleteKilled(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := running(t, "")
	steps := map[string]func(d *deletion){
		"intent": func(*deletion) {},
		"stop":   func(d *deletion) { d.reached = h.atStep(t, d.id, "stop") },
		"release": func(d *deletion) { // a provider that does not answer, until it is gone with its daemon
			var plugin int
			d.before = func() { plugin = h.freezePlugin(t) }
			d.reached = h.atStep(t, d.id, "release")
			d.after = func() { _ = unix.Kill(plugin, unix.SIGKILL) } // it may have ended with its daemon
		},
		"trash": func(d *deletion) { // a mount keeps it there
			point := d.workspace + "/d0"
			d.before = func() { mustRun(t, "mount", "--bind", h.Run, point) }
			d.reached = h.atStep(t, d.id, "trash")
			d.after = func() { mustRun(t, "umount", point) }
		},
		"purge": func(d *deletion) {
			d.reached = func() error { return h.purging(t, d.id) }
		},
		"buried": func(d *deletion) {
			d.reached = func() error { return h.buried(t, d.id) }
		},
	}
	for round := range *kills {
		for step, prepare := range steps {
			id := fmt.Sprintf("%s%d", step, round)
			h.killInDeletion(t, id, step == "stop", prepare)
			if t.Failed() {
				t.Fatalf("killed at %s, round %d\n%s", step, round, h.Log())
			}
		}
	}
}

// killInDeletion makes a session, has it deleted, and kills the daemon there.
func (h *Host) killInDeletion(t *testing.T, id string, live bool, prepare func(*deletion)) {
	t.Helper()
	script := "exit 0"
	if live {
		script = stubborn
	}
	started := h.mustStart(t, id, shell(script))
	if !live {
		h.untilVacant(t, id)
		h.Until("its sandbox is released", patience, func() error {
			if x := h.explained(t, id); len(x.Debts) > 0 {
				return errors.New(x.Debts[0])
			}
			return nil
		})
	}
	fillWorkspace(t, started.Workspace)
	d := &deletion{
		id: id, workspace: started.Workspace, session: filepath.Join(h.State, "sessions", id),
		before: func() {}, reached: func() error { return nil }, after: func() {},
	}
	prepare(d)
	d.before()
	if _, err := h.Client.Delete(bounded(t), id, rpc.DeleteRequest{Discard: true}); err != nil {
		t.Fatalf("deleting %s: %v\n%s", id, err, h.Log())
	}
	h.Until(id+" has come so far", patience, d.reached)
	time.Sleep(time.Duration(rand.Int64N(int64(3 * time.Millisecond)))) // the random moment
	h.Kill()
	d.whole(t)
	d.after()
	h.Start()
	h.hidden(t, id)
	h.Until(id+" is deleted", patience, func() error {
		d.whole(t)
		return h.buried(t, id)
	})
	h.nothingOf(t, d)
}

// whole fails when a part of the workspace is gone and the rest is to be seen.
func (d *deletion) whole(t *testing.T) {
	t.Helper()
	dirs, err := os.ReadDir(d.workspace)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	seen := 0
	for _, e := range dirs {
		if e.Name() == "d0" {
			seen += 100 // it may be mounted over
			continue
		}
		some, _ := os.ReadDir(filepath.Join(d.workspace, e.Name())) // renamed away meanwhile
		seen += len(some)
	}
	if _, gone := os.Lstat(d.workspace); gone == nil && (err != nil || seen != files) {
		t.Errorf("%s is half deleted: %d files of %d, %v", d.workspace, seen, files, err)
	}
}

// hidden checks what a client sees of a session that is being deleted.
func (h *Host) hidden(t *testing.T, id string) {
	t.Helper()
	_, err := h.Client.Get(bounded(t), id)
	refused(t, err, rpc.CodeDeleting, rpc.CodeSessionDeleted)
	_, err = h.Client.Start(bounded(t), id, rpc.StartRequest{Spec: shell("exec sleep 1000")})
	refused(t, err, rpc.CodeDeleting, rpc.CodeSessionDeleted)
	list, err := h.Client.List(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Sessions {
		if s.Session == id {
			t.Errorf("%s is being deleted and listed: %+v", id, s)
		}
	}
}

// buried is nil when there is a tombstone, and the session's last generation is
// remembered.
func (h *Host) buried(t *testing.T, id string) error {
	x := h.explained(t, id)
	if x.Tombstone == nil {
		return fmt.Errorf("%+v", x.Session.Deleting)
	}
	if x.Tombstone.LastGeneration == 0 || x.Tombstone.Reason != "explicit" || x.Tombstone.By == "" {
		t.Errorf("the tombstone of %s: %+v", id, x.Tombstone)
	}
	return nil
}

// purging is nil when some of the workspace's files are deleted and some are not.
func (h *Host) purging(t *testing.T, id string) error {
	found, err := filepath.Glob(h.State + "/trash/" + id + "-*.workspace/d*")
	if err == nil && len(found) > 0 && len(found) < files/100 {
		return nil
	}
	if h.buried(t, id) == nil {
		return nil // it was quicker than this test
	}
	return fmt.Errorf("%d directories are left: %v", len(found), err)
}

func (h *Host) nothingOf(t *testing.T, d *deletion) {
	t.Helper()
	trash, err := filepath.Glob(h.State + "/trash/" + d.id + "-*")
	if err != nil || len(trash) > 0 {
		t.Errorf("left in the trash: %v, %v", trash, err)
	}
	for _, path := range []string{d.workspace, d.session} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// freezePlugin stops the provider's process, so that it answers nothing.
func (h *Host) freezePlugin(t *testing.T) int {
	t.Helper()
	reply, err := h.Client.Providers(bounded(t))
	if err != nil || len(reply.Providers) != 1 {
		t.Fatalf("%+v, %v", reply, err)
	}
	if err := unix.Kill(reply.Providers[0].PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return reply.Providers[0].PID
}

func mustRun(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// TestDeletionWaits: what must not be deleted holds the deletion up and is
// named, with who holds it; it is not touched, and the deletion goes on by
// itself once it is out of the way. case T73, T74, C2
func TestDeletionWaits(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for _, kind := range []string{"tmpfs", "ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			h := New(t, Options{Config: quickTables(), StateDir: diskOf(t, kind, 320) + "/state"})
			h.Start()
			precious := t.TempDir()
			keep := filepath.Join(precious, "keep")
			if err := os.WriteFile(keep, []byte("precious\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			h.heldUp(t, "own", func(dir string) (string, func()) {
				point := dir + "/sub"
				mustRun(t, "mount", "--bind", precious, point)
				return point, func() { mustRun(t, "umount", point) }
			})
			h.heldUp(t, "other", func(dir string) (string, func()) { return mountElsewhere(t, precious, dir+"/sub") })
			h.heldUp(t, "immutable", func(dir string) (string, func()) {
				locked := dir + "/sub/file"
				if out, err := exec.Command("chattr", "+i", locked).CombinedOutput(); err != nil {
					t.Logf("%s has no attributes: %v: %s", kind, err, out)
					return "", func() {}
				}
				return "sub/file\" is immutable", func() {
					found, _ := filepath.Glob(h.State + "/trash/immutable-*/sub/file")
					mustRun(t, append([]string{"chattr", "-i"}, found...)...)
				}
			})
			if data, err := os.ReadFile(keep); err != nil || string(data) != "precious\n" {
				t.Errorf("what was mounted: %q, %v", data, err)
			}
		})
	}
}

// heldUp deletes a session whose workspace has something that must not be
// deleted, and lets it go. hold returns a part of the message that is to name it.
func (h *Host) heldUp(t *testing.T, id string, hold func(dir string) (name string, let func())) {
	t.Helper()
	started := h.mustStart(t, id, shell("mkdir sub && echo x > sub/file"))
	h.untilVacant(t, id)
	name, let := hold(started.Workspace)
	if name == "" {
		return
	}
	reply, err := h.Client.Delete(bounded(t), id, rpc.DeleteRequest{Discard: true, Wait: true})
	if err != nil || reply.Deleting == nil || !strings.Contains(reply.Deleting.LastError, name) {
		let()
		t.Fatalf("deleting %s: %+v, %v, want %q to be named", id, reply.Deleting, err, name)
	}
	x := h.explained(t, id)
	if !strings.Contains(strings.Join(x.Notes, "\n"), name) || x.Session.Deleting.Attempts == 0 {
		t.Errorf("explain says %q, %+v", x.Notes, x.Session.Deleting)
	}
	let()
	h.Until(id+" is deleted", patience, func() error { return h.buried(t, id) })
	h.nothingOf(t, &deletion{id: id, workspace: started.Workspace, session: filepath.Join(h.State, "sessions", id)})
}

// mountElsewhere mounts in a mount namespace of its own; the name is of the
// process that holds it.
func mountElsewhere(t *testing.T, from, at string) (name string, let func()) {
	t.Helper()
	cmd := exec.Command("unshare", "-m", "sh", "-c", `mount --bind "$1" "$2" && echo ready && exec sleep 1000`, "sh", from, at)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, 6)
	if _, err := out.Read(ready); err != nil || string(ready) != "ready\n" {
		t.Fatalf("mounting in another namespace: %q, %v", ready, err)
	}
	for comm := []byte{}; !strings.HasPrefix(string(comm), "sleep"); { // the exec follows at once
		if comm, err = os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("process %d (sleep)", cmd.Process.Pid), func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
}

// TestStartLosesToDelete: a start that is under way when the session is deleted
// is told so, with its key for ever. case B7, B8, C1
func TestStartLosesToDelete(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	answer := make(chan error, 1)
	ask := func() error {
		_, err := h.Client.Start(bounded(t), "x", rpc.StartRequest{Key: "k", Spec: &rpc.SessionSpec{
			Command: []string{"sleep", "1000"}, Setup: []string{"touch begun; sleep 1000"},
		}})
		return err
	}
	go func() { answer <- ask() }()
	h.Until("the start is under way", patience, func() error {
		_, err := os.Stat(h.State + "/workspaces/x/begun")
		return err
	})
	if _, err := h.Client.Delete(bounded(t), "x", rpc.DeleteRequest{Discard: true}); err != nil {
		t.Fatal(err)
	}
	refused(t, <-answer, rpc.CodeDeleting)
	refused(t, ask(), rpc.CodeDeleting)
	h.Until("x is deleted", patience, func() error { return h.buried(t, "x") })
	h.Kill()
	h.Start()
	refused(t, ask(), rpc.CodeDeleting, rpc.CodeSessionDeleted)
	_, err := h.Client.Start(bounded(t), "x", rpc.StartRequest{Spec: shell("true")})
	refused(t, err, rpc.CodeSessionDeleted)
}
