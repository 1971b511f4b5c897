package systemdtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// kept are the units that a box's boot consists of. Whatever else the
// machine's packages have hooked into a target stays out: a box shall be the
// same on every machine.
var kept = []string{
	"dbus.service", "dbus.socket", "systemd-journald.service", "systemd-journald.socket",
	"systemd-journald-dev-log.socket", "systemd-journal-flush.service", "systemd-sysusers.service",
	"systemd-tmpfiles-setup.service", "systemd-user-sessions.service",
}

// masked are units that something pulls in by name and that a box cannot run.
var masked = []string{
	"systemd-logind.service", "dbus-org.freedesktop.login1.service", "systemd-udevd.service",
	"systemd-udevd-control.socket", "systemd-udevd-kernel.socket", "systemd-remount-fs.service",
	"systemd-machine-id-commit.service", "systemd-update-utmp.service", "systemd-tmpfiles-setup-dev.service",
	"systemd-random-seed.service", "systemd-journald-audit.socket",
}

// furnish makes a quiet host of a copy of the machine's root, at its first boot:
// none of the machine's own units, an id of its own, a journal that is kept and
// drops nothing.
func (p *plan) furnish(root string) error {
	done := filepath.Join(root, "etc/berth-box")
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	for _, path := range []string{"etc/systemd/system", "etc/systemd/system.conf.d", "etc/systemd/journald.conf.d", "var/log/journal", "var/lib/systemd"} {
		if err := os.RemoveAll(filepath.Join(root, path)); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(root, path), 0o755); err != nil {
			return err
		}
	}
	if err := silence(root); err != nil {
		return err
	}
	_ = os.Remove(filepath.Join(root, "var/lib/dbus/machine-id")) // often a link to the other
	files := map[string]string{
		"etc/machine-id": p.MachineID + "\n",
		"etc/hostname":   p.Name + "\n",
		"etc/fstab":      "",
		"etc/hosts":      "127.0.0.1 localhost " + p.Name + "\n::1 localhost\n",
		"etc/systemd/system.conf.d/box.conf": "[Manager]\nDefaultTimeoutStopSec=30s\nShowStatus=no\nLogTarget=journal\n" +
			"StatusUnitFormat=name\n",
		"etc/systemd/journald.conf.d/box.conf": "[Journal]\nStorage=persistent\nSystemMaxUse=500M\nReadKMsg=no\nAudit=no\n",
		"etc/berth-box":                        "",
	}
	for path, text := range files {
		full := filepath.Join(root, path)
		_ = os.Remove(full) // it may be a link out of the box
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			return fmt.Errorf("furnishing a box: %w", err)
		}
	}
	return nil
}

// silence takes the machine's own units and generators out of the boot.
func silence(root string) error {
	wants, err := filepath.Glob(filepath.Join(root, "usr/lib/systemd/system/*.wants/*"))
	if err != nil {
		return err
	}
	for _, path := range wants {
		if !slices.Contains(kept, filepath.Base(path)) {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	units := filepath.Join(root, "etc/systemd/system")
	for _, name := range masked {
		if err := os.Symlink("/dev/null", filepath.Join(units, name)); err != nil {
			return err
		}
	}
	if err := os.Symlink("/usr/lib/systemd/system/multi-user.target", filepath.Join(units, "default.target")); err != nil {
		return err
	}
	generators, err := filepath.Glob(filepath.Join(root, "usr/lib/systemd/system-generators/*"))
	if err != nil {
		return err
	}
	for _, path := range generators {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}
