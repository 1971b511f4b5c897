package cgroupfs

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limits are the bounds on work. A zero field sets nothing.
type Limits struct {
	PidsMax         uint64 // processes and threads
	MemoryMaxBytes  uint64 // hard; beyond it the kernel kills
	MemoryHighBytes uint64 // soft; beyond it the kernel slows down and reclaims
	SwapMaxBytes    *uint64
	CPUMax          time.Duration // CPU time per CPUPeriod; 2×CPUPeriod is two processors
	CPUWeight       uint64        // 1 to 10,000, the kernel's default is 100
	OOMGroup        bool          // out of memory kills all of work instead of one process
}

// CPUPeriod is the period that CPUMax is measured in, the kernel's default.
const CPUPeriod = 100 * time.Millisecond

// Unapplied is one limit that could not be set.
type Unapplied struct {
	File string // the control file, such as pids.max
	Err  error
}

// SetLimits sets the limits on work and returns those that could not be set, nil when all were. A
// controller that a hybrid host keeps elsewhere shows as a missing file (fs.ErrNotExist).
func (l *Leaf) SetLimits(limits Limits) []Unapplied {
	var failed []Unapplied
	for _, f := range limits.files() {
		err := writeAt(l.tree.fd(), l.name+"/"+workDir+"/"+f.name, f.value)
		if err != nil {
			failed = append(failed, Unapplied{f.name, fmt.Errorf("setting %s of %q to %s: %w", f.name, l.name, f.value, err)})
		}
	}
	return failed
}

type controlFile struct{ name, value string }

func (m Limits) files() []controlFile {
	var files []controlFile
	num := func(name string, v uint64) {
		if v != 0 {
			files = append(files, controlFile{name, strconv.FormatUint(v, 10)})
		}
	}
	num("pids.max", m.PidsMax)
	num("memory.high", m.MemoryHighBytes)
	num("memory.max", m.MemoryMaxBytes)
	if m.SwapMaxBytes != nil {
		files = append(files, controlFile{"memory.swap.max", strconv.FormatUint(*m.SwapMaxBytes, 10)})
	}
	if m.CPUMax != 0 {
		files = append(files, controlFile{"cpu.max", fmt.Sprintf("%d %d", m.CPUMax.Microseconds(), CPUPeriod.Microseconds())})
	}
	num("cpu.weight", m.CPUWeight)
	if m.OOMGroup {
		files = append(files, controlFile{"memory.oom.group", "1"})
	}
	return files
}

// WorkOOMKills returns how many processes in work the kernel has killed for want of memory. ok is false
// where the memory controller is not in this hierarchy.
func (l *Leaf) WorkOOMKills() (kills uint64, ok bool, err error) {
	rel := l.name + "/" + workDir
	var buf [512]byte
	b, err := readAt(l.tree.fd(), rel+"/memory.events", buf[:])
	if vanished(err) {
		_, err = l.events(rel)
		return 0, false, err
	}
	if err != nil {
		return 0, false, l.fail("reading", rel, err)
	}
	for line := range bytes.Lines(b) {
		if v, found := strings.CutPrefix(string(bytes.TrimSpace(line)), "oom_kill "); found {
			kills, err = strconv.ParseUint(v, 10, 64)
			return kills, err == nil, err
		}
	}
	return 0, false, fmt.Errorf("reading memory.events of %q: no oom_kill line", rel)
}
