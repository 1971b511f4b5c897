package host

import (
	"os"
	"strconv"
	"strings"

	"github.com/berthd/berth/plugins/sandbox/serve"
)

// searchPath is a provider's PATH unless its configuration sets one.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// passed are the names of the daemon's environment that its plugins get, too.
// None of them can hold a secret or a way to talk to the service manager.
var passed = []string{"LANG", "LC_ALL", "TZ"}

// reserved reports whether configuration may not set name: berth's and
// go-plugin's own, and those with which a process would speak to the service
// manager in the daemon's name (sd_notify(3), sd_listen_fds(3)).
func reserved(name string) bool {
	for _, prefix := range []string{"BERTH_", "PLUGIN_", "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "FDSTORE", "CREDENTIALS_DIRECTORY"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// environment builds what a provider process starts with. Nothing is
// inherited but the passed names; handshake is what go-plugin adds.
func environment(o *Options, c Config, handshake []string) []string {
	env := []string{"PATH=" + searchPath}
	for _, name := range passed {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	env = append(env, c.Env...)
	env = append(env,
		serve.EnvHost+"="+o.HostID,
		serve.EnvProvider+"="+c.Kind,
		serve.EnvDaemonUID+"="+strconv.Itoa(os.Geteuid()),
		serve.EnvControllers+"="+strings.Join(o.Controllers, ","),
	)
	return append(env, handshake...)
}
