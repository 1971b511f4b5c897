package discover

import (
	"bytes"
	"fmt"
	"strings"
)

// Names of the environment markers that every wrapper and every agent carries. Ids only, never a secret:
// any process of the same uid can read them.
const (
	EnvHost       = "BERTH_HOST"       // 32 hex characters
	EnvSession    = "BERTH_SESSION"    // [A-Za-z0-9][A-Za-z0-9_.-]{0,127}
	EnvInstance   = "BERTH_INSTANCE"   // 32 hex characters
	EnvGeneration = "BERTH_GENERATION" // decimal, from 1
)

const envPrefix = "BERTH_"

// LegacyRule finds wrappers of older software: by an environment variable, or by a flag in the argument
// vector ("--flag VALUE" or "--flag=VALUE"). Its value is taken for the session id if it can be one.
// Exactly one of Env and ArgvFlag is set.
type LegacyRule struct {
	Name     string // the operator's word for it, reported with each hit
	Env      string
	ArgvFlag string
}

func (l LegacyRule) check() error {
	switch {
	case l.Name == "":
		return fmt.Errorf("legacy rule for %q: it has no name", l.Env+l.ArgvFlag)
	case (l.Env == "") == (l.ArgvFlag == ""):
		return fmt.Errorf("legacy rule %q: needs an environment variable or an argv flag, one of them", l.Name)
	case strings.ContainsAny(l.Env, "=\x00"), strings.ContainsAny(l.ArgvFlag, "=\x00"):
		return fmt.Errorf("legacy rule %q: a name holds neither '=' nor NUL", l.Name)
	case strings.HasPrefix(l.Env, envPrefix):
		return fmt.Errorf("legacy rule %q: names that begin with %s are ours", l.Name, envPrefix)
	case l.ArgvFlag != "" && (l.ArgvFlag[0] != '-' || strings.Trim(l.ArgvFlag, "-") == ""):
		return fmt.Errorf("legacy rule %q: %q is not a flag", l.Name, l.ArgvFlag)
	}
	return nil
}

// marks are the markers of one process. The slices point into the buffer that was searched.
type marks struct {
	host, session, instance, generation []byte
	rule                                string
	legacy                              []byte // value behind rule
}

// found reports whether there is anything that makes the process worth a closer look.
func (m *marks) found() bool { return len(m.session) > 0 || m.rule != "" }

// matcher searches environments and argument vectors. It is immutable.
type matcher struct {
	host string
	env  []needle // rules by environment
	argv []needle // rules by flag
}

type needle struct {
	rule string
	text []byte // "NAME=", or the flag
}

func newMatcher(host string, rules []LegacyRule) (matcher, error) {
	m := matcher{host: host}
	for _, l := range rules {
		if err := l.check(); err != nil {
			return matcher{}, err
		}
		if l.Env != "" {
			m.env = append(m.env, needle{l.Name, []byte(l.Env + "=")})
		} else {
			m.argv = append(m.argv, needle{l.Name, []byte(l.ArgvFlag)})
		}
	}
	return m, nil
}

var markerNeedle = []byte(envPrefix)

// searchEnviron finds the markers in the content of /proc/PID/environ: entries separated by NUL, in any
// order, of any bytes. Of a name that is there twice the first counts, as for getenv(3). It allocates
// nothing.
func (m *matcher) searchEnviron(env []byte) (found marks) {
	for from := 0; ; {
		at := entry(env, from, markerNeedle)
		if at < 0 {
			break
		}
		end := at + bytes.IndexByte(env[at:], 0)
		if end < at {
			end = len(env)
		}
		found.take(env[at:end])
		from = end
	}
	for _, n := range m.env {
		if at := entry(env, 0, n.text); at >= 0 && found.rule == "" {
			v := env[at+len(n.text):]
			if end := bytes.IndexByte(v, 0); end >= 0 {
				v = v[:end]
			}
			found.rule, found.legacy = n.rule, v
		}
	}
	return found
}

// entry returns where in env[from:] an entry begins with needle, -1 when none does. The NUL before it is
// no part of what is searched for: the first byte of a needle should be a rare one.
func entry(env []byte, from int, needle []byte) int {
	for {
		i := bytes.Index(env[from:], needle)
		if i < 0 {
			return -1
		}
		if at := from + i; at == 0 || env[at-1] == 0 {
			return at
		}
		from += i + 1
	}
}

// take keeps entry, "NAME=value", if it is the first one of a marker.
func (m *marks) take(entry []byte) {
	name, value, ok := bytes.Cut(entry, []byte("="))
	if !ok {
		return
	}
	var to *[]byte
	switch string(name) {
	case EnvHost:
		to = &m.host
	case EnvSession:
		to = &m.session
	case EnvInstance:
		to = &m.instance
	case EnvGeneration:
		to = &m.generation
	default:
		return
	}
	if *to == nil {
		*to = value
	}
}

// searchArgv finds the first rule by flag in the content of /proc/PID/cmdline. It allocates nothing.
func (m *matcher) searchArgv(cmdline []byte) (rule string, value []byte) {
	_, rest, _ := bytes.Cut(cmdline, []byte{0}) // the program's name is not an argument
	for len(rest) > 0 {
		var arg []byte
		arg, rest, _ = bytes.Cut(rest, []byte{0})
		for _, n := range m.argv {
			tail, ok := bytes.CutPrefix(arg, n.text)
			if !ok {
				continue
			}
			if len(tail) == 0 {
				value, _, _ = bytes.Cut(rest, []byte{0})
				return n.rule, value
			}
			if tail[0] == '=' {
				return n.rule, tail[1:]
			}
		}
	}
	return "", nil
}

// fill turns markers into the claim that a process makes. It returns false when nothing usable is left:
// a session id that nobody can have been given is no marker.
func (m *matcher) fill(p *Proc, found *marks) bool {
	generation, pair := parseGeneration(found.generation)
	pair = pair && isHex32(found.instance)
	session := isSession(found.session)
	switch {
	case session && len(found.host) > 0 && string(found.host) != m.host:
		p.Kind = Foreign
	case session && string(found.host) == m.host && pair:
		p.Kind = Member
	case session, found.rule != "":
		p.Kind = Legacy
		pair = false
	default:
		return false
	}
	if session {
		p.Session = string(found.session)
	} else if isSession(found.legacy) {
		p.Session = string(found.legacy)
	}
	if isHex32(found.host) {
		p.Host = string(found.host)
	}
	if pair {
		p.Instance, p.Generation = string(found.instance), generation
	}
	if p.Kind == Legacy {
		p.Rule = found.rule
	}
	return true
}

func isSession(b []byte) bool {
	if len(b) == 0 || len(b) > 128 {
		return false
	}
	for i, c := range b {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return true
}

func isHex32(b []byte) bool {
	for _, c := range b {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(b) == 32
}

// parseGeneration accepts what the daemon writes and nothing else: decimal, no sign, no leading zero.
func parseGeneration(b []byte) (uint64, bool) {
	if len(b) == 0 || b[0] == '0' {
		return 0, false
	}
	return parseUint(b)
}

// parseUint is strconv.ParseUint for bytes, base 10, without the string.
func parseUint(b []byte) (n uint64, ok bool) {
	const limit = ^uint64(0)
	if len(b) == 0 {
		return 0, false
	}
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 || n > (limit-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}
