package cgroupfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	// ErrOutside: a process's cgroup does not lie below the mount that was asked about.
	ErrOutside = errors.New("cgroup is outside the mount")
	// ErrNoV2: a process has no entry in a version 2 hierarchy.
	ErrNoV2 = errors.New("no cgroup v2 entry")
)

// ParseProcCgroup returns the version 2 path in the content of /proc/PID/cgroup, the "0::" line of
// cgroups(7), relative to the root of the reader's cgroup namespace ("/.." parts lead outside of it).
// removed is set when the directory is gone and the process, a zombie, merely remembers it.
// ErrNoV2 when there is no such line.
func ParseProcCgroup(b []byte) (p string, removed bool, err error) {
	for line := range bytes.Lines(b) {
		rest, ok := bytes.CutPrefix(line, []byte("0::"))
		if !ok {
			continue
		}
		rest, ok = bytes.CutSuffix(rest, []byte("\n"))
		if !ok || len(rest) == 0 || rest[0] != '/' {
			return "", false, fmt.Errorf("parsing a process's cgroups: line %q", line)
		}
		rest, removed = bytes.CutSuffix(rest, []byte(" (deleted)"))
		return string(rest), removed, nil
	}
	return "", false, fmt.Errorf("parsing a process's cgroups: %w", ErrNoV2)
}

// procCgroup reads the version 2 path of a process; pid 0 is the caller.
func procCgroup(pid int) (p string, removed bool, err error) {
	who := "self"
	if pid != 0 {
		who = strconv.Itoa(pid)
	}
	fd, err := unix.Open("/proc/"+who+"/cgroup", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	var b []byte
	if err == nil {
		b, err = drain(fd, make([]byte, 1024))
	}
	if err != nil {
		return "", false, fmt.Errorf("reading the cgroup of process %s: %w", who, err)
	}
	return ParseProcCgroup(b)
}

// PathOf returns the directory, below mount, of the cgroup that a process is in; pid 0 is the caller.
// It names a pid and so proves nothing about a process unless the caller holds its pidfd meanwhile.
// ErrOutside when the cgroup is not visible below mount, fs.ErrNotExist when there is no process.
func PathOf(pid int, mount string) (string, error) {
	root, err := mountRoot(mount)
	if err != nil {
		return "", err
	}
	return pathOf(pid, mount, root)
}

func pathOf(pid int, mount, root string) (string, error) {
	p, _, err := procCgroup(pid)
	if err != nil {
		return "", err
	}
	rel, ok := below(p, root)
	if !ok {
		return "", fmt.Errorf("locating cgroup %q below %q: %w", p, mount, ErrOutside)
	}
	return path.Join(mount, rel), nil
}

// MayEnter reports whether a process of this one's uid and groups could move itself into the cgroup whose
// path, as ParseProcCgroup returns it, is procPath: the kernel asks for write access to the cgroup's list of
// members (cgroup_attach_permissions in kernel/cgroup/cgroup.c). Without that it can be there only because
// it was born there. True whenever that cannot be told.
func (t *Tree) MayEnter(procPath string) bool {
	if t.mode == None {
		return true
	}
	rel, ok := below(procPath, t.root)
	if !ok {
		return true
	}
	for _, list := range []string{"cgroup.procs", "cgroup.threads"} {
		err := unix.Faccessat(unix.AT_FDCWD, path.Join(t.mount, rel, list), unix.W_OK, unix.AT_EACCESS)
		if !errors.Is(err, unix.EACCES) {
			return true
		}
	}
	return false
}

// below returns p relative to root ("" for root itself). Both are paths of one hierarchy.
func below(p, root string) (rel string, ok bool) {
	if p == root {
		return "", true
	}
	if root == "/" {
		return p[1:], p != "/.." && !strings.HasPrefix(p, "/../")
	}
	return strings.CutPrefix(p, root+"/")
}

// mountRoot returns which cgroup of the hierarchy is mounted at the mount point, from mountinfo.
func mountRoot(mount string) (string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("reading the mounts: %w", err)
	}
	root, ok := parseMountRoot(string(b), mount)
	if !ok {
		return "", fmt.Errorf("looking for a cgroup v2 mount at %q: there is none", mount)
	}
	return root, nil
}

// parseMountRoot finds the last cgroup2 mount at a mount point in mountinfo, see proc_pid_mountinfo(5):
// ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG…] - TYPE SOURCE SUPEROPTIONS.
func parseMountRoot(mountinfo, mount string) (root string, ok bool) {
	for line := range strings.Lines(mountinfo) {
		pre, post, found := strings.Cut(line, " - ")
		f := strings.Fields(pre)
		if !found || len(f) < 6 || unescape(f[4]) != mount {
			continue
		}
		root, ok = "", false // whatever was mounted there earlier is hidden
		if strings.HasPrefix(post, "cgroup2 ") {
			root, ok = unescape(f[3]), true
		}
	}
	return root, ok
}

// unescape undoes mountinfo's octal escapes of space, tab, newline and backslash.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
