package sys

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// again runs this binary in a role, with other namespaces or another user.
func again(t *testing.T, role string, attr *syscall.SysProcAttr) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: new pid and mount namespaces")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), roleEnv+"="+role)
	c.SysProcAttr = attr
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", role, err, out)
	}
}

func namespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
}

func mountProc(options string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return unix.Mount("proc", "/proc", "proc", 0, options)
}

// case T14, T16, A19: the number of a dead process goes to a stranger, who lives.
func TestRecycledPidIsNotTouched(t *testing.T) {
	t.Parallel()
	again(t, "recycle", namespaces())
}

func roleRecycle() error {
	if err := mountProc(""); err != nil {
		return err
	}
	for range 3 { // pids 2 to 5 go to threads of this test
		old := exec.Command("sleep", "600")
		if err := old.Start(); err != nil {
			return err
		}
		id, err := IdentityOf(old.Process.Pid)
		if err != nil {
			return err
		}
		old.Process.Kill()
		old.Wait()
		if err := signalsGone(id); err != nil {
			return err
		}
		// The start time has a granularity of 10 ms; within it only the inode tells two processes apart.
		for ticks := Now() / (10 * time.Millisecond); Now()/(10*time.Millisecond) < ticks+2; {
			runtime.Gosched()
		}
		if err := strangerLives(id); err != nil {
			return err
		}
	}
	return nil
}

func signalsGone(id Identity) error {
	for range 2 {
		if err := SignalVerified(id, unix.SIGKILL); !errors.Is(err, ErrGone) {
			return fmt.Errorf("reaped: %v", err)
		}
	}
	return nil
}

func strangerLives(id Identity) error {
	stranger, err := startAt(id.PID)
	if err != nil {
		return err
	}
	defer func() { stranger.Process.Kill(); stranger.Wait() }()
	noInode, wrongInode, wrongTicks := id, id, id
	noInode.PidfdInode = 0
	now, err := IdentityOf(id.PID)
	if err != nil {
		return err
	}
	wrongInode.StartTicks = now.StartTicks
	wrongTicks.PidfdInode = now.PidfdInode
	for _, claim := range []Identity{id, noInode, wrongInode, wrongTicks} {
		if claim == wrongInode && !HasPidfs() {
			continue
		}
		if err := SignalVerified(claim, unix.SIGKILL); !errors.Is(err, ErrReused) {
			return fmt.Errorf("reused, claiming %v: %v", claim, err)
		}
		want := Absent
		if claim == wrongTicks && HasPidfs() {
			want = Alive // the inode alone says who it is; only what signals asks for more
		}
		if p, _, err := Observe(claim); p != want || err != nil {
			return fmt.Errorf("reused, claiming %v: %v, %v", claim, p, err)
		}
	}
	if p, _, err := Observe(now); p != Alive || err != nil {
		return fmt.Errorf("the stranger is %v, %v", p, err)
	}
	return nil
}

// startAt starts a process with a given pid; only in a pid namespace that nobody else forks in.
func startAt(pid int) (*exec.Cmd, error) {
	for range 50 {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			return nil, err
		}
		c := exec.Command("sleep", "600")
		if err := c.Start(); err != nil {
			return nil, err
		}
		if c.Process.Pid == pid {
			return c, nil
		}
		c.Process.Kill() // a thread of the runtime took the number
		c.Wait()
	}
	return nil, fmt.Errorf("pid %d was never given out again", pid)
}

// A number that lives on as a thread, a process group or a session is nobody's pid.
func TestThreadIsNoProcess(t *testing.T) {
	t.Parallel()
	again(t, "thread", namespaces())
}

func roleThread() error {
	if err := mountProc(""); err != nil {
		return err
	}
	runtime.LockOSThread()
	if tid := unix.Gettid(); tid != os.Getpid() {
		if _, err := IdentityOf(tid); !errors.Is(err, ErrGone) {
			return fmt.Errorf("thread %d: %v", tid, err)
		}
	}
	// The leader of a session dies, the session's number stays in use.
	c := exec.Command("sh", "-c", "sleep 600 & echo $!")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	c.Stdout = w
	if err := c.Start(); err != nil {
		return err
	}
	w.Close()
	buf := make([]byte, 16)
	n, err := r.Read(buf)
	if err != nil {
		return err
	}
	c.Wait()
	if _, err := IdentityOf(c.Process.Pid); !errors.Is(err, ErrGone) {
		return fmt.Errorf("dead session leader: %v", err)
	}
	member, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		return err
	}
	return syscall.Kill(member, syscall.SIGKILL) // we are its init
}

// case T24: what /proc hides is unknown, not gone.
func TestHiddenIsNotGone(t *testing.T) {
	t.Parallel()
	again(t, "hidden", namespaces())
}

func roleHidden() error {
	if err := mountProc("hidepid=2"); err != nil {
		return err
	}
	c := exec.Command("sleep", "600")
	if err := c.Start(); err != nil {
		return err
	}
	id, err := IdentityOf(c.Process.Pid) // it ends with us, its init
	if err != nil {
		return err
	}
	runtime.LockOSThread() // raw setresuid changes this thread alone, which then never runs anything else
	for _, call := range [][2]uintptr{{unix.SYS_SETGROUPS}, {unix.SYS_SETRESGID, 65534}, {unix.SYS_SETRESUID, 65534}} {
		if _, _, e := unix.RawSyscall(call[0], call[1], call[1], call[1]); e != 0 { // group 0 sees all
			return e
		}
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/stat", id.PID)); err == nil {
		return errors.New("hidepid=2 hides nothing")
	}
	noInode := id
	noInode.PidfdInode = 0
	if p, _, err := Observe(noInode); err == nil || p != 0 {
		return fmt.Errorf("hidden process observed as %v, %v", p, err)
	}
	if _, err := OpenVerified(id); err == nil || errors.Is(err, ErrGone) || errors.Is(err, ErrReused) {
		return fmt.Errorf("hidden process opened: %v", err)
	}
	return nil
}

// case T47: a record of another boot names nobody, whatever its pid says.
func TestOtherBoot(t *testing.T) {
	t.Parallel()
	c := start(t)
	id, err := IdentityOf(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	id.BootID = "00000000-0000-4000-8000-000000000000"
	if _, err := OpenVerified(id); !errors.Is(err, ErrGone) {
		t.Fatal(err)
	}
	if p, _, err := Observe(id); p != Absent || err != nil {
		t.Fatalf("%v, %v", p, err)
	}
}

func TestIncompleteIdentityIsForbidden(t *testing.T) {
	t.Parallel()
	c := start(t)
	id, err := IdentityOf(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, claim := range []Identity{{PID: id.PID}, {PID: id.PID, BootID: id.BootID}, {PID: id.PID, StartTicks: id.StartTicks}} {
		if fd, err := OpenVerified(claim); !errors.Is(err, ErrForbidden) {
			t.Errorf("%+v: opened %d, %v", claim, fd, err)
		}
	}
}

// case T25: a zombie is told from the living and from the gone, with its parent.
func TestZombie(t *testing.T) {
	t.Parallel()
	c := start(t)
	id, err := IdentityOf(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := OpenVerified(id)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := SignalPidfd(fd, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000); n != 1 {
		t.Fatalf("no end seen: %d, %v", n, err)
	}
	p, st, err := Observe(id)
	if p != Zombie || st.PPID != os.Getpid() || err != nil {
		t.Fatalf("%v %+v %v", p, st, err)
	}
	if again, err := IdentityOf(id.PID); again != id || err != nil {
		t.Fatalf("the zombie is %v, %v", again, err)
	}
	if _, ok := ReapedStatus(fd); ok {
		t.Fatal("status of an unreaped process")
	}
	c.Wait()
	if _, err := IdentityOfPidfd(fd); !errors.Is(err, ErrGone) {
		t.Fatalf("reaped: %v", err)
	}
	if ws, ok := ReapedStatus(fd); ok != HasExitInfo() || ok && ws.Signal() != syscall.SIGKILL {
		t.Fatalf("%v %v", ws, ok)
	}
	if err := SignalPidfd(fd, 0); !errors.Is(err, ErrGone) {
		t.Fatal(err)
	}
}

func TestIdentityOfPidfd(t *testing.T) {
	t.Parallel()
	c := start(t)
	id, err := IdentityOf(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := OpenVerified(id)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if got, err := IdentityOfPidfd(fd); got != id || err != nil {
		t.Fatalf("%v, %v", got, err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if got, err := IdentityOfPidfd(int(null.Fd())); err == nil {
		t.Fatalf("/dev/null is process %v", got)
	}
}

// A command may hold anything: here what looks like the end of its own field.
func TestStatOfHostileName(t *testing.T) {
	t.Parallel()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("no sleep program")
	}
	b, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	const name = "a) Z 1 (\n) 7"
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(path, "600")
	for try := 0; ; try++ { // another test's fork may hold the file open for writing
		if err = c.Start(); !errors.Is(err, unix.ETXTBSY) || try == 100 {
			break
		}
		c = exec.Command(path, "600")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	st, err := ReadStat(c.Process.Pid)
	if err != nil || st.PPID != os.Getpid() || st.Zombie() || st.StartTicks == 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	if st.Comm != name {
		t.Skipf("no exec yet or a multi-call binary: command is %q", st.Comm)
	}
}
