package sys

import (
	"errors"

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
// identity, also those that OpenVerified refuses to open. stat is the zero value when Absent. An error
// means unknown.
func Observe(id Identity) (p Presence, stat Stat, err error) {
	boot, err := BootID()
	if err != nil {
		return 0, Stat{}, err
	}
	if id.BootID != boot {
		return Absent, Stat{}, nil
	}
	fd, err := openPidfd(id.PID)
	if err == nil {
		defer unix.Close(fd)
		if err = verify(fd, id); err == nil {
			stat, err = statBehind(fd, id.PID)
		}
	}
	switch {
	case errors.Is(err, ErrGone), errors.Is(err, ErrReused):
		return Absent, Stat{}, nil
	case err != nil:
		return 0, Stat{}, err
	case stat.StartTicks != id.StartTicks: // reaped and reused between the two reads
		return Absent, Stat{}, nil
	case stat.Zombie():
		return Zombie, stat, nil
	}
	return Alive, stat, nil
}
