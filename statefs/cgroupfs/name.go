package cgroupfs

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	leafPrefix  = "berth-"
	genMark     = "-g"
	probePrefix = ".probe-" // no leaf begins with a dot

	// MaxNameLen is NAME_MAX of the cgroup file system, in bytes.
	MaxNameLen = 255
	maxSession = 128 // bytes, of the session id's definition
)

// LeafName returns the directory name of a session's generation: berth-SESSION-gN.
func LeafName(session string, generation uint64) string {
	return leafPrefix + session + genMark + strconv.FormatUint(generation, 10)
}

// ParseLeafName is the inverse of LeafName. ok is false for every name that LeafName does not make
// from a valid session id ([A-Za-z0-9][A-Za-z0-9_.-]{0,127}), such as a generation with leading zeros.
func ParseLeafName(name string) (session string, generation uint64, ok bool) {
	rest, ok := strings.CutPrefix(name, leafPrefix)
	if !ok {
		return "", 0, false
	}
	i := strings.LastIndex(rest, genMark)
	if i < 0 || !validSession(rest[:i]) {
		return "", 0, false
	}
	digits := rest[i+len(genMark):]
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || strconv.FormatUint(n, 10) != digits {
		return "", 0, false
	}
	return rest[:i], n, true
}

func validSession(s string) bool {
	if len(s) == 0 || len(s) > maxSession || strings.IndexByte("_.-", s[0]) >= 0 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '.' || c == '-') {
			return false
		}
	}
	return true
}

// checkName accepts one path element that a cgroup may be called. Newlines are refused by the kernel,
// because /proc/PID/cgroup is made of lines; names with a leading dot are this package's own.
func checkName(name string) error {
	if name == "" || len(name) > MaxNameLen || name[0] == '.' || strings.ContainsAny(name, "/\n\x00") {
		return fmt.Errorf("checking cgroup name %q: not a usable directory name", name)
	}
	return nil
}
