package statefs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountEntry is one line of a mountinfo file, proc_pid_mountinfo(5).
type mountEntry struct {
	id, parent int
	device     uint64 // of the file system, as unix.Mkdev
	root       string // what of the file system is mounted
	point      string // where, as the reading process sees it
}

// mountTable is one mount namespace, as far as one process in it can see.
type mountTable []mountEntry

// place is a directory by file system and path within that file system, which
// is the same in every mount namespace and under every chroot.
type place struct {
	device uint64
	path   string
}

// parseMounts parses a mountinfo file.
func parseMounts(data []byte) (mountTable, error) {
	var t mountTable
	for line := range bytes.Lines(data) {
		e, err := parseMount(string(bytes.TrimSuffix(line, []byte("\n"))))
		if err != nil {
			return nil, fmt.Errorf("parsing mountinfo line %q: %w", line, err)
		}
		t = append(t, e)
	}
	return t, nil
}

func parseMount(line string) (mountEntry, error) {
	f := strings.SplitN(line, " ", 6)
	if len(f) < 6 {
		return mountEntry{}, fmt.Errorf("%d fields", len(f))
	}
	var e mountEntry
	var err error
	if e.id, err = strconv.Atoi(f[0]); err != nil {
		return mountEntry{}, err
	}
	if e.parent, err = strconv.Atoi(f[1]); err != nil {
		return mountEntry{}, err
	}
	major, minor, _ := strings.Cut(f[2], ":")
	ma, err := strconv.ParseUint(major, 10, 32)
	if err != nil {
		return mountEntry{}, err
	}
	mi, err := strconv.ParseUint(minor, 10, 32)
	if err != nil {
		return mountEntry{}, err
	}
	e.device = unix.Mkdev(uint32(ma), uint32(mi))
	e.root, e.point = unescapeMount(f[3]), unescapeMount(f[4])
	return e, nil
}

// unescapeMount undoes the octal escapes of white space, "#" and backslash.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// readMounts reads the mountinfo file of a process ("self" or a pid).
func readMounts(process string) (mountTable, error) {
	data, err := os.ReadFile("/proc/" + process + "/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(data)
}

// find returns the mount with the given id.
func (t mountTable) find(id int) (mountEntry, bool) {
	for _, e := range t {
		if e.id == id {
			return e, true
		}
	}
	return mountEntry{}, false
}

// below returns a mount that is attached at dir or anywhere below it.
func (t mountTable) below(dir place) (mountEntry, bool) {
	byID := make(map[int]int, len(t))
	for i, e := range t {
		byID[e.id] = i
	}
	for _, e := range t {
		i, ok := byID[e.parent]
		if !ok || t[i].device != dir.device {
			continue // the namespace's root, or attached to another file system
		}
		if at, ok := t[i].within(e.point); ok && contains(dir.path, at) {
			return e, true
		}
	}
	return mountEntry{}, false
}

// within turns a path of the mount's namespace into one of its file system.
func (e mountEntry) within(name string) (string, bool) {
	if !contains(e.point, name) {
		return "", false
	}
	return path.Join(e.root, strings.TrimPrefix(name, e.point)), true
}

// contains says whether name is dir or below it; both are clean and absolute.
func contains(dir, name string) bool {
	return dir == "/" || name == dir || strings.HasPrefix(name, dir+"/")
}

// locate returns where the open directory fd is. Its mount is asked for by
// number (STATX_MNT_ID, Linux 5.8), as paths may be mounted over.
func locate(fd int, own mountTable) (place, error) {
	id, err := mountID(fd)
	if err != nil {
		return place{}, err
	}
	name, err := os.Readlink(procFD(fd))
	if err != nil {
		return place{}, err
	}
	e, ok := own.find(id)
	if !ok {
		return place{}, fmt.Errorf("mount %d of %q is not in /proc/self/mountinfo", id, name)
	}
	at, ok := e.within(name)
	if !ok {
		return place{}, fmt.Errorf("%q is not below its mount %q", name, e.point)
	}
	return place{device: e.device, path: at}, nil
}

func mountID(fd int) (int, error) {
	var stx unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &stx); err != nil {
		return 0, fmt.Errorf("asking for its mount: %w", err)
	}
	if stx.Mask&unix.STATX_MNT_ID == 0 {
		return 0, fmt.Errorf("asking for its mount: the kernel does not tell (needs Linux 5.8)")
	}
	return int(stx.Mnt_id), nil
}

// namespaceMounts is the mount table of another namespace, and a process in it.
type namespaceMounts struct {
	pid   int
	table mountTable
}

// foreignMounts reads the mount table of every other mount namespace that has
// a process which this one may look at. Namespaces of processes that it may
// not look at (other uids, for an unprivileged daemon) are left out, as are
// those without a process: nothing in them can be reached from here, so they
// can lose a mount to a deletion but nothing that is mounted.
func foreignMounts(ctx context.Context) ([]namespaceMounts, error) {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return nil, fmt.Errorf("reading mount namespaces: %w", err)
	}
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("reading mount namespaces: %w", err)
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("reading mount namespaces: %w", err)
	}
	seen := map[string]bool{own: true}
	var out []namespaceMounts
	for _, name := range names {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("reading mount namespaces: %w", context.Cause(ctx))
		}
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		ns, err := os.Readlink("/proc/" + name + "/ns/mnt")
		if err != nil || seen[ns] {
			continue
		}
		table, err := readMounts(name)
		if err != nil || len(table) == 0 {
			continue // it is ending; another process of that namespace may do
		}
		seen[ns] = true
		out = append(out, namespaceMounts{pid: pid, table: table})
	}
	return out, nil
}
