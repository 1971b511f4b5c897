package smoke

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berthd/berth/systemd/systemdtest"
)

// TestRPM: the rpm's scripts do the same, on a host that is not rpm's own, so
// without its dependencies. It comes after TestDeb, on the same host.
func TestRPM(t *testing.T) {
	systemdtest.Inside(t)
	older, newer := built(t, "old/*.rpm"), built(t, "new/*.rpm")
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skip("rpm is not installed")
	}
	if _, err := os.Stat("/usr/sbin/berthd"); err == nil {
		t.Fatal("the Debian package is installed")
	}
	sh(t, "mkdir -p /etc/berth/berthd.toml.d")
	if err := os.WriteFile("/etc/berth/berthd.toml.d/small.toml", []byte(small), 0o644); err != nil {
		t.Fatal(err)
	}
	sh(t, "rpm --force-debian --nodeps -i "+older)
	if got, _ := try("systemctl is-enabled berthd.service; systemctl is-active berthd.service"); got != "enabled\ninactive" {
		t.Errorf("after the installation berthd is %q", got)
	}
	sh(t, "systemctl start berthd.service")
	waitReady(t)
	for _, name := range []string{"live-0", "live-1"} {
		sh(t, "berthctl start "+name+" -- sh -c '"+counting+"'")
	}
	before, daemon := sessions(t), daemonPID(t)
	sh(t, "rpm --force-debian --nodeps -U "+newer)
	waitReady(t)
	if daemonPID(t) == daemon {
		t.Error("the daemon was not restarted")
	}
	same(t, before)
	if out, err := try("rpm --force-debian -e berth"); err == nil || !strings.Contains(out, "session live-1: wrapper") {
		t.Errorf("removal under live sessions: %v\n%s", err, out)
	}
	same(t, before)
	sh(t, "for s in live-0 live-1; do berthctl stop --wait $s; done; rpm --force-debian -e berth")
	if out, _ := try("ps -e -o pid=,args= | grep '[b]erth-\\|[b]erthd'"); out != "" {
		t.Errorf("processes are left:\n%s", out)
	}
	sh(t, "! test -e /usr/sbin/berthd; ! test -e /run/berth; test -e /var/lib/berth/workspaces/live-0; ! ls /etc/systemd/system/*.wants/berthd.* 2>/dev/null")
}
