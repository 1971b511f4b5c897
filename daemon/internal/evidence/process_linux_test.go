package evidence

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/daemon/internal/discover/discovertest"
	"github.com/berthd/berth/daemon/internal/sys"
)

// case T25: a zombie whose parent is stopped holds nothing, and is reported with its parent.
func TestZombieOfAStoppedParent(t *testing.T) {
	t.Parallel()
	needRoot(t) // to move a process into the leaf
	h := newHost(t)
	p := h.newPlace("zombie", 1)
	p.s.Escapable = true
	a := p.start(discovertest.Role{Args: []string{"zombie", p.leaf.WrapPath()}, Env: p.env(), UID: 0}, "")
	p.s.OwnerUID, p.s.DaemonUID = nobody, nobody // the parent is nobody of ours
	p.record(a.N)
	if err := unix.Kill(a.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	want(t, "quick", func() Report { s := p.s; s.Escapable = false; return h.Quick(t.Context(), s) }(), Absent, "populated 0")
	r := p.full()
	want(t, "full", r, Absent, "")
	if d := witness(r, Pidfd).Detail; !strings.Contains(d, "zombie of parent") {
		t.Errorf("pidfd: %s", d)
	}
	if !slices.Equal(pids(r.Zombies), []int{a.N}) || r.Zombies[0].PPID != a.PID {
		t.Errorf("zombies %+v", r.Zombies)
	}
}

// The first thread of a wrapper has exited, the kernel prints Z, and it lives.
func TestWrapperWithoutItsFirstThread(t *testing.T) {
	t.Parallel()
	onBothHosts(t, func(t *testing.T, h *host) {
		p := h.newPlace("headless", 1)
		a := p.start(discovertest.Role{Args: []string{"headless-lock", p.s.LockPath}, Env: p.env()}, "wrap")
		p.record(a.PID)
		discovertest.Eventually(t, "its first thread has exited", func() bool {
			st, err := sys.ReadStat(a.PID)
			return err == nil && st.State == 'Z'
		})
		want(t, "quick", p.quick(), Present, "")
		r := p.full()
		want(t, "full", r, Present, "")
		if !slices.Equal(pids(r.Members), []int{a.PID}) || len(r.Zombies) != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// case T14, case T15: a recorded pid that belongs to somebody else, or to us.
func TestRecycledPid(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("recycled", 1)
	bystander := p.start(discovertest.Role{Args: []string{"hold"}}, "")
	for name, change := range map[string]func(*sys.Identity){
		"another start time": func(id *sys.Identity) { id.StartTicks--; id.PidfdInode = 0 }, // as on kernels without pidfs
		"another inode":      func(id *sys.Identity) { id.PidfdInode += 1 << 40 },
		"another boot":       func(id *sys.Identity) { id.BootID = strings.Repeat("0", 36) },
	} {
		if name == "another inode" && !sys.HasPidfs() {
			continue
		}
		p.record(bystander.PID)
		change(&p.s.Wrapper)
		r := p.quick()
		want(t, name, r, Absent, "populated 0")
		if witness(r, Pidfd).Answer != Absent {
			t.Errorf("%s: %+v", name, witness(r, Pidfd))
		}
	}
	p.record(os.Getpid())
	want(t, "our own pid", p.quick(), Absent, "populated 0")
	if !strings.Contains(witness(p.quick(), Pidfd).Detail, "no wrapper") {
		t.Errorf("our own pid: %+v", witness(p.quick(), Pidfd))
	}
}

// case T07: the daemon died between the spawn and the record. One process fits, and is found.
func TestWrapperThatWasNeverRecorded(t *testing.T) {
	t.Parallel()
	onBothHosts(t, func(t *testing.T, h *host) {
		p := h.newPlace("unrecorded", 4)
		w := p.wrapper()
		p.agent("hold")
		id := p.s.Wrapper
		p.s.Wrapper = sys.Identity{}
		if h.tree != nil {
			want(t, "quick", p.quick(), Unknown, "leaf: present")
		} else {
			want(t, "quick", p.quick(), Unknown, "lock: present")
		}
		r := p.full()
		want(t, "full", r, Present, "")
		if r.Wrapper == nil || *r.Wrapper != id || r.Subject.Wrapper != id {
			t.Errorf("found %+v, want %+v", r.Wrapper, id)
		}
		w.Kill()
		want(t, "without it", p.full(), Unknown, "")
	})
}

// case T33, C6: a process that no signal reaches is named with the function it sleeps in.
func TestStuckProcess(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.newPlace("stuck", 1)
	a := p.agent("vfork")
	discovertest.Eventually(t, "it sleeps in the kernel", func() bool {
		st, err := sys.ReadStat(a.PID)
		return err == nil && st.State == 'D'
	})
	r := p.full()
	want(t, "stuck", r, Unknown, "leaf: present")
	if len(r.Stuck) != 1 || r.Stuck[0].PID != a.PID || r.Stuck[0].State != 'D' {
		t.Fatalf("%+v", r.Stuck)
	}
	if os.Geteuid() != 0 {
		return // the kernel tells it to root alone
	}
	discovertest.Eventually(t, "the kernel says where it sleeps", func() bool { // it says nothing of a process on its way there
		r := p.full()
		return len(r.Stuck) == 1 && r.Stuck[0].Wchan != ""
	})
}
