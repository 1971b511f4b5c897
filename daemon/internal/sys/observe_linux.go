package sys

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Presence is what Observe saw of an identity.
type Presence uint8

// Presences. Zero is no answer.
const (
	_      Presence = iota
	Absent          // reaped, reused or of another boot: proven dead
	Zombie          // exited, not yet reaped: holds nothing but its pid
	Alive
)

// String returns the presence in lower case.
func (p Presence) String() string {
	switch p {
	case Absent:
		return "absent"
	case Zombie:
		return "zombie"
	case Alive:
		return "alive"
	}
	return "invalid"
}

// Observe tells whether the process that id names lives, without touching it. It answers for every
// identity, also those that OpenVerified refuses to open. stat is filled in for a Zombie (whose parent
// is of interest) and zero otherwise. An error means unknown.
//
// With pidfs it never looks into /proc unless the process has exited: the inode says who it is and the
// pidfd whether it runs.
func Observe(id Identity) (p Presence, stat Stat, err error) {
	boot, err := BootID()
	if err != nil {
		return 0, Stat{}, err
	}
	if id.BootID != boot {
		return Absent, Stat{}, nil
	}
	p, stat, err = observe(id)
	if errors.Is(err, ErrGone) || errors.Is(err, ErrReused) {
		return Absent, Stat{}, nil
	}
	return p, stat, err
}

func observe(id Identity) (Presence, Stat, error) {
	fd, err := openPidfd(id.PID)
	if err != nil {
		return 0, Stat{}, err
	}
	defer unix.Close(fd)
	inode, err := PidfdInode(fd)
	if err != nil {
		return 0, Stat{}, err
	}
	if inode != 0 && inode == id.PidfdInode {
		if over, err := exited(fd); err != nil {
			return 0, Stat{}, err
		} else if !over {
			return Alive, Stat{}, nil
		}
	}
	stat, err := verify(fd, id)
	if err != nil {
		return 0, Stat{}, err
	}
	if stat.Zombie() {
		return Zombie, stat, nil
	}
	return Alive, Stat{}, nil
}

// ObservePidfd tells the same by a pidfd that was opened before. It proves that
// the pidfd is of the process that id names first; ErrReused when it is of
// another, any other error when it cannot tell.
func ObservePidfd(pidfd int, id Identity) (Presence, error) {
	if err := permitted(id); err != nil {
		return 0, err
	}
	boot, err := BootID()
	if err != nil {
		return 0, err
	}
	if id.BootID != boot {
		return 0, fmt.Errorf("observing %v: of boot %s: %w", id, id.BootID, ErrReused)
	}
	inode, err := PidfdInode(pidfd)
	if err != nil {
		return 0, err
	}
	if inode == 0 || inode != id.PidfdInode { // the inode does not say who it is
		have, err := IdentityOfPidfd(pidfd)
		if err != nil {
			return 0, err
		}
		if have.PID != id.PID || have.StartTicks != id.StartTicks || id.PidfdInode != 0 && inode != 0 {
			return 0, fmt.Errorf("observing %v by a pidfd of %v: %w", id, have, ErrReused)
		}
	}
	over, err := exited(pidfd)
	if err != nil || !over {
		return Alive, err
	}
	gone, err := reaped(pidfd)
	if err != nil || !gone {
		return Zombie, err
	}
	return Absent, nil
}

// exited asks a pidfd, which is readable from its process's exit on (pidfd_open(2)).
func exited(pidfd int) (bool, error) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("polling a pidfd: %w", err)
		}
		return n > 0, nil
	}
}
