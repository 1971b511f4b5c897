// Package notify is a service's end of systemd's notification protocol: state,
// watchdog, passed sockets, credentials, see sd_notify(3), sd_listen_fds(3),
// sd_watchdog_enabled(3).
//
// Take moves everything that the manager has put into the environment out of
// it, so that no child can speak in the service's name. Without a manager all
// of it is empty and every call does nothing.
package notify

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Environment is what a service manager has passed.
type Environment struct {
	Manager *Manager
	// Watchdog is the time within which the manager wants to hear
	// Manager.Alive, again and again; 0 = it does not.
	Watchdog time.Duration
	// Credentials is the directory of the service's credentials; "" = none.
	Credentials string

	files map[string][]*os.File
}

// Take reads the environment variables and removes them. Call it once, before
// anything else is started. An error is about a value that makes no sense; the
// rest counts.
func Take() (*Environment, error) {
	e := &Environment{
		Manager:     &Manager{address: os.Getenv("NOTIFY_SOCKET")},
		Credentials: os.Getenv("CREDENTIALS_DIRECTORY"),
		files:       map[string][]*os.File{},
	}
	// Both answer "none" if the variables are meant for another process, as
	// where a shell lies in between.
	for _, f := range activation.Files(true) {
		e.files[f.Name()] = append(e.files[f.Name()], f)
	}
	var err error
	if e.Watchdog, err = daemon.SdWatchdogEnabled(true); err != nil {
		err = fmt.Errorf("reading the watchdog's interval: %w", err)
	}
	for _, name := range []string{"NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY", "FDSTORE", "MAINPID", "MANAGERPID"} {
		_ = os.Unsetenv(name) // cannot fail, see its source
	}
	return e, err
}

// Listener returns the stream socket that was passed under a name
// (FileDescriptorName=), nil if none was. It is the caller's from then on.
// Closing it leaves the socket's path alone: that is the manager's.
func (e *Environment) Listener(name string) (net.Listener, error) {
	if len(e.files[name]) == 0 {
		return nil, nil
	}
	f := e.files[name][0]
	e.files[name] = e.files[name][1:]
	defer f.Close() // FileListener duplicates it
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("using the passed socket %q: %w", name, err)
	}
	return l, nil
}

// Stored returns the descriptors that were passed under names that begin with
// prefix, one for each name: what an earlier run of the service has left with
// the manager. They are the caller's from then on.
func (e *Environment) Stored(prefix string) map[string]*os.File {
	stored := map[string]*os.File{}
	for name, files := range e.files {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		stored[name] = files[0]
		for _, f := range files[1:] {
			_ = f.Close() // nothing was written
		}
		delete(e.files, name)
	}
	return stored
}

// Close closes what was passed and nobody has asked for, and returns its names.
func (e *Environment) Close() (unused []string) {
	for name, files := range e.files {
		for _, f := range files {
			unused = append(unused, name)
			_ = f.Close() // nothing was written
		}
	}
	e.files = nil
	return unused
}

// Manager is the service manager that waits for this process's messages. Its
// methods may be called by several goroutines. An error means that the manager
// did not get the message, which is no reason to stop working.
type Manager struct{ address string }

// Present reports whether there is one.
func (m *Manager) Present() bool { return m.address != "" }

// Ready says that the service answers, and what it does, in one line.
func (m *Manager) Ready(status string) error {
	return m.send(daemon.SdNotifyReady + "\nSTATUS=" + status)
}

// Status says what the service does, in one line.
func (m *Manager) Status(status string) error { return m.send("STATUS=" + status) }

// Stopping says that the service has begun to end.
func (m *Manager) Stopping() error { return m.send(daemon.SdNotifyStopping) }

// Reloading says that the service reads its configuration; Ready ends that.
func (m *Manager) Reloading() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("reading the clock: %w", err)
	}
	return m.send(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000))
}

// Store has the manager keep a descriptor under a name while the service is
// away, and pass it to the next run (FileDescriptorStoreMax=). It does not watch
// it. The manager says nothing when it does not take it.
func (m *Manager) Store(name string, fd int) error {
	return m.send("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, fd)
}

// Unstore has the manager close what it keeps under a name.
func (m *Manager) Unstore(name string) error { return m.send("FDSTOREREMOVE=1\nFDNAME=" + name) }

// Alive answers the watchdog.
func (m *Manager) Alive() error { return m.send(daemon.SdNotifyWatchdog) }

// Extend asks for more time for what is under way, counted from now.
func (m *Manager) Extend(d time.Duration) error {
	return m.send(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", d.Microseconds()))
}

// send sends one message. The manager takes it only from the main process
// (NotifyAccess=main), which this is. The send does not wait: a manager that
// does not read must not hold the service up.
func (m *Manager) send(message string, passed ...int) error {
	if !m.Present() {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("telling the service manager: %w", err)
	}
	defer unix.Close(fd)
	var rights []byte
	if len(passed) > 0 {
		rights = unix.UnixRights(passed...)
	}
	if err := unix.Sendmsg(fd, []byte(message), rights, &unix.SockaddrUnix{Name: m.address}, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("telling the service manager: %w", err)
	}
	return nil
}
