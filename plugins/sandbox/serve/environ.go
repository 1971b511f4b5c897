package serve

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// The environment that every provider process gets from the daemon, beside
// PATH, the locale, go-plugin's own PLUGIN_* names and what the configuration
// adds. Nothing else of the daemon's environment reaches it.
const (
	// EnvHost is the host_id: with EnvProvider the mark by which a later daemon
	// knows a process that its predecessor left behind.
	EnvHost = "BERTH_HOST"
	// EnvProvider is the kind under which the configuration names the provider.
	EnvProvider = "BERTH_PROVIDER"
	// EnvDaemonUID is the effective uid of the daemon, decimal: wrappers start
	// with it.
	EnvDaemonUID = "BERTH_DAEMON_UID"
	// EnvControllers are the resource controllers that the daemon can set on a
	// leaf's work cgroup, joined by commas, for example "cpu,memory,pids".
	EnvControllers = "BERTH_CONTROLLERS"
)

// Surroundings is what a provider is told about its daemon.
type Surroundings struct {
	Host      string
	Kind      string
	DaemonUID uint32
	// Controllers is empty when the daemon can bound nothing by cgroup.
	Controllers []string
}

// Environment reads the surroundings of this process. A missing daemon uid
// reads as this process's own; a malformed one is an error.
func Environment() (Surroundings, error) {
	s := Surroundings{
		Host: os.Getenv(EnvHost), Kind: os.Getenv(EnvProvider),
		DaemonUID:   uint32(os.Geteuid()),
		Controllers: strings.FieldsFunc(os.Getenv(EnvControllers), func(r rune) bool { return r == ',' }),
	}
	if v, ok := os.LookupEnv(EnvDaemonUID); ok {
		n, err := strconv.ParseUint(v, 10, 32)
		if err != nil {
			return Surroundings{}, fmt.Errorf("reading %s: %w", EnvDaemonUID, err)
		}
		s.DaemonUID = uint32(n)
	}
	return s, nil
}
