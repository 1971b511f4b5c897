package daemontest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

const mega = 1 << 20

// smallDisk makes an ext4 file system of that many MiB and returns where it is
// mounted. It is to be made before the host, so that it goes after it.
func smallDisk(t *testing.T, megabytes int) string {
	t.Helper()
	return diskOf(t, "ext4", megabytes)
}

// diskOf is smallDisk with a choice: ext4, xfs (of 300 MiB at least), or tmpfs.
func diskOf(t *testing.T, kind string, megabytes int) string {
	t.Helper()
	needRoot(t)
	dir, err := os.MkdirTemp("", "berth-disk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	image, mnt := dir+"/image", dir+"/mnt"
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(int64(megabytes)*mega), f.Close(), os.Mkdir(mnt, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	commands := map[string][][]string{
		"ext4":  {{"mkfs.ext4", "-q", "-m", "0", "-F", image}, {"mount", "-o", "loop", image, mnt}},
		"xfs":   {{"mkfs.xfs", "-q", "-f", image}, {"mount", "-o", "loop", image, mnt}},
		"tmpfs": {{"mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm,mode=755", megabytes), "berth-test", mnt}},
	}[kind]
	for _, args := range commands {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs mkfs.%s and loop devices: %v: %v: %s", kind, args, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", mnt).CombinedOutput(); err != nil {
			t.Errorf("unmounting: %v: %s", err, out)
		}
	})
	return mnt
}

// roomOf is the capacity of one root.
func (h *Host) roomOf(t *testing.T, name string) rpc.Root {
	t.Helper()
	c, err := h.Client.Capacity(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range c.Roots {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("no root %s in %+v", name, c)
	return rpc.Root{}
}

// TestAdmission: of many starts at one time into room for a few, exactly so
// many are admitted; the others are told the numbers and leave nothing. Room
// that is given back admits again. case E1, E10, T72
func TestAdmission(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 512)
	h := New(t, Options{
		Config: quickTables(), StateDir: disk + "/state",
		Capacity: "low_bytes = 33554432\nlow_percent = 0\nlow_inode_percent = 0\nstate_low_bytes = 1048576\n",
	})
	h.Start()
	room := h.roomOf(t, "workspaces")
	if !room.Known || room.LowBytes != 32*mega || room.TotalBytes > 512*mega {
		t.Fatalf("%+v", room)
	}
	const fit, asked = 4, 20
	reserve := (room.FreeBytes - room.LowBytes) / (fit + 1) * 21 / 20 // a little more than a fifth
	started := h.startReserving(t, asked, reserve)
	if len(started) != fit {
		t.Errorf("%d were admitted, there was room for %d: %+v", len(started), fit, h.roomOf(t, "workspaces"))
	}
	if got := h.roomOf(t, "workspaces").ReservedBytes; got != fit*reserve {
		t.Errorf("%d bytes are reserved, want %d", got, fit*reserve)
	}
	for i := range asked {
		if id := fmt.Sprintf("s%d", i); !slices.Contains(started, id) {
			_, err := h.Client.Get(bounded(t), id)
			refused(t, err, rpc.CodeNotFound)
		}
	}
	h.Kill() // reservations are durable
	h.Start()
	if got := h.roomOf(t, "workspaces").ReservedBytes; got != fit*reserve {
		t.Errorf("after a restart %d bytes are reserved, want %d", got, fit*reserve)
	}
	spec := shell("exec sleep 1000")
	spec.ReserveBytes = &reserve
	_, err := h.Client.Start(bounded(t), "more", rpc.StartRequest{Spec: spec})
	refused(t, err, rpc.CodeCapacityRejected)
	for _, id := range started {
		h.mustStop(t, id)
	}
	if got := h.roomOf(t, "workspaces").ReservedBytes; got != 0 {
		t.Errorf("after all stops %d bytes are reserved", got)
	}
	h.mustStart(t, "more", spec)
	code, out := h.ctl(t, "capacity")
	if code != 0 || !strings.Contains(out, "workspaces") || !strings.Contains(out, "state") {
		t.Errorf("berthctl capacity: %d, %s", code, out)
	}
}

// startReserving asks for n sessions at one time, each with room set aside, and
// returns those that were admitted.
func (h *Host) startReserving(t *testing.T, n int, reserve uint64) (started []string) {
	t.Helper()
	ids := make(chan string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			id := fmt.Sprintf("s%d", i)
			spec := shell("exec sleep 1000")
			spec.ReserveBytes = &reserve
			_, err := h.Client.Start(bounded(t), id, rpc.StartRequest{Spec: spec})
			if err == nil {
				ids <- id
				return
			}
			var e *rpc.Error
			if !errors.As(err, &e) || e.Code != rpc.CodeCapacityRejected || !e.Retryable || !numbers(e) {
				t.Errorf("%s: %v (%+v)", id, err, e)
			}
		})
	}
	wg.Wait()
	close(ids)
	for id := range ids {
		started = append(started, id)
	}
	return started
}

// numbers reports whether a refusal for want of room tells what there is and
// what was asked for, for people and for programs.
func numbers(e *rpc.Error) bool {
	for _, key := range []string{"free_bytes", "reserved_bytes", "asked_bytes", "low_bytes", "short_bytes"} {
		if _, ok := e.Details[key].(float64); !ok {
			return false
		}
	}
	return strings.Contains(e.Message, "free of") && strings.Contains(e.Message, "short of")
}

// stopOften makes many changes, all of them ends, which have a reserve.
func (h *Host) stopOften(t *testing.T, id string, n int) {
	t.Helper()
	for i := range n {
		if _, err := h.Client.Stop(bounded(t), id, rpc.StopRequest{Wait: true, Key: fmt.Sprint(i)}); err != nil {
			t.Fatalf("stop %d on a full disk: %v", i, err)
		}
	}
}

// fill writes until the disk is full, to the last byte.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for chunk := make([]byte, mega); len(chunk) > 0; {
		if _, err = f.Write(chunk); err != nil {
			chunk = chunk[:len(chunk)/2]
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
}

// TestFullDisk: the disk that holds everything is full to the last byte.
// Sessions run on, reads answer, starts are refused with the reason, stops and
// deletions work and give room back, also across a kill of the daemon.
// case T45, E3, T60, E5
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 64)
	h := New(t, Options{
		Config: quickTables(), StateDir: disk + "/state",
		Capacity: "low_bytes = 1048576\nlow_percent = 0\nlow_inode_percent = 0\nstate_low_bytes = 1048576\n",
	})
	h.Start()
	const n = 6
	started := make([]rpc.StartReply, n)
	for i := range started {
		started[i] = h.mustStart(t, fmt.Sprintf("s%d", i), shell("echo x > file; while read line; do echo got $line; done"))
	}
	fill(t, disk+"/ballast")
	_, err := h.Client.Start(bounded(t), "new", rpc.StartRequest{Spec: shell("exec sleep 1000")})
	refused(t, err, rpc.CodeCapacityRejected, rpc.CodeFilesystemUnusable)
	h.quickReads(t, "s0")
	if s := h.mustStop(t, "s0"); s.Exit == nil || s.Exit.Kind == "unknown" && s.Exit.Unknown == "" {
		t.Errorf("exit %+v", s.Exit)
	}
	h.mustDelete(t, "s0")
	h.mustDelete(t, "s1")
	h.Kill()
	h.Start() // also on a full disk
	for i := 2; i < n; i++ {
		h.untilAdopted(t, started[i])
	}
	h.mustStop(t, "s2")
	h.mustDelete(t, "s2")
	h.send(t, "s3", rpc.SendRequest{Data: []byte("x\n")}) // its output may be lost, it may not be held up
	if _, err := h.Client.Send(bounded(t), "s3", rpc.SendRequest{EOF: true}); err != nil {
		t.Error(err)
	}
	if s := h.untilVacant(t, "s3"); s.Exit.Kind != "code" || s.Exit.Code != 0 {
		t.Errorf("the exit of an agent that ended on a full disk: %+v", s.Exit)
	}
	h.stopOften(t, "s4", 50)
	if err := os.Remove(disk + "/ballast"); err != nil {
		t.Fatal(err)
	}
	h.Until("there is room again", patience, func() error {
		_, err := h.Client.Start(bounded(t), "s4", rpc.StartRequest{})
		return err
	})
	if status := h.status(t); !status.Journal.Healthy || len(status.Journal.Recovery) > 0 {
		t.Errorf("the journal: %+v", status.Journal)
	}
}
