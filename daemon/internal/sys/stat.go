package sys

import (
	"bytes"
	"fmt"
	"strconv"
)

// Stat is what berth uses of /proc/PID/stat, see proc_pid_stat(5).
type Stat struct {
	PID        int
	Comm       string // up to 15 bytes, any byte but NUL: may hold spaces, ')' and newlines
	State      byte   // R S D T t Z X I …
	PPID       int
	Flags      uint64 // PF_* of include/linux/sched.h
	StartTicks uint64 // field 22, clock ticks (1/100 s on every port of Linux) since boot
}

// Bits of Stat.Flags, include/linux/sched.h. They have not moved since 2.6, but are not promised either,
// so nothing irreversible hangs on them.
const (
	FlagExiting    = 0x4  // PF_EXITING: getting shut down
	FlagForkNoExec = 0x40 // PF_FORKNOEXEC: forked but never executed a program
)

// Zombie reports whether the process has exited and only its record remains.
func (s Stat) Zombie() bool { return s.State == 'Z' || s.State == 'X' }

// ParseStat decodes the content of /proc/PID/stat. The command is delimited by the first '(' and the
// LAST ')', because it can hold either.
func ParseStat(b []byte) (Stat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return Stat{}, fmt.Errorf("parsing a process's stat: no command in parentheses in %d bytes", len(b))
	}
	f := bytes.Fields(b[end+1:])
	const first, need = 3, 22 // f[0] is field 3
	if len(f) < need-first+1 || len(f[0]) != 1 {
		return Stat{}, fmt.Errorf("parsing a process's stat: %d fields after the command", len(f))
	}
	s := Stat{Comm: string(b[open+1 : end]), State: f[0][0]}
	var err error
	if s.PID, err = strconv.Atoi(string(bytes.TrimSpace(b[:open]))); err != nil || s.PID < 1 {
		return Stat{}, fmt.Errorf("parsing a process's stat: pid %q", b[:open])
	}
	if s.PPID, err = strconv.Atoi(string(f[4-first])); err != nil {
		return Stat{}, fmt.Errorf("parsing a process's stat: field 4: %w", err)
	}
	if s.Flags, err = strconv.ParseUint(string(f[9-first]), 10, 64); err != nil {
		return Stat{}, fmt.Errorf("parsing a process's stat: field 9: %w", err)
	}
	if s.StartTicks, err = strconv.ParseUint(string(f[need-first]), 10, 64); err != nil {
		return Stat{}, fmt.Errorf("parsing a process's stat: field 22: %w", err)
	}
	return s, nil
}
