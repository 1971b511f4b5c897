package evidence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/daemon/internal/discover"
	"github.com/berthd/berth/daemon/internal/sys"
)

// askWrapper asks for the recorded wrapper process. What runs outside of the leaf is never an exact
// match, however well the record describes it; without a marker it is a stranger, and the wrapper gone.
// So it is when the record names what can be no wrapper: init, this process or its parent.
func (p *Prober) askWrapper(ctx context.Context, s *Subject) Witness {
	if pid := s.Wrapper.PID; pid <= 1 || pid == os.Getpid() || pid == os.Getppid() {
		return Witness{Name: Pidfd, At: sys.Now(), Answer: Absent, Detail: fmt.Sprintf("process %d is no wrapper", pid)}
	}
	w, asked := p.askKept(s)
	if !asked {
		w = askPidfd(s.Wrapper)
	}
	tree := p.recorded(s)
	if w.Answer != Present || tree == nil {
		return w
	}
	pid := s.Wrapper.PID
	leaf, ok, err := tree.LeafOf(pid)
	if err != nil || ok && leaf == s.leafName() {
		return w // an error: it is ending, the next look tells
	}
	proc, err := p.scanner.Look(ctx, pid)
	switch {
	case err != nil:
		w.Answer, w.Detail = Unknown, fmt.Sprintf("process %d runs outside of its leaf: %v", pid, err)
	case proc.StartTicks == s.Wrapper.StartTicks && s.claimedBy(proc) == noClaim:
		w.Answer, w.Detail = Absent, fmt.Sprintf("process %d (%s) is a stranger, in %s", pid, proc.Comm, proc.Cgroup)
	default:
		w.Answer, w.Detail = Unknown, fmt.Sprintf("process %d runs outside of its leaf, in %s", pid, proc.Cgroup)
	}
	return w
}

// askKept asks the descriptor of the wrapper that an earlier daemon has left with
// the service manager. It was open all the time, so that the pid cannot have
// changed hands. A zombie is left to askPidfd, which looks closer.
func (p *Prober) askKept(s *Subject) (Witness, bool) {
	if p.kept == nil || s.whole() {
		return Witness{}, false
	}
	w := Witness{Name: Pidfd, At: sys.Now()}
	switch presence, ok := p.kept(s.Session, s.Generation, s.Wrapper); {
	case ok && presence == sys.Alive:
		w.Answer, w.Detail = Present, s.Wrapper.String()+", by its descriptor from before"
	case ok && presence == sys.Absent:
		w.Answer, w.Detail = Absent, fmt.Sprintf("process %d is gone, by its descriptor from before", s.Wrapper.PID)
	default:
		return Witness{}, false
	}
	return w, true
}

// askPidfd asks for the recorded wrapper process. A zombie is absent: it holds nothing.
func askPidfd(id sys.Identity) Witness {
	w := Witness{Name: Pidfd, At: sys.Now()}
	presence, st, err := sys.Observe(id)
	switch {
	case err != nil:
		w.Detail = err.Error()
	case presence == sys.Alive:
		w.Answer, w.Detail = Present, id.String()
	case presence == sys.Zombie:
		w.Answer, w.Detail = Absent, fmt.Sprintf("process %d is a zombie of parent %d", id.PID, st.PPID)
		if exited, err := hasExited(id); err != nil {
			w.Answer, w.Detail = Unknown, err.Error()
		} else if !exited {
			w.Answer, w.Detail = Present, id.String()+", without its first thread"
		}
	default:
		w.Answer, w.Detail = Absent, fmt.Sprintf("process %d is gone", id.PID)
	}
	return w
}

// hasExited asks a pidfd whether the last thread has gone, which is when it becomes readable
// (pidfd_open(2)). The state Z that /proc shows may be that of the first thread alone.
func hasExited(id sys.Identity) (bool, error) {
	fd, err := sys.OpenVerified(id)
	if errors.Is(err, sys.ErrGone) || errors.Is(err, sys.ErrReused) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("polling a pidfd: %w", err)
		}
		return n == 1 && fds[0].Revents&unix.POLLIN != 0, nil
	}
}

// contradicts says whether a held lock does not go with what else was said: nothing is in the leaf, or,
// where there is none, the wrapper is not there, or it is there and is not the one that holds the lock.
func (p *Prober) contradicts(s *Subject, witnesses []Witness, on lockFile) bool {
	a := map[string]Answer{}
	for _, w := range witnesses {
		a[w.Name] = w.Answer
	}
	if a[Lock] != Present || on == (lockFile{}) {
		return false
	}
	if s.fenced() && a[Leaf] == Absent {
		return true
	}
	if a[Pidfd] != Present {
		return !s.fenced()
	}
	holds, err := p.scanner.Holds(s.Wrapper.PID, on.dev, on.inode)
	return err == nil && !holds
}

// resolveLock finds out who holds a lock that should not be held. Only when every holder was found and
// is none of the subject's processes does the witness say so; the lock stays held, by a stranger.
func (p *Prober) resolveLock(ctx context.Context, r *Report, w *Witness, on lockFile) {
	for range lockTries {
		holders, err := p.scanner.LockHolders(ctx, on.dev, on.inode)
		if err != nil {
			w.Answer, w.Detail = Unknown, err.Error()
			return
		}
		if len(holders.List) > 0 {
			p.nameHolders(ctx, r, w, holders)
			return
		}
		if n := len(holders.Opaque); n > 0 {
			w.Answer, w.Detail = Unknown, fmt.Sprintf("held, and the descriptors of %d processes cannot be read", n)
			return
		}
		w.At = sys.Now() // it may have been let go of between the two questions
		if w.Answer, _, w.Detail = p.askLock(r.Subject.LockPath); w.Answer != Present {
			return
		}
	}
	w.Answer, w.Detail = Unknown, "held, and nobody was found who holds it"
}

// nameHolders tells strangers from the subject's own.
func (p *Prober) nameHolders(ctx context.Context, r *Report, w *Witness, holders discover.Holders) {
	var strangers []discover.Proc
	for _, h := range holders.List {
		proc, err := p.scanner.Look(ctx, h.PID)
		switch {
		case err != nil:
			w.Answer, w.Detail = Unknown, fmt.Sprintf("held by process %d (%s): %v", h.PID, h.Comm, err)
			return
		case proc.StartTicks != h.StartTicks:
			w.Answer, w.Detail = Unknown, fmt.Sprintf("held by process %d (%s), which has gone since", h.PID, h.Comm)
			return
		case p.mayBeOurs(&r.Subject, proc):
			w.Detail = fmt.Sprintf("held by process %d (%s)", h.PID, h.Comm)
			return
		}
		strangers = append(strangers, proc)
	}
	w.Stranger = true
	w.Detail = fmt.Sprintf("held by a stranger, process %d (%s) of uid %d", strangers[0].PID, strangers[0].Comm, strangers[0].UID)
	r.addForged(strangers)
}

// mayBeOurs says whether a process is the recorded wrapper, in the subject's leaf, or carries its marker
// under a uid that can be its own. Where there is no leaf, a missing marker proves nothing: then it is
// enough to have such a uid and to be no older than the instance.
func (p *Prober) mayBeOurs(s *Subject, proc discover.Proc) bool {
	if proc.PID == s.Wrapper.PID && proc.StartTicks == s.Wrapper.StartTicks {
		return true
	}
	if !s.fenced() && (proc.UID == s.OwnerUID || proc.UID == s.DaemonUID) && !startedBefore(proc.StartTicks, s.Since) {
		return true
	}
	h := s.sort(discover.Result{Procs: []discover.Proc{proc}}, p.leafOf, sessionOf)
	return len(h.members)+len(h.escaped) > 0
}

func (r *Report) addForged(procs []discover.Proc) {
	for _, proc := range procs {
		known := false
		for _, f := range r.Forged {
			known = known || f.PID == proc.PID && f.StartTicks == proc.StartTicks
		}
		if !known {
			r.Forged = append(r.Forged, proc)
		}
	}
}

// findWrapper looks for the wrapper of an instance whose process was never recorded: the daemon died
// between the spawn and the record. It is found when exactly one process carries the whole marker, sits
// where a wrapper sits and holds the lock. The report's subject then names it.
func (p *Prober) findWrapper(ctx context.Context, r *Report, on lockFile) {
	s := &r.Subject
	if s.Wrapper.PID != 0 || s.whole() || on == (lockFile{}) {
		return
	}
	var found []sys.Identity
	for _, m := range r.Members {
		if s.claimedBy(m) != claimsUs || m.UID != s.DaemonUID {
			continue
		}
		if s.fenced() && path.Base(m.Cgroup) != "wrap" {
			continue
		}
		if holds, err := p.scanner.Holds(m.PID, on.dev, on.inode); err != nil || !holds {
			continue
		}
		id, err := sys.IdentityOf(m.PID)
		if err == nil && id.StartTicks == m.StartTicks {
			found = append(found, id)
		}
	}
	if len(found) != 1 || ctx.Err() != nil {
		return
	}
	s.Wrapper = found[0]
	w := askPidfd(found[0])
	w.Detail = "found by its marker, its place and its lock: " + w.Detail
	r.Witnesses = append(r.Witnesses, w)
}

// listStuck lists processes in uninterruptible sleep: of the leaf, or where there is none, of those that
// the scan found.
func (p *Prober) listStuck(ctx context.Context, r *Report) {
	if r.Verdict == Absent {
		return
	}
	pids := p.leafPIDs(&r.Subject)
	for _, m := range r.Members {
		pids[m.PID] = true
	}
	for _, m := range r.Escaped {
		pids[m.PID] = true
	}
	looked := 0
	for pid := range pids {
		if looked++; looked > maxLooked || ctx.Err() != nil {
			return
		}
		st, err := sys.ReadStat(pid)
		if err != nil || st.State != 'D' {
			continue
		}
		r.Stuck = append(r.Stuck, Stuck{
			Proc:  discover.Proc{PID: pid, PPID: st.PPID, StartTicks: st.StartTicks, State: discover.State(st.State), Comm: st.Comm},
			Wchan: wchan(pid),
		})
	}
}

func (p *Prober) leafPIDs(s *Subject) map[int]bool {
	pids := map[int]bool{}
	tree := p.recorded(s)
	if tree == nil {
		return pids
	}
	leaf, err := tree.Open(s.leafName())
	if err != nil {
		return pids
	}
	all, err := leaf.Procs()
	if err != nil {
		return pids
	}
	for _, pid := range all {
		pids[pid] = true
	}
	return pids
}

// wchan returns the kernel function that a process sleeps in, proc_pid_wchan(5).
func wchan(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/wchan")
	if s := strings.TrimSpace(string(b)); err == nil && s != "0" {
		return s
	}
	return ""
}
