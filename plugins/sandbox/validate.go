package sandbox

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Limits of what may cross the plugin boundary. They keep one record of the
// daemon's journal and one execve(2) small, and a hostile peer bounded.
const (
	// MaxHandleBytes bounds a Handle.
	MaxHandleBytes = 255
	// MaxDetailBytes bounds Observation.Detail, ReleaseResult.Detail and
	// Error.Message.
	MaxDetailBytes = 2048
	// MaxStringBytes bounds one argument or environment entry
	// (MAX_ARG_STRLEN, 32 pages, execve(2)), without its closing NUL.
	MaxStringBytes = 32*4096 - 1
)

// markers are the environment names that only the daemon may set: they say
// whose process it is, so that a request that set one could pass for another
// session.
var markers = []string{"BERTH_HOST", "BERTH_SESSION", "BERTH_INSTANCE", "BERTH_GENERATION"}

// rlimits are the names that Rlimit.Name may have (setrlimit(2)).
var rlimits = []string{
	"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice",
	"nofile", "nproc", "rss", "rtprio", "rttime", "sigpending", "stack",
}

// reasons is the closed set of Reason.
var reasons = []Reason{
	NotConfigured, AuthFailed, RuntimeNotRunning, CreationFailed, CreationUnsettled,
	ConfigurationDrift, InfrastructureFailed, DeletedDuringWork, MaxDuration,
	CapabilityUnavailable, InvalidRequest,
}

// Known reports whether r is in the closed set.
func (r Reason) Known() bool { return slices.Contains(reasons, r) }

// Validate reports whether h has the form of a handle. Its error is an *Error
// with InvalidRequest.
func (h Handle) Validate() error {
	if h == "" || len(h) > MaxHandleBytes {
		return invalid("a handle has 1 to %d bytes, this one %d", MaxHandleBytes, len(h))
	}
	if i := strings.IndexFunc(string(h), notHandle); i >= 0 {
		return invalid("handle %q holds more than [A-Za-z0-9_.-]", string(h))
	}
	if h == "." || h == ".." {
		return invalid("handle %q is no name", string(h))
	}
	return nil
}

func notHandle(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	}
	return r != '_' && r != '.' && r != '-'
}

// Validate reports whether r can be served by any provider at all: absolute
// clean paths, a command, no NUL bytes, well-formed environment entries that
// are not the daemon's own. Its error is an *Error with InvalidRequest.
func (r PrepareRequest) Validate() error {
	if err := r.Handle.Validate(); err != nil {
		return err
	}
	if r.Session == "" || r.Generation == 0 {
		return invalid("a request names its session and a generation above 0")
	}
	if err := checkPath("workspace", r.Workspace); err != nil {
		return err
	}
	if err := checkPath("home", r.Home); err != nil {
		return err
	}
	if err := checkArgv(r.Command); err != nil {
		return err
	}
	return checkEnv(r.Env)
}

// Validate reports whether a wrapper could apply r: contract version, argv,
// environment, directory, resource limits by known names, umask of permission
// bits only. The daemon calls it on whatever a provider answered.
func (r Recipe) Validate() error {
	if r.Version != Version {
		return invalid("recipe version %d, this daemon knows %d", r.Version, Version)
	}
	if err := checkArgv(r.Argv); err != nil {
		return err
	}
	if err := checkEnv(r.Env); err != nil {
		return err
	}
	if err := checkPath("directory", r.Dir); err != nil {
		return err
	}
	if r.Umask > 0o777 {
		return invalid("umask %#o holds more than permission bits", r.Umask)
	}
	for _, l := range r.Rlimits {
		if !slices.Contains(rlimits, l.Name) {
			return invalid("resource limit %q is unknown", l.Name)
		}
		if l.Soft > l.Hard {
			return invalid("resource limit %q: soft %d above hard %d", l.Name, l.Soft, l.Hard)
		}
	}
	return nil
}

// Validate reports whether o is an answer at all: the zero Observation is not.
func (o Observation) Validate() error {
	switch o.Presence {
	case Absent, Present, Unknown:
	default:
		return invalid("presence %q is unknown", string(o.Presence))
	}
	for _, p := range o.Cgroups {
		if err := checkPath("cgroup", p); err != nil {
			return err
		}
	}
	return nil
}

func checkPath(what, p string) error {
	if strings.IndexByte(p, 0) >= 0 {
		return invalid("%s %q holds a NUL byte", what, p)
	}
	if !filepath.IsAbs(p) || filepath.Clean(p) != p {
		return invalid("%s %q is not an absolute path in its shortest form", what, p)
	}
	return nil
}

func checkArgv(argv []string) error {
	if len(argv) == 0 || argv[0] == "" {
		return invalid("the command is empty")
	}
	for i, a := range argv {
		if err := checkString(fmt.Sprintf("argument %d", i), a); err != nil {
			return err
		}
	}
	return nil
}

// checkEnv refuses what execve(2) would pass on but programs would misread,
// and the daemon's own markers. Values are never quoted in the error: they may
// be secret.
func checkEnv(env []string) error {
	for i, e := range env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			return invalid("environment entry %d is not NAME=value", i)
		}
		if slices.Contains(markers, name) {
			return invalid("environment entry %s is the daemon's own", name)
		}
		if err := checkString("environment entry "+fmt.Sprintf("%q", name), e); err != nil {
			return err
		}
	}
	return nil
}

func checkString(what, s string) error {
	if strings.IndexByte(s, 0) >= 0 {
		return invalid("%s holds a NUL byte", what)
	}
	if len(s) > MaxStringBytes {
		return invalid("%s has %d bytes, at most %d can be passed", what, len(s), MaxStringBytes)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return &Error{Reason: InvalidRequest, Message: fmt.Sprintf(format, args...)}
}
