package spawn

import (
	"fmt"
	"syscall"
)

// Ending is how a process ended.
type Ending uint8

// Endings. Zero is Unknown: nobody could say, never "exit code 0".
const (
	Unknown Ending = iota
	Exited
	Signalled
)

// Status is the end of a process as the kernel tells it.
type Status struct {
	Ending Ending
	Code   int            // of Exited, 0 to 255
	Signal syscall.Signal // of Signalled
	Core   bool           // of Signalled: memory was dumped
}

func statusOf(w syscall.WaitStatus) Status {
	switch {
	case w.Exited():
		return Status{Ending: Exited, Code: w.ExitStatus()}
	case w.Signaled():
		return Status{Ending: Signalled, Signal: w.Signal(), Core: w.CoreDump()}
	}
	return Status{}
}

// String is for people: "exit code 3", "signal killed", "unknown".
func (s Status) String() string {
	switch s.Ending {
	case Exited:
		return fmt.Sprintf("exit code %d", s.Code)
	case Signalled:
		return "signal " + s.Signal.String()
	}
	return "unknown"
}
