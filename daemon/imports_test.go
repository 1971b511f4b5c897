package daemon

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/berthd/berth/"

// allowed lists, for each package of this module that others build on, the
// packages of this module that it may import. What is not listed may import
// nothing of ours. Tests are free.
var allowed = map[string][]string{
	"daemon/cmd/berthd":          {"daemon/internal/daemon", "systemd/notify"},
	"daemon/cmd/berth-wrap":      {"daemon/internal/wrap"},
	"daemon/cmd/berth-workspace": {"daemon/internal/workspace"},
	"daemon/internal/daemon": {
		"daemon/internal/admit", "daemon/internal/api", "daemon/internal/appraise", "daemon/internal/audit", "daemon/internal/config", "daemon/internal/discover",
		"daemon/internal/effect", "daemon/internal/engine", "daemon/internal/evidence", "daemon/internal/lease",
		"daemon/internal/keep", "daemon/internal/link", "daemon/internal/metrics", "daemon/internal/reclaim", "daemon/internal/spawn", "daemon/internal/sys", "daemon/internal/workspace", "plugins/host", "rpc",
		"statefs", "statefs/cgroupfs", "statefs/journal", "systemd/journald", "systemd/journald/native", "systemd/notify",
		"systemd/scope",
	},
	"daemon/internal/metrics": {"daemon/internal/engine", "daemon/internal/tally", "plugins/host", "rpc", "statefs/journal"},
	"daemon/internal/audit":   {"daemon/internal/engine", "statefs/record", "systemd/journald/catalog"},
	"daemon/internal/api": {
		"daemon/internal/admit", "daemon/internal/appraise", "daemon/internal/discover", "daemon/internal/engine", "daemon/internal/evidence",
		"daemon/internal/lease", "daemon/internal/link", "daemon/internal/reclaim", "daemon/internal/sys", "plugins/host", "plugins/sandbox",
		"rpc", "rpc/wire", "statefs", "statefs/journal", "statefs/record", "statefs/spool",
	},
	"daemon/internal/engine": {
		"daemon/internal/admit", "daemon/internal/evidence", "daemon/internal/lease", "daemon/internal/sys", "daemon/internal/tally",
		"rpc/wire", "statefs/cgroupfs", "statefs/failpoint", "statefs/journal", "statefs/record",
	},
	"daemon/internal/effect": {
		"daemon/internal/appraise", "daemon/internal/discover", "daemon/internal/engine", "daemon/internal/evidence", "daemon/internal/keep", "daemon/internal/link",
		"daemon/internal/spawn", "daemon/internal/sys", "daemon/internal/workspace", "plugins/sandbox", "rpc", "rpc/wire", "statefs",
		"statefs/cgroupfs", "statefs/record", "systemd/scope", "statefs/failpoint",
	},
	"daemon/internal/appraise": {"daemon/internal/workspace", "statefs", "statefs/cgroupfs"},
	"daemon/internal/reclaim": {
		"daemon/internal/admit", "daemon/internal/appraise", "daemon/internal/engine", "daemon/internal/evidence",
		"daemon/internal/workspace", "statefs",
	},
	"daemon/internal/link":       {"daemon/internal/engine", "daemon/internal/sys", "rpc/wire", "statefs/failpoint"},
	"daemon/internal/evidence":   {"daemon/internal/discover", "daemon/internal/sys", "statefs/cgroupfs"},
	"daemon/internal/discover":   {"daemon/internal/sys", "daemon/internal/tally"},
	"daemon/internal/spawn":      {"daemon/internal/sys", "statefs/failpoint"},
	"daemon/internal/keep":       {"daemon/internal/sys"},
	"daemon/internal/wrap":       {"daemon/internal/sys", "plugins/sandbox", "rpc/wire", "statefs", "statefs/cgroupfs", "statefs/spool", "systemd/journald/catalog", "systemd/journald/native"},
	"daemon/internal/daemontest": {"rpc", "rpc/client", "statefs/cgroupfs"},

	"plugins/host":                      {"plugins/sandbox", "plugins/sandbox/serve"},
	"plugins/process":                   {"plugins/sandbox"},
	"plugins/sandbox/serve":             {"plugins/sandbox", "plugins/sandbox/serve/proto"},
	"plugins/sandbox/sandboxtest":       {"plugins/host", "plugins/sandbox", "plugins/sandbox/serve"},
	"plugins/cmd/berth-sandbox-process": {"plugins/process", "plugins/sandbox", "plugins/sandbox/serve"},

	"statefs":             {"statefs/failpoint"},
	"statefs/cgroupfs":    {"statefs/failpoint"},
	"statefs/journal":     {"statefs/failpoint"},
	"statefs/statefstest": {"statefs/journal"},

	"systemd/cmd/berth-box": {"systemd/systemdtest"},
	"systemd/journald":      {"systemd/journald/catalog", "systemd/journald/native"},

	"rpc/client":           {"rpc"},
	"rpc/internal/rpctest": {"rpc"},
	"rpc/internal/cli":     {"rpc", "rpc/client", "rpc/wire", "statefs", "statefs/journal", "statefs/record", "statefs/spool"},
	"rpc/cmd/berthctl":     {"rpc/internal/cli"},
}

// TestImportDirections keeps the arrows of the map pointing one way: pure
// packages stay pure, and the wrapper stays small.
func TestImportDirections(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}|{{join .Imports " "}}`, module+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		path, imports, _ := strings.Cut(strings.TrimSpace(line), "|")
		name := strings.TrimPrefix(path, module)
		for _, imported := range strings.Fields(imports) {
			ours, ok := strings.CutPrefix(imported, module)
			if ok && !slices.Contains(allowed[name], ours) {
				t.Errorf("%s imports %s, which is not in the table", name, ours)
			}
		}
	}
}

// TestPurePackages: no clock, disk, context, logger or randomness.
func TestPurePackages(t *testing.T) {
	t.Parallel()
	pure := []string{"errors", "fmt", "time", "strconv", "strings", "math", "math/bits", "cmp", "slices"}
	for _, name := range []string{"daemon/internal/lease", "daemon/internal/admit"} {
		out, err := exec.Command("go", "list", "-f", `{{join .Imports " "}}`, module+name).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, imported := range strings.Fields(string(out)) {
			if !slices.Contains(pure, imported) {
				t.Errorf("%s imports %s", name, imported)
			}
		}
	}
}
