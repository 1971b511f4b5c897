package discover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// playRole is the test binary as somebody else: with fewer privileges, another uid, another /proc. The
// answer goes to standard output.
func playRole(role string) int {
	var err error
	switch role {
	case "selftest":
		var s *Scanner
		if s, err = NewScanner(Options{HostID: testHost}); err == nil {
			err = s.SelfTest(context.Background())
		}
	case "scan":
		err = printScan()
	case "drop-caps":
		err = becomeAfter("selftest", dropCaps)
	case "hidepid":
		err = becomeAfter("selftest-nobody", func() error {
			return unix.Mount("proc", "/proc", "proc", 0, "hidepid=2")
		})
	case "selftest-nobody":
		err = becomeAfter("selftest", becomeNobody)
	case "scan-nobody":
		err = becomeAfter("scan", becomeNobody)
	case "few-descriptors":
		err = scanWithFewDescriptors()
	default:
		err = fmt.Errorf("no such role: %s", role)
	}
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return 0
}

// becomeAfter changes this thread and executes the test binary on it: what is changed is the thread's.
func becomeAfter(role string, change func() error) error {
	runtime.LockOSThread()
	if err := change(); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", []string{"test"}, []string{"DISCOVER_TEST_ROLE=" + role})
}

func dropCaps() error {
	for _, c := range []uintptr{unix.CAP_SYS_PTRACE, unix.CAP_SYS_ADMIN, unix.CAP_PERFMON} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return err
		}
	}
	return nil
}

func becomeNobody() error {
	if err := unix.Setgroups(nil); err != nil {
		return err
	}
	if err := unix.Setresgid(selfTestUID, selfTestUID, selfTestUID); err != nil {
		return err
	}
	return unix.Setresuid(selfTestUID, selfTestUID, selfTestUID)
}

func printScan() error {
	uid := uint32(os.Geteuid())
	s, err := NewScanner(Options{HostID: testHost, UIDs: []UIDRange{{uid, uid}}})
	if err != nil {
		return err
	}
	res, err := s.Scan(context.Background())
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(res)
}

func scanWithFewDescriptors() error {
	s, err := NewScanner(Options{HostID: testHost})
	if err != nil {
		return err
	}
	if _, err := s.Scan(context.Background()); err != nil {
		return err
	}
	r, w, err := os.Pipe() // the runtime's poller takes its descriptors now, at the latest
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	var null []int
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
		if err != nil {
			break
		}
		null = append(null, fd)
		if len(null) == 1 {
			lim := unix.Rlimit{Cur: uint64(fd + 8), Max: uint64(fd + 8)}
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
				return err
			}
		}
	}
	unix.Close(null[len(null)-1]) // one is left, for the directory
	if _, err = s.Scan(context.Background()); !errors.Is(err, unix.EMFILE) {
		return fmt.Errorf("scan without descriptors: %v", err)
	}
	fmt.Println("refused")
	return nil
}

// as runs the test binary in a role.
func as(t *testing.T, role string, attr *syscall.SysProcAttr) (out string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = []string{"DISCOVER_TEST_ROLE=" + role}
	cmd.SysProcAttr = attr
	b, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(b)), err
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}
