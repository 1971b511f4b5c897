package systemd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/systemd/systemdtest"
)

func TestMain(m *testing.M) {
	systemdtest.Init()
	os.Exit(m.Run())
}

// outside is a box that this test boots, reboots and crashes, with berth
// installed and switched on.
func outside(t *testing.T) (*systemdtest.Box, func(script string) string) {
	t.Helper()
	box := bootBox(t)
	sh := func(script string) string {
		t.Helper()
		out, err := box.Output(t.Context(), "sh", "-ec", script)
		if err != nil {
			log, _ := box.Output(context.Background(), "journalctl", "-u", "berthd", "--no-pager") // for the message
			t.Fatalf("%v\n%s", err, log)
		}
		return strings.TrimSpace(out)
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for to, from := range installed(os.Getenv("BERTH_TEST_BIN")) {
		mode := "644"
		if strings.HasPrefix(from, "/") {
			mode = "755"
		}
		sh(fmt.Sprintf("cd %q && install -D -m %s %q %q", dir, mode, from, to))
	}
	sh(fmt.Sprintf("mkdir -p /etc/berth; cat > /etc/berth/berthd.toml <<'END'\n%sEND\n", settings))
	sh("systemd-sysusers; systemd-tmpfiles --create berth.conf; systemctl daemon-reload; systemctl enable -q --now berthd.socket berthd.service")
	return box, sh
}

func bootBox(t *testing.T) *systemdtest.Box {
	t.Helper()
	if err := systemdtest.Require(); err != nil {
		t.Skip(err)
	}
	bin := os.Getenv("BERTH_TEST_BIN")
	if bin == "" {
		t.Skip("needs the programs in BERTH_TEST_BIN: make test-systemd")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	box, err := systemdtest.Boot(t.Context(), systemdtest.Options{Binds: []string{bin, dir}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Close(); err != nil {
			t.Error(err)
		}
	})
	return box
}

// ends has a session run, ends the host's life, and looks at what comes after:
// every lease is settled, nothing was started again, and the next start is of
// a higher generation.
func ends(t *testing.T, sh func(string) string, end func() error) {
	get := func() (s rpc.Session) {
		t.Helper()
		if err := json.Unmarshal([]byte(sh("berthctl get s -o json")), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	sh("berthctl start s -- sleep 1000")
	before := get()
	if before.State != "active" {
		t.Fatalf("before it is %+v", before)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	sh("systemctl start berthd.service; berthctl wait s || :") // its exit code is the agent's
	after := get()
	if after.State != "vacant" || after.NextGeneration != before.Generation+1 || after.Exit == nil || after.Exit.Generation != before.Generation {
		t.Errorf("it was %+v and is %+v, exit %+v", before, after, after.Exit)
	}
	if left := sh("pgrep -x berth-wrap || :"); left != "" {
		t.Errorf("wrappers %s were started by nobody", left)
	}
}

// TestReboot: after a reboot and after a crash of the host every session is
// settled, and none is started by itself.
func TestReboot(t *testing.T) {
	box, sh := outside(t)
	ends(t, sh, func() error { return box.Reboot(t.Context()) })
	ends(t, sh, func() error { return box.Crash(t.Context()) })
	if log := sh("journalctl -q --no-pager"); strings.Contains(log, "left-over process") {
		t.Errorf("the journal says\n%s", log)
	}
}
