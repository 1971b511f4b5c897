// Package smoke has the test of the built packages: they are installed on a
// host with a booted systemd, run sessions, are upgraded under them, removed
// and purged. make test-systemd builds the packages and runs it.
package smoke
