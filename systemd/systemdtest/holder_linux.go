package systemdtest

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	stageEnv   = "BERTH_BOX_STAGE"
	planEnv    = "BERTH_BOX_PLAN"
	bootEnv    = "BERTH_BOX_BOOT_ID"
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Init runs the holder or the first steps of PID 1 if this process is meant to
// be one, and does not return then. Call it first thing in main or TestMain.
func Init() {
	var err error
	var p plan
	switch stage := os.Getenv(stageEnv); stage {
	case "":
		return
	case "holder", "boot":
		if err = json.Unmarshal([]byte(os.Getenv(planEnv)), &p); err != nil {
			break
		}
		if stage == "boot" {
			err = p.boot(os.Getenv(bootEnv))
		} else {
			err = p.hold()
		}
	default:
		err = fmt.Errorf("no stage %q", stage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-box:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// hold keeps the disk and boots PID 1, again whenever it asks for a reboot,
// until standard input ends.
func (p *plan) hold() error {
	runtime.LockOSThread() // PID 1's parent, as far as PR_SET_PDEATHSIG goes
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	disk := filepath.Join(p.Dir, "disk")
	if err := unix.Mount("berth-box", disk, "tmpfs", 0, "mode=755,size=4G,nr_inodes=1M"); err != nil {
		return fmt.Errorf("mounting the disk: %w", err)
	}
	for _, name := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(disk, name), 0o755); err != nil {
			return err
		}
	}
	commands := make(chan string)
	go func() { // ends with this process
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			commands <- lines.Text()
		}
		close(commands)
	}()
	for {
		end, again, err := p.once(commands)
		if err != nil {
			return err
		}
		if !again {
			report(event{End: end})
			return nil
		}
	}
}

// once boots PID 1 and waits for its end.
func (p *plan) once(commands <-chan string) (end string, again bool, err error) {
	init, err := p.startInit()
	if err != nil {
		return "", false, err
	}
	report(event{PID: init.Process.Pid})
	exited := make(chan error, 1)
	go func() { exited <- init.Wait() }() // ends with PID 1
	crash, closing := false, false
	for {
		select {
		case _, open := <-commands:
			crash, closing = open, !open
			if closing {
				commands = nil
			}
			if err := init.Process.Kill(); err != nil {
				return "", false, err
			}
		case <-exited:
			status := init.ProcessState.Sys().(syscall.WaitStatus)
			if err := emptyCgroup(p.Cgroup); err != nil {
				return "", false, err
			}
			// reboot(2): in a pid namespace SIGHUP stands for a reboot, SIGINT
			// for a power off.
			again := !closing && (crash || status.Signaled() && status.Signal() == syscall.SIGHUP)
			return fmt.Sprintf("PID 1 has ended: %v", init.ProcessState), again, nil
		}
	}
}

func (p *plan) startInit() (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cgroup, err := os.Open(p.Cgroup)
	if err != nil {
		return nil, err
	}
	defer cgroup.Close()
	init := &exec.Cmd{
		Path: program, Args: []string{"berth-box-init"}, Stderr: os.Stderr,
		Env: []string{stageEnv + "=boot", planEnv + "=" + os.Getenv(planEnv), bootEnv + "=" + newUUID()},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET,
			// After the clone, in the cgroup: its root is the box's root cgroup.
			Unshareflags: unix.CLONE_NEWCGROUP,
			UseCgroupFD:  true, CgroupFD: int(cgroup.Fd()),
			Pdeathsig: syscall.SIGKILL,
		},
	}
	if err := init.Start(); err != nil {
		return nil, fmt.Errorf("starting PID 1: %w", err)
	}
	return init, nil
}

func report(e event) {
	_ = json.NewEncoder(os.Stdout).Encode(e) // whoever does not read it has ended
}

func newUUID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails, see crypto/rand
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
