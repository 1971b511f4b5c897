package daemontest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// Requests of ioctl_fsfreeze, include/uapi/linux/fs.h: _IOWR('X', 119, int), 120.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// freezeDisk freezes the file system at mnt until thaw is called.
func freezeDisk(t *testing.T, mnt string) (thaw func()) {
	t.Helper()
	dir, err := os.Open(mnt)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0); err != nil {
		dir.Close()
		t.Skipf("needs a file system that can be frozen: %v", err)
	}
	frozen := true
	thaw = func() {
		if frozen {
			frozen = false
			if err := errors.Join(unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0), dir.Close()); err != nil {
				t.Errorf("thawing %s: %v", mnt, err)
			}
		}
	}
	t.Cleanup(thaw)
	return thaw
}

// TestStuckProcess: an agent sleeps in the kernel, where no signal reaches it. Its
// session is quarantined, explained, neither deleted nor started, and holds up
// nothing else; its deletion ends when the kernel lets go. case C6, C2
func TestStuckProcess(t *testing.T) {
	t.Parallel()
	needFence(t)
	disk := smallDisk(t, 32)
	h := New(t, Options{Config: "[stop]\nattempts = 1\nattempt_deadline = \"3s\"\nrecheck_every = \"1s\"\n" + Sessions() + "grace = \"200ms\"\n"})
	h.Start()
	work := disk + "/work"
	if err := errors.Join(os.Mkdir(work, 0o755), os.Chown(work, Nobody, Nobody)); err != nil {
		t.Fatal(err)
	}
	spec := shell("echo writing; while :; do echo x >file; done")
	spec.Workspace = work
	h.mustStart(t, "stuck", spec)
	h.untilOutput(t, "stuck", "writing")
	thaw := freezeDisk(t, disk)
	if _, err := h.Client.Stop(bounded(t), "stuck", rpc.StopRequest{}); err != nil {
		t.Fatal(err)
	}
	h.until(t, "stuck", "is quarantined", func(s rpc.Session) bool { return s.State == "quarantined" })
	h.Until("explain names the process", patience, func() error {
		e, err := h.Client.Explain(bounded(t), "stuck")
		if err != nil {
			return err
		}
		for _, p := range e.Processes {
			if p.Kind == "stuck" && strings.Contains(strings.Join(e.Notes, "\n"), fmt.Sprintf("process %d", p.PID)) {
				return nil
			}
		}
		return fmt.Errorf("%+v, %q", e.Processes, e.Notes)
	})
	_, err := h.Client.Start(bounded(t), "stuck", rpc.StartRequest{})
	refused(t, err, rpc.CodeCleanupPending)
	h.mustStart(t, "other", shell("exec sleep 1000"))
	h.mustStop(t, "other")
	h.mustDelete(t, "other")
	reply, err := h.Client.Delete(bounded(t), "stuck", rpc.DeleteRequest{Discard: true, Wait: true, Key: "d"})
	if err != nil || reply.Deleting == nil || reply.Tombstone != nil {
		t.Fatalf("deleting what is stuck: %+v, %v", reply, err)
	}
	thaw()
	h.goesAway(t, "stuck")
	if _, err := os.Stat(work); err != nil { // it was not berth's to delete
		t.Error(err)
	}
}

// TestUnusableFilesystem: the file system of the workspaces does not take the
// daemon's own write. That one start fails, with the system's own words; its
// sandbox is given back, no sibling is touched, nothing is deleted, and the same
// request works when the file system does. A refusal for want of room ends nothing.
func TestUnusableFilesystem(t *testing.T) {
	t.Parallel()
	needRoot(t)
	state := tmpfsState(t)
	h := New(t, Options{Config: quickTables(), StateDir: state})
	h.Start()
	sibling := h.mustStart(t, "sibling", shell("echo kept >file; exec sleep 1000"))
	h.Until("its file is there", patience, func() error { _, err := os.Stat(sibling.Workspace + "/file"); return err })
	huge := shell("exec sleep 1000")
	bytes := uint64(1) << 50
	huge.ReserveBytes = &bytes
	_, err := h.Client.Start(bounded(t), "huge", rpc.StartRequest{Spec: huge})
	refused(t, err, rpc.CodeCapacityRejected)

	remount := func(flags uintptr) {
		h.Until("the mount has changed", patience, func() error { // busy while a file is open for writing
			return unix.Mount("", state+"/workspaces", "", unix.MS_REMOUNT|unix.MS_BIND|flags, "")
		})
	}
	remount(unix.MS_RDONLY)
	req := rpc.StartRequest{Key: "once", Spec: shell("exec sleep 1000")}
	_, err = h.Client.Start(bounded(t), "victim", req)
	e := refused(t, err, rpc.CodeFilesystemUnusable)
	if !e.Retryable || !strings.Contains(e.Message, "read-only file system") {
		t.Errorf("the refusal is %+v", e)
	}
	h.untilVacant(t, "victim")
	if now := h.mustGet(t, "sibling"); now.State != "active" || now.PID != sibling.PID {
		t.Errorf("the sibling is %+v", now)
	}
	if data, err := os.ReadFile(sibling.Workspace + "/file"); err != nil || string(data) != "kept\n" {
		t.Errorf("the sibling's file is %q, %v", data, err)
	}
	remount(0)
	h.mustStartAs(t, "victim", req)
	h.mustStop(t, "victim")
	h.mustStop(t, "sibling")
	h.mustDelete(t, "sibling")
}

// tmpfsState makes a state directory whose workspaces are a file system of their own.
func tmpfsState(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-disk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	state := dir + "/state"
	workspaces := state + "/workspaces"
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	first := New(t, Options{Config: quickTables(), StateDir: state}) // makes the layout
	first.Start()
	first.Stop()
	first.cmd = nil // nothing ran there
	if err := unix.Mount("berth-test", workspaces, "tmpfs", 0, "mode=711"); err != nil {
		t.Skipf("needs to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(workspaces, 0); err != nil {
			t.Errorf("unmounting: %v", err)
		}
	})
	return state
}
