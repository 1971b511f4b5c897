package systemdtest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// systemdPath is where Debian, Fedora and their kin have it.
const systemdPath = "/usr/lib/systemd/systemd"

const (
	apiFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	// hidden is where a box has what is not to be in the way.
	hidden = "run/host"
)

// boot turns this process, the first of its namespaces, into systemd. The
// order: the root, what the kernel offers, what the caller binds, the cgroups,
// then the change of root.
func (p *plan) boot(bootID string) error {
	root := filepath.Join(p.Dir, "disk", "root")
	if err := unix.Sethostname([]byte(p.Name)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	overlay := fmt.Sprintf("lowerdir=%s,upperdir=%[2]s/upper,workdir=%[2]s/work,index=off,metacopy=off", p.Root, filepath.Join(p.Dir, "disk"))
	if err := unix.Mount("overlay", root, "overlay", 0, overlay); err != nil {
		return fmt.Errorf("mounting the root: %w", err)
	}
	for _, step := range []func(string) error{
		p.furnish, mountAPI, makeDevices, func(root string) error { return fakeBootID(root, bootID) }, p.bind, mountCgroup, enter,
	} {
		if err := step(root); err != nil {
			return err
		}
	}
	// prctl(2): it belongs to a thread, and this one is to be systemd.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("tying the box to its holder: %w", err)
	}
	env := []string{"container=berth-box", "PATH=" + searchPath, "LANG=C.UTF-8"}
	return fmt.Errorf("executing systemd: %w", unix.Exec(systemdPath,
		[]string{systemdPath, "--unit=multi-user.target", "--log-target=journal", "--show-status=no"}, env))
}

// mountAPI mounts what systemd expects of a container manager.
func mountAPI(root string) error {
	for _, m := range []struct {
		target, kind string
		flags        uintptr
		data         string
	}{
		{"proc", "proc", apiFlags, ""},
		{"sys", "sysfs", apiFlags, ""},
		{"dev", "tmpfs", unix.MS_NOSUID | unix.MS_STRICTATIME, "mode=755,size=4M"},
		{"dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,gid=5"},
		{"dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755,size=512M"},
		{"tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777,size=4G"},
		// A user namespace may mount proc and sysfs only while an unobstructed
		// one is somewhere to be seen, and the boot id covers a part of /proc.
		{hidden + "/proc", "proc", apiFlags, ""},
		{hidden + "/sys", "sysfs", apiFlags, ""},
	} {
		target := filepath.Join(root, m.target)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %q: %w", m.target, err)
		}
	}
	return nil
}

// makeDevices fills /dev with what every container has, and FUSE and tun where
// the machine has them.
func makeDevices(root string) error {
	dev := filepath.Join(root, "dev")
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9} {
		if err := mknod(filepath.Join(dev, name), unix.Mkdev(1, minor)); err != nil {
			return err
		}
	}
	if err := mknod(filepath.Join(dev, "tty"), unix.Mkdev(5, 0)); err != nil {
		return err
	}
	if _, err := os.Stat("/dev/loop-control"); err == nil {
		if err := makeLoops(dev); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"fuse", "net/tun"} {
		if _, err := os.Stat(filepath.Join("/dev", name)); err == nil {
			if err := bind(filepath.Join("/dev", name), filepath.Join(dev, name)); err != nil {
				return err
			}
		}
	}
	return bind("/dev/null", filepath.Join(dev, "console"))
}

// loops is how many loop devices a box has nodes for; the devices are the
// machine's. One that a box leaves mounted is freed with its mount namespace.
const loops = 64

func makeLoops(dev string) error {
	if err := mknod(filepath.Join(dev, "loop-control"), unix.Mkdev(10, 237)); err != nil {
		return err
	}
	for n := range uint32(loops) {
		path := filepath.Join(dev, fmt.Sprintf("loop%d", n))
		if err := unix.Mknod(path, unix.S_IFBLK|0o660, int(unix.Mkdev(7, n))); err != nil {
			return fmt.Errorf("making device %q: %w", path, err)
		}
	}
	return nil
}

func mknod(path string, dev uint64) error {
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(dev)); err != nil {
		return fmt.Errorf("making device %q: %w", path, err)
	}
	return os.Chmod(path, 0o666) // the umask
}

// fakeBootID gives the boot an id of its own, as a real one has.
func fakeBootID(root, id string) error {
	path := filepath.Join(root, hidden, "boot_id")
	if err := os.WriteFile(path, []byte(id+"\n"), 0o444); err != nil {
		return err
	}
	target := filepath.Join(root, "proc/sys/kernel/random/boot_id")
	if err := bind(path, target); err != nil {
		return err
	}
	return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

func (p *plan) bind(root string) error {
	for _, b := range p.Binds {
		source, target, ok := strings.Cut(b, ":")
		if !ok {
			target = source
		}
		if err := bind(source, filepath.Join(root, target)); err != nil {
			return err
		}
	}
	return nil
}

// bind makes a file or a directory of this machine appear at target.
func bind(source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return fmt.Errorf("binding: %w", err)
	}
	parent := target
	if !info.IsDir() {
		parent = filepath.Dir(target)
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fmt.Errorf("binding: %w", err)
	}
	if !info.IsDir() {
		f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o644)
		if err != nil {
			return fmt.Errorf("binding: %w", err)
		}
		f.Close()
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("binding %q: %w", source, err)
	}
	return nil
}

// mountCgroup shows the box a pure cgroup v2 tree, whatever the machine has,
// and makes the rest of /sys read-only, which also keeps udev's units off.
func mountCgroup(root string) error {
	if err := unix.Mount("cgroup2", filepath.Join(root, "sys/fs/cgroup"), "cgroup2", apiFlags, ""); err != nil {
		return fmt.Errorf("mounting cgroups: %w", err)
	}
	return unix.Mount("", filepath.Join(root, "sys"), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|apiFlags, "")
}

// enter makes root the root. Mounts are shared from there on, as they are on a
// real host: PID 1 leaves that alone in a container, but credentials need it.
func enter(root string) error {
	old := filepath.Join(root, hidden, "old")
	if err := os.MkdirAll(old, 0o755); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, old); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/"+hidden+"/old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the old root: %w", err)
	}
	if err := os.Remove("/" + hidden + "/old"); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("sharing mounts: %w", err)
	}
	return nil
}
