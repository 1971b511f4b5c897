package wrap

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// oomKills returns how many processes of the cgroup in dir the OOM killer has
// killed so far (memory.events, Documentation/admin-guide/cgroup-v2.rst), and
// false where the kernel does not count it: no cgroup or no memory controller.
func oomKills(dir string) (uint64, bool) {
	if dir == "" {
		return 0, false
	}
	data, err := os.ReadFile(filepath.Join(dir, "memory.events"))
	if err != nil {
		return 0, false
	}
	return parseOOMKills(data)
}

// parseOOMKills reads the oom_kill line of memory.events.
func parseOOMKills(data []byte) (uint64, bool) {
	for line := range bytes.Lines(data) {
		if v, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			n, err := strconv.ParseUint(string(bytes.TrimSpace(v)), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
