package cgroupfs

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	leafPrefix  = "berth-"
	genMark     = "-g"
	scopeSuffix = ".scope"
	probePrefix = ".probe-" // no leaf begins with a dot

	// MaxNameLen is NAME_MAX of the cgroup file system, in bytes.
	MaxNameLen = 255
	maxSession = 128 // bytes, of the session id's definition
)

// LeafName returns the directory name of a session's generation: berth-SESSION-gN.
func LeafName(session string, generation uint64) string {
	return leafPrefix + session + genMark + strconv.FormatUint(generation, 10)
}

// ScopeName returns the name that the leaf has as a unit of systemd's: berth-SESSION-gN.scope. All that a
// session id may consist of is allowed in the name of a unit (systemd.unit(5), "unit names"), in which "-"
// needs no escape: it stands for "/" only in names that are made from paths. No such name begins with what
// systemd puts a "_" in front of when it makes the directory (cg_needs_escape in its cgroup-util.c): unit
// and directory are called the same.
func ScopeName(session string, generation uint64) string {
	return LeafName(session, generation) + scopeSuffix
}

// IsScope reports whether a leaf of that name is made to be a scope. No other leaf's name ends like it:
// those end in digits.
func IsScope(leaf string) bool { return strings.HasSuffix(leaf, scopeSuffix) }

// ParseLeafName is the inverse of both LeafName and ScopeName. ok is false for every name that they do not
// make from a valid session id ([A-Za-z0-9][A-Za-z0-9_.-]{0,127}), such as a generation with leading zeros.
func ParseLeafName(name string) (session string, generation uint64, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimSuffix(name, scopeSuffix), leafPrefix)
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
