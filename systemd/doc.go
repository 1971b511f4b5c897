// Package systemd has the units that berthd is installed with, and their tests,
// which run inside a booted systemd: make test-systemd. There is no code here.
//
//	berthd.service …   the units; README.md is the operator's page about them
//	notify             the daemon's end of systemd's notification protocol
//	systemdtest        boots a systemd for tests
//	cmd/berth-box      the same for go test -exec and the shell
package systemd
