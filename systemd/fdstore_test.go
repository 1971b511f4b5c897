package systemd

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// stored waits until PID 1 keeps n descriptors for the service.
func (h *host) stored(n int) {
	h.t.Helper()
	h.until(fmt.Sprintf("%d descriptors in the store", n), func() error {
		if got := show(h.t, "NFileDescriptorStore"); got != strconv.Itoa(n) {
			return fmt.Errorf("there are %s", got)
		}
		return nil
	})
}

// cameBack waits until the journal says n times more what came back.
func (h *host) cameBack(times int, what string) {
	h.t.Helper()
	h.until(what, func() error {
		if got := strings.Count(h.journal(), what); got < times {
			return fmt.Errorf("said %d times, want %d", got, times)
		}
		return nil
	})
}

// TestStoredDescriptors: case T55: PID 1 keeps the wrappers' descriptors over a
// crash and a restart, the next daemon proves the wrappers by them, and they are
// removed with their instance. After stop and start they are made anew.
func TestStoredDescriptors(t *testing.T) {
	h := start(t, "")
	started := h.sessions(3, "while :; do sleep 1000; done")
	h.stored(3)
	for i, do := range [][]string{
		{"systemctl", "kill", "-s", "KILL", "berthd.service"},
		{"systemctl", "restart", "berthd.service"},
	} {
		before := mainPID(t)
		run(t, do...)
		h.until("another daemon", func() error {
			if pid := mainPID(t); pid == 0 || pid == before {
				return fmt.Errorf("it is process %d", pid)
			}
			return nil
		})
		h.adopted(started)
		h.cameBack(i+1, "came back from the service manager: used=3 removed=0")
		h.stored(3)
	}
	for _, s := range started { // none of them has become an agent's
		if out := run(t, "ls", "-l", fmt.Sprintf("/proc/%d/fd", s.AgentPID)); strings.Contains(out, "pidfd") {
			t.Errorf("the agent of %s has a pidfd:\n%s", s.Session, out)
		}
	}
	if _, err := h.Stop(t.Context(), "s0", rpc.StopRequest{Wait: true}); err != nil {
		t.Fatal(err)
	}
	h.stored(2)
	run(t, "systemctl", "stop", "berthd.socket", "berthd.service")
	run(t, "systemctl", "start", "berthd.service")
	h.adopted(started[1:])
	h.stored(2)
}

// TestStoreFull: case T55: everything works with a store that takes one, and
// with none.
func TestStoreFull(t *testing.T) {
	for _, size := range []int{1, 0} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			h := start(t, fmt.Sprintf("FileDescriptorStoreMax=%d\n", size))
			started := h.sessions(2, "while :; do sleep 1000; done")
			h.stored(size)
			before := mainPID(t)
			run(t, "systemctl", "kill", "-s", "KILL", "berthd.service")
			h.until("another daemon", func() error {
				if pid := mainPID(t); pid == 0 || pid == before {
					return fmt.Errorf("it is process %d", pid)
				}
				return nil
			})
			h.adopted(started)
			if _, err := h.Stop(t.Context(), "s0", rpc.StopRequest{Wait: true}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// plantEnv makes this test binary a program that puts foreign descriptors into
// the store of the service that it is started in.
const plantEnv = "BERTH_TEST_PLANT"

// TestPlant is that program, not a test.
func TestPlant(t *testing.T) {
	if os.Getenv(plantEnv) == "" {
		t.Skip("a helper of TestForeignDescriptors")
	}
	init, err := unix.PidfdOpen(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	null, err := unix.Open("/dev/zero", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	say := func(text string, fd int) {
		s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(s)
		var rights []byte
		if fd >= 0 {
			rights = unix.UnixRights(fd)
		}
		if err := unix.Sendmsg(s, []byte(text), rights, &unix.SockaddrUnix{Name: os.Getenv("NOTIFY_SOCKET")}, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"wrapper-s0-g1", "wrapper-s1-g1"} {
		say("FDSTOREREMOVE=1\nFDNAME="+name, -1)
	}
	for name, fd := range map[string]int{
		"wrapper-s0-g1": init, "wrapper-s1-g1": null, "wrapper-s2-g99": -1, "wrapper-nobody-g1": -1, "wrapper-": -1, "other": -1,
	} {
		if fd < 0 { // the manager takes each file once
			if fd, err = unix.MemfdCreate(name, 0); err != nil {
				t.Fatal(err)
			}
		}
		say("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, fd)
	}
}

// TestForeignDescriptors: case T55: descriptors of others under the names of
// wrappers, and under names that mean nothing, mislead nobody and are removed.
func TestForeignDescriptors(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := start(t, "NotifyAccess=all\nEnvironment="+plantEnv+"=1\nExecStartPre="+self+" -test.run ^TestPlant$\n")
	h.stored(0)
	started := h.sessions(3, "while :; do sleep 1000; done")
	h.stored(3)
	before := mainPID(t)
	run(t, "systemctl", "kill", "-s", "KILL", "berthd.service")
	h.until("another daemon", func() error {
		if pid := mainPID(t); pid == 0 || pid == before {
			return fmt.Errorf("it is process %d", pid)
		}
		return nil
	})
	h.adopted(started)
	h.cameBack(1, "used=1 removed=")
	h.stored(3)
	if log := h.journal(); strings.Count(log, "is not of its wrapper") != 2 {
		t.Errorf("two were of others, and the journal says\n%s", log)
	}
}
