package sys

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// forked is a process that has not executed anything yet, and the way to let it.
func forked(t *testing.T) (pid, pidfd int, parent *exec.Cmd, release io.Closer) {
	t.Helper()
	parent = exec.Command("sh", "-c", `exec 3<&0; (read line <&3; exec sleep 600) & echo $!; exec 3<&-; wait`)
	in, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &pid)
	}
	if err == nil {
		pidfd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		_ = parent.Process.Kill() // its own child
		_ = parent.Wait()
		unix.Close(pidfd)
	})
	return pid, pidfd, parent, in
}

// A process that is on its way to its exec is waited for, with and without a
// pidfd; one that dies on it is told from one that lives.
func TestKilledBeforeExec(t *testing.T) {
	t.Parallel()
	for _, held := range []bool{true, false} {
		for _, kill := range []bool{true, false} {
			pid, fd, parent, release := forked(t)
			if st, err := ReadStat(pid); err != nil || st.Flags&FlagForkNoExec == 0 {
				t.Fatalf("%+v, %v", st, err)
			}
			pidfd := fd
			if !held {
				pidfd = -1
			}
			answer := make(chan bool, 1)
			go func() { // ends with the exec, or the process
				killed, st, err := KilledBeforeExec(pid, pidfd)
				if err != nil || st.PID != pid {
					t.Errorf("held %v: %+v, %v", held, st, err)
				}
				answer <- killed
			}()
			if kill {
				if err := parent.Process.Signal(unix.SIGSTOP); err != nil { // it must not reap
					t.Fatal(err)
				}
				if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
					t.Fatal(err)
				}
			} else {
				release.Close()
			}
			if killed := <-answer; killed != kill {
				t.Errorf("held %v: killed is %v, want %v", held, killed, kill)
			}
		}
	}
}
