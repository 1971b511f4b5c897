package process

import (
	"slices"
	"strings"

	"github.com/berthd/berth/plugins/sandbox"
)

// searchPath is the agent's PATH unless the request names one. It is the
// compiled-in default of Debian's login(1) for root, since agents install and
// run system tools.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment builds the agent's whole environment: defaults, then the
// request's own entries, each name once, the last one winning. Nothing comes
// from this process's environment.
func environment(req sandbox.PrepareRequest, who user) []string {
	env := []string{
		"PATH=" + searchPath, "HOME=" + req.Home, "USER=" + who.name, "LOGNAME=" + who.name,
		"SHELL=" + who.shell, "LANG=C.UTF-8",
	}
	if req.Terminal {
		env = append(env, "TERM=xterm-256color")
	}
	for _, e := range req.Env {
		name, _, _ := strings.Cut(e, "=")
		at := slices.IndexFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		if at >= 0 {
			env[at] = e
		} else {
			env = append(env, e)
		}
	}
	return env
}
