package sys

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// bootIDFile names the boot, see proc_sys_kernel(5). It is one per kernel, so a restarted container
// keeps it; that is why an epoch holds the pid namespace as well.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

var bootID = sync.OnceValues(func() (string, error) { return readBootID(bootIDFile) })

// BootID returns the kernel's boot id in its textual form (36 characters, lower case). It is read once
// per process: a boot id cannot change while a process lives.
func BootID() (string, error) { return bootID() }

func readBootID(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading the boot id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if len(id) != 36 || strings.Trim(id, "0123456789abcdef-") != "" {
		return "", fmt.Errorf("reading the boot id: %q in %s is not one", id, path)
	}
	return id, nil
}

// PIDNamespace returns the inode of the calling process's pid namespace, see namespaces(7).
func PIDNamespace() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0, fmt.Errorf("reading the pid namespace: %w", err)
	}
	return st.Ino, nil
}

// Epoch returns boot id + ":" + pid namespace inode. Two equal epochs mean that pids recorded then can
// still mean something now; a different epoch proves every process of the older one dead.
func Epoch() (string, error) {
	id, err := BootID()
	if err != nil {
		return "", err
	}
	ns, err := PIDNamespace()
	if err != nil {
		return "", err
	}
	return id + ":" + strconv.FormatUint(ns, 10), nil
}
