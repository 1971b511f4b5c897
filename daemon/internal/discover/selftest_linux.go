package discover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// selfTestUID is the uid that stands for a session's: nobody. Any uid but our own would do.
const selfTestUID = 65534

// SelfTest proves that the scanner can see a marker in the environment of a child: of another uid when
// we are root, since that takes privileges which a unit's CapabilityBoundingSet= may have removed, and
// through hidepid= when that is in force. Once proven it is remembered for the life of the Scanner,
// which is shorter than an epoch.
//
// An error means that hits may be missed: the daemon is degraded and deletes nothing.
//
// The child is our own executable, stopped by the kernel at its first instruction (PTRACE_TRACEME), so
// it runs nothing of it, and killed with its parent.
func (s *Scanner) SelfTest(ctx context.Context) error {
	if s.proven.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, selfTestBound)
	defer cancel()
	result := make(chan error, 1)
	go func() { // owned by SelfTest, which waits for it; ptrace(2) binds a tracee to a thread
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.selfTest(ctx, os.Geteuid() == 0 && s.inScope(selfTestUID))
		if errors.Is(err, syscall.EINVAL) { // a user namespace that maps no second uid
			err = s.selfTest(ctx, false)
		}
		result <- err
	}()
	if err := <-result; err != nil {
		return fmt.Errorf("testing whether a child's environment can be read: %w", err)
	}
	s.proven.Store(true)
	return nil
}

func (s *Scanner) selfTest(ctx context.Context, otherUID bool) error {
	const instance = "00000000000000000000000000000000"
	attr := &os.ProcAttr{
		Env: []string{EnvHost + "=" + s.match.host, EnvSession + "=self-test", EnvInstance + "=" + instance, EnvGeneration + "=1"},
		Sys: &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL, Setsid: true},
	}
	if otherUID {
		attr.Sys.Credential = &syscall.Credential{Uid: selfTestUID, Gid: selfTestUID}
	}
	child, err := os.StartProcess("/proc/self/exe", []string{"berth-self-test"}, attr)
	if err != nil {
		return err
	}
	defer func() {
		_ = child.Kill() // it may have died already
		_, _ = child.Wait()
	}()
	if err := stopped(ctx, child.Pid); err != nil {
		return err
	}
	p, err := s.Look(ctx, child.Pid)
	switch {
	case err != nil:
		return err
	case p.Kind != Member || p.Instance != instance:
		return fmt.Errorf("process %d shows no marker", child.Pid)
	}
	return nil
}

// stopped waits until the kernel has stopped the child at its first instruction.
func stopped(ctx context.Context, pid int) error {
	for {
		var st unix.WaitStatus
		got, err := unix.Wait4(pid, &st, unix.WNOHANG, nil)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("waiting for the child's stop: %w", err)
		case got == pid && st.Stopped():
			return nil
		case got == pid:
			return errors.New("the child ended before its first instruction")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Microsecond):
		}
	}
}
