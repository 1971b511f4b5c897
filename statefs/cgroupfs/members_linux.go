package cgroupfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Procs returns the pids of all processes in the leaf, nested cgroups included, sorted, never nil on
// success. It is a hint that is old when it arrives: pids fork and die meanwhile. Processes that this
// pid namespace does not show are left out; Populated counts them. A leaf without wrap or work has none.
func (l *Leaf) Procs() ([]int, error) { return l.procs(l.name) }

// WorkProcs is Procs for work alone.
func (l *Leaf) WorkProcs() ([]int, error) {
	return l.procs(l.name + "/" + workDir)
}

func (l *Leaf) procs(rel string) ([]int, error) {
	pids := []int{}
	err := l.walk(rel, func(rel string) error {
		b, err := readAt(l.tree.fd(), rel+"/cgroup.procs", make([]byte, 1024))
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil // a threaded cgroup: its processes are listed by the domain above it
		}
		if err != nil {
			return err
		}
		more, err := parseProcs(b)
		pids = append(pids, more...)
		return err
	})
	if err != nil {
		if rel != l.name && l.missing(rel, err) {
			return []int{}, nil
		}
		return nil, l.fail("listing the processes of", rel, err)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// walk calls visit for rel and everything below it, parents first. What vanishes during the walk, other
// than rel itself, is skipped.
func (l *Leaf) walk(rel string, visit func(rel string) error) error {
	if err := visit(rel); err != nil {
		return err
	}
	names, err := subdirs(l.tree.fd(), rel)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := l.walk(rel+"/"+n, visit); err != nil && !vanished(err) {
			return err
		}
	}
	return nil
}

// parseProcs decodes cgroup.procs: one pid a line, unsorted, 0 for a process that is not visible here.
func parseProcs(b []byte) ([]int, error) {
	var pids []int
	for line := range bytes.Lines(b) {
		pid, err := strconv.Atoi(string(bytes.TrimSuffix(line, []byte("\n"))))
		if err != nil || pid < 0 {
			return nil, fmt.Errorf("parsing cgroup.procs: line %q", line)
		}
		if pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// termPasses bounds how often TermWork looks for processes that were forked while it signalled. What
// outruns that is for KillWork.
const termPasses = 4

// TermWork sends SIGTERM, and SIGCONT so that stopped ones hear it, to every process in work and returns
// how many it signalled. Each is pinned by a pidfd first and must then still be listed in work: a number
// that has passed to a stranger meanwhile cannot be hit. Processes that appear while it signals get
// their turn in a few more passes. Frozen work hears it when thawed. Processes that may not be signalled
// are skipped and reported in the error, after all others had their turn.
func (l *Leaf) TermWork(ctx context.Context) (int, error) {
	signalled := map[int]bool{}
	var refused error
	for range termPasses {
		if err := ctx.Err(); err != nil {
			return len(signalled), fmt.Errorf("terminating work of %q: %w", l.name, err)
		}
		fresh, err := l.termPass(signalled)
		if err != nil && fresh == 0 {
			return len(signalled), fmt.Errorf("terminating work of %q: %w", l.name, err)
		}
		refused = err
		if fresh == 0 {
			break
		}
	}
	if refused != nil {
		return len(signalled), fmt.Errorf("terminating work of %q: %w", l.name, refused)
	}
	return len(signalled), nil
}

// pinBatch bounds the descriptors that one pass holds at a time.
const pinBatch = 256

func (l *Leaf) termPass(signalled map[int]bool) (fresh int, err error) {
	pids, err := l.WorkProcs()
	if err != nil {
		return 0, err
	}
	pids = slices.DeleteFunc(pids, func(pid int) bool { return signalled[pid] })
	var refused error
	for batch := range slices.Chunk(pids, pinBatch) {
		n, err := l.termBatch(batch, signalled)
		fresh += n
		if err != nil {
			refused = err
		}
	}
	return fresh, refused
}

func (l *Leaf) termBatch(pids []int, signalled map[int]bool) (fresh int, err error) {
	pinned := make(map[int]int, len(pids))
	defer func() {
		for _, fd := range pinned {
			unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			pinned[pid] = fd
		}
	}
	members, err := l.WorkProcs() // after the pidfds: who is listed now and is pinned has been here all the time
	if err != nil {
		return 0, err
	}
	var refused error
	for _, pid := range members {
		fd, ok := pinned[pid]
		if !ok {
			continue
		}
		switch err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); {
		case err == nil:
			_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
			signalled[pid] = true
			fresh++
		case !errors.Is(err, unix.ESRCH):
			refused = fmt.Errorf("signalling process %d: %w", pid, err)
		}
	}
	return fresh, refused
}
