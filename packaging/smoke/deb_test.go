package smoke

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/systemd/systemdtest"
)

// live is how many sessions run while the package is upgraded.
const live = 20

// TestDeb is the life of the package on one host; each step builds on the ones
// before it.
func TestDeb(t *testing.T) {
	systemdtest.Inside(t)
	older, newer := built(t, "old/*.deb"), built(t, "new/*.deb")
	for _, step := range []struct {
		name string
		run  func(t *testing.T, older, newer string)
	}{
		{"install", install},
		{"session", runSession},
		{"upgrade", upgrade},
		{"badConfiguration", badConfiguration},
		{"rollBack", rollBack},
		{"stayStopped", stayStopped},
		{"refuseRemoval", refuseRemoval},
		{"remove", remove},
		{"purgeKeepsWork", purgeKeepsWork},
		{"purge", purge},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, older, newer) }) {
			t.Fatalf("the later steps need this one\n%s", sh(t, "journalctl -b --no-pager | tail -n 60"))
		}
	}
}

// small makes berth content with the few bytes that a test host's disk has.
const small = `[sessions]
default_owner = "nobody"
reserve_bytes = 1048576
reserve_inodes = 10
[capacity]
low_bytes = 1048576
low_percent = 1.0
low_inode_percent = 1.0
state_low_bytes = 1048576
`

// counting is what the sessions do.
const counting = "i=0; while i=$((i+1)); do echo $i; sleep 0.2; done"

func install(t *testing.T, older, _ string) {
	// Images for containers forbid packages to start anything; a host does not.
	// The index of manual pages takes longer than all the rest.
	sh(t, "rm -f /usr/sbin/policy-rc.d /var/lib/man-db/auto-update")
	sh(t, "dpkg -i "+older)
	waitReady(t)
	for _, check := range []struct{ script, want string }{
		{"systemctl is-active berthd.service", "active"},
		{"systemctl is-enabled berthd.service", "enabled"},
		{"systemctl is-active berthd.socket", "active"},
		{"systemctl is-enabled berthd.socket", "enabled"},
		{"systemctl is-system-running", "running"},
		{"stat -c '%U %G %a' /run/berth/berth.sock", "root berth 660"},
		{"stat -c '%U %a' /var/lib/berth", "root 711"},
		{"berthctl version | grep -c ' " + version(t, older) + ",'", "2"}, // berthctl's and berthd's
		{"dpkg --verify berth", ""},
		{"dpkg-query -W -f '${Status}' berth", "install ok installed"},
	} {
		if got, err := try(check.script); err != nil || got != check.want {
			t.Errorf("%s: %q, %v; want %q", check.script, got, err, check.want)
		}
	}
	sh(t, `journalctl --list-catalog $(sed -n 's/^-- \([0-9a-f]\{32\}\)$/\1/p' /usr/lib/systemd/catalog/berth.catalog)`)
	if err := os.WriteFile("/etc/berth/berthd.toml.d/small.toml", []byte(small), 0o644); err != nil {
		t.Fatal(err)
	}
	// An operator's own line, which no upgrade may lose.
	sh(t, "echo '# ours' >>/etc/berth/berthd.toml; systemctl restart berthd")
	waitReady(t)
}

// version is the upstream version of a package file.
func version(t *testing.T, deb string) string {
	t.Helper()
	return strings.TrimSuffix(sh(t, "dpkg-deb -f "+deb+" Version"), "-1")
}

func runSession(t *testing.T, _, _ string) {
	out, err := try("berthctl run --session hello -- sh -c 'echo hello from $(id -un); touch kept; exit 3'")
	if err == nil || !strings.Contains(out, "hello from nobody") || !strings.Contains(err.Error(), "exit status 3") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func upgrade(t *testing.T, _, newer string) {
	for i := range live {
		sh(t, fmt.Sprintf("berthctl start live-%d -- sh -c '%s'", i, counting))
	}
	before, daemon := sessions(t), daemonPID(t)
	out := sh(t, "dpkg -i "+newer)
	waitReady(t)
	if now := daemonPID(t); now == daemon {
		t.Fatalf("the daemon was not restarted\n%s", out)
	}
	if got := sh(t, "berthctl version"); strings.Count(got, " "+version(t, newer)+",") != 2 {
		t.Errorf("berthctl version: %s", got)
	}
	same(t, before)
	if got := sh(t, "tail -n 1 /etc/berth/berthd.toml"); got != "# ours" {
		t.Errorf("the configuration was replaced: %q", got)
	}
	if got := sh(t, "journalctl -b --no-pager | grep -ci 'left-over process' || :"); got != "0" {
		t.Errorf("%s left-over processes are reported", got)
	}
}

// same checks that every session that lived before lives, unchanged and known,
// goes on printing and has lost nothing of it.
func same(t *testing.T, before map[string]rpc.Session) {
	t.Helper()
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(before)), func(name string) bool { return !strings.HasPrefix(name, "live-") })
	wait(t, "all sessions to be adopted unchanged", func() (bool, string) {
		now := sessions(t)
		for _, name := range names {
			if is, was := now[name], before[name]; is.Link != "up" || identity(is) != identity(was) {
				return false, fmt.Sprintf("%s: %s, link %s; was %s", name, identity(is), is.Link, identity(was))
			}
		}
		return true, ""
	})
	printed := map[string]int{}
	for _, name := range names {
		printed[name] = lines(t, name)
	}
	for _, name := range names {
		wait(t, name+" to go on", func() (bool, string) { now := lines(t, name); return now > printed[name], fmt.Sprint(now) })
	}
}

// badConfiguration: a package whose daemon would not take the configuration is
// installed, and leaves the daemon that runs alone.
func badConfiguration(t *testing.T, _, newer string) {
	before, daemon := sessions(t), daemonPID(t)
	sh(t, "echo 'no_such_key = 1' >/etc/berth/berthd.toml.d/bad.toml")
	out := sh(t, "dpkg -i "+newer)
	if daemonPID(t) != daemon || !strings.Contains(out, "no_such_key") || !strings.Contains(out, "left alone") {
		t.Errorf("daemon %s, was %s\n%s", daemonPID(t), daemon, out)
	}
	sh(t, "rm /etc/berth/berthd.toml.d/bad.toml")
	same(t, before)
}

// rollBack: the older package takes over in the same way.
func rollBack(t *testing.T, older, _ string) {
	before, daemon := sessions(t), daemonPID(t)
	sh(t, "dpkg -i "+older)
	waitReady(t)
	if daemonPID(t) == daemon {
		t.Error("the daemon was not restarted")
	}
	same(t, before)
}

// stayStopped: a daemon that an operator has stopped is not started.
func stayStopped(t *testing.T, _, newer string) {
	before := sessions(t)
	sh(t, "systemctl stop berthd.socket berthd.service; dpkg -i "+newer)
	if got, _ := try("systemctl is-active berthd.service"); got != "inactive" {
		t.Errorf("the daemon is %s", got)
	}
	sh(t, "systemctl start berthd.socket berthd.service")
	waitReady(t)
	same(t, before)
}

// refuseRemoval: as long as sessions live, with a daemon and without one.
func refuseRemoval(t *testing.T, _, _ string) {
	before, daemon := sessions(t), daemonPID(t)
	out, err := try("dpkg -r berth")
	if err == nil || !strings.Contains(out, "session live-7: wrapper") || !strings.Contains(out, "berthctl drain --kill") {
		t.Fatalf("%v\n%s", err, out)
	}
	if daemonPID(t) != daemon {
		t.Error("the daemon was touched")
	}
	same(t, before)
	sh(t, "systemctl stop berthd.socket berthd.service")
	if out, err := try("dpkg -r berth"); err == nil {
		t.Fatalf("removed without a daemon\n%s", out)
	}
	sh(t, "systemctl start berthd.socket berthd.service")
	waitReady(t)
	same(t, before)
	if got := sh(t, "dpkg-query -W -f '${db:Status-Status}' berth"); got != "installed" {
		t.Errorf("the package is %q", got)
	}
}

func remove(t *testing.T, _, _ string) {
	sh(t, "for s in $(berthctl list -q); do berthctl stop --wait $s; done")
	sh(t, "dpkg -r berth")
	for _, gone := range []string{
		"/usr/sbin/berthd", "/usr/bin/berthctl", "/usr/libexec/berth", "/usr/lib/systemd/system/berthd.service",
		"/usr/share/man/man8/berthd.8.gz", "/run/berth",
	} {
		if _, err := os.Lstat(gone); err == nil {
			t.Errorf("%s is left", gone)
		}
	}
	if out, _ := try("ps -e -o pid=,args= | grep '[b]erth-\\|[b]erthd'"); out != "" {
		t.Errorf("processes are left:\n%s", out)
	}
	sh(t, "test -e /var/lib/berth/workspaces/hello/kept; test -e /etc/berth/berthd.toml")
}

// purgeKeepsWork: what an agent has made is not deleted by a package manager.
// The package that is installed next goes on with it.
func purgeKeepsWork(t *testing.T, _, newer string) {
	out := sh(t, "dpkg -P berth")
	if !strings.Contains(out, "/var/lib/berth is kept") {
		t.Error(out)
	}
	sh(t, "test -e /var/lib/berth/workspaces/hello/kept; ! test -e /etc/berth/berthd.toml")
	sh(t, "! ls /etc/systemd/system/*.wants/berthd.* 2>/dev/null")
	sh(t, "dpkg -i "+newer)
	waitReady(t)
	if all := sessions(t); len(all) != live+1 || all["live-3"].NextGeneration != 2 {
		t.Errorf("%d sessions; live-3: %+v", len(all), all["live-3"])
	}
}

// purge: with no workspace left, nothing of the package is.
func purge(t *testing.T, _, _ string) {
	sh(t, "for s in $(berthctl list -q); do berthctl delete --discard --wait $s; done")
	wait(t, "the trash to be emptied", func() (bool, string) {
		out, _ := try("find /var/lib/berth/trash /var/lib/berth/workspaces -mindepth 1")
		return out == "", out
	})
	sh(t, "rm /etc/berth/berthd.toml.d/small.toml; dpkg -P berth")
	if out, _ := try("find /etc /usr /var/lib /run -xdev -name '*berth*' -not -path /etc/berth-box"); out != "" {
		t.Errorf("left:\n%s", out)
	}
	if got := sh(t, "systemctl is-system-running"); got != "running" {
		t.Errorf("the system is %s", got)
	}
}
