package systemdtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ownerEnv makes this program a process that boots a box and waits to be killed.
const ownerEnv = "BERTH_BOX_TEST_OWNER"

func TestMain(m *testing.M) {
	Init()
	if os.Getenv(ownerEnv) != "" {
		os.Exit(own())
	}
	code := m.Run()
	if left := leftovers(); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "boxes have left", left)
		code = 1
	}
	os.Exit(code)
}

// leftovers are what boxes of this process would leave.
func leftovers() []string {
	var left []string
	mount, _ := cgroupMount() // "" finds nothing
	for _, dir := range []string{mount, os.TempDir()} {
		found, _ := filepath.Glob(filepath.Join(dir, prefix+self()+"-*"))
		left = append(left, found...)
	}
	return left
}

func own() int {
	box, err := Boot(context.Background(), Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(box.holder.Process.Pid, box.PID(), box.plan.Cgroup)
	select {}
}

// boot boots a box for a test.
func boot(t *testing.T, o Options) *Box {
	t.Helper()
	if err := Require(); err != nil {
		t.Skip(err)
	}
	box, err := Boot(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Close(); err != nil {
			t.Error(err)
		}
	})
	return box
}

// sh runs a script in a box.
func sh(t *testing.T, box *Box, script string) string {
	t.Helper()
	out, err := box.Output(t.Context(), "sh", "-ec", script)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// TestBoot: a real systemd and journald, alone in their world, and nothing of
// it to be seen outside.
func TestBoot(t *testing.T) {
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	shared := t.TempDir()
	if err := os.WriteFile(shared+"/file", []byte("from outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	box := boot(t, Options{Binds: []string{shared + ":/mnt"}})
	if got := sh(t, box, "systemctl is-system-running; cat /proc/1/comm; cat /mnt/file"); got != "running\nsystemd\nfrom outside" {
		t.Errorf("the box says %q; failed: %s", got, sh(t, box, "systemctl --failed --no-pager"))
	}
	if sh(t, box, "logger -t box-test hello; journalctl --sync; journalctl -t box-test -o cat") != "hello" {
		t.Error("journald has no entry")
	}
	if machine, _ := os.ReadFile("/etc/machine-id"); sh(t, box, "cat /etc/machine-id") == strings.TrimSpace(string(machine)) {
		t.Error("the box has the machine's id")
	}
	sh(t, box, "echo inside > /etc/berth-box-test")
	if _, err := os.Stat("/etc/berth-box-test"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what the box writes is seen outside: %v", err)
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Errorf("mounts were\n%s\nand are\n%s", before, after)
	}
}

// TestRun: exit status, standard streams and signals are the program's.
func TestRun(t *testing.T) {
	box := boot(t, Options{})
	var out, errOut bytes.Buffer
	err := box.Run(t.Context(), Command{
		Args: []string{"sh", "-c", "cat; echo oh >&2; echo $X; pwd; exit 7"}, Dir: "/etc", Env: []string{"X=y", "PATH=" + searchPath},
		Stdin: strings.NewReader("in\n"), Stdout: &out, Stderr: &errOut,
	})
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || out.String() != "in\ny\n/etc\n" || errOut.String() != "oh\n" {
		t.Errorf("got %v, %q, %q", err, out.String(), errOut.String())
	}
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	err = box.Run(t.Context(), Command{Args: []string{"sleep", "1000"}, Signals: signals})
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// TestReboot: a reboot and a crash give the box another boot id and leave its
// disk; units that are enabled start again.
func TestReboot(t *testing.T) {
	box := boot(t, Options{})
	first := sh(t, box, `cat /proc/sys/kernel/random/boot_id; echo kept > /var/lib/kept
printf '[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n' > /etc/systemd/system/t.service
systemctl enable -q --now t.service`)
	pid := box.PID()
	if err := box.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := sh(t, box, "cat /proc/sys/kernel/random/boot_id")
	if got := sh(t, box, "cat /var/lib/kept; systemctl is-active t.service"); got != "kept\nactive" || second == first || box.PID() == pid {
		t.Errorf("after a reboot: %q, boot %s was %s", got, second, first)
	}
	if err := box.Crash(t.Context()); err != nil {
		t.Fatal(err)
	}
	third := sh(t, box, "cat /proc/sys/kernel/random/boot_id")
	if got := sh(t, box, "cat /var/lib/kept; systemctl is-active t.service"); got != "kept\nactive" || third == second {
		t.Errorf("after a crash: %q, boot %s was %s", got, third, second)
	}
	if boots := strings.Count(sh(t, box, "journalctl --list-boots -q"), "\n") + 1; boots != 3 {
		t.Errorf("the journal has %d boots, want 3", boots)
	}
}

// TestKilledOwner: a box does not outlive its owner, whatever ends that, and
// the next boot removes what it was made of.
func TestKilledOwner(t *testing.T) {
	if err := Require(); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ownerEnv+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var holder, init int
	var cgroup string
	_, scanErr := fmt.Fscan(out, &holder, &init, &cgroup)
	if err := errors.Join(cmd.Process.Kill(), scanErr); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	for end := time.Now().Add(endBound); startTicks(holder)+startTicks(init) != ""; time.Sleep(pollPeriod) {
		if time.Now().After(end) {
			out, _ := exec.Command("ps", "-o", "pid,ppid,stat,wchan:30,args", "-p", fmt.Sprintf("%d,%d", holder, init)).Output()
			t.Fatalf("the holder or PID 1 lives on:\n%s", out)
		}
	}
	boot(t, Options{})
	if _, err := os.Stat(cgroup); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("cgroup %s is left: %v", cgroup, err)
	}
}
