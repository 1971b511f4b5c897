package evidence

import (
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/daemon/internal/discover"
)

const (
	hostA     = "0123456789abcdef0123456789abcdef"
	instanceA = "00112233445566778899aabbccddeeff"
	instanceB = "ffeeddccbbaa99887766554433221100"
	owner     = 1000
	daemon    = 0
	stranger  = 1001
)

// leaves of a pretended tree at /t.
func pretend(cgroup string) (string, bool) {
	rest, ok := strings.CutPrefix(cgroup, "/t/")
	if !ok {
		return "", false
	}
	leaf, _, _ := strings.Cut(rest, "/")
	return leaf, true
}

func TestSort(t *testing.T) {
	t.Parallel()
	ours := discover.Proc{Kind: discover.Member, Host: hostA, Session: "s", Instance: instanceA, Generation: 7, UID: owner}
	with := func(change func(*discover.Proc)) discover.Proc {
		p := ours
		change(&p)
		return p
	}
	in := func(cgroup string) func(*discover.Proc) { return func(p *discover.Proc) { p.Cgroup = cgroup } }
	foreign := with(func(p *discover.Proc) { p.Kind, p.Host = discover.Foreign, strings.Repeat("f", 32) })
	legacy := with(func(p *discover.Proc) { p.Kind, p.Instance, p.Generation = discover.Legacy, "", 0 })
	other := with(func(p *discover.Proc) { p.Instance, p.Generation = instanceB, 6 })
	for _, c := range []struct {
		name                string
		proc                discover.Proc
		fenced, whole, weak string // which list it goes to, "" is none
	}{
		{"in its leaf", with(in("/t/berth-s-g7/work")), "members", "members", "members"},
		{"in its leaf, deeper", with(in("/t/berth-s-g7/work/a/b")), "members", "members", "members"},
		{"in its leaf, foreign marker", discover.Proc{Kind: discover.Foreign, Cgroup: "/t/berth-s-g7/work"}, "members", "members", ""},
		{"outside", with(in("/user.slice")), "escaped", "escaped", "members"},
		{"outside, no cgroup known", ours, "escaped", "escaped", "members"},
		{"outside, of the daemon's uid", with(func(p *discover.Proc) { p.UID = daemon }), "escaped", "escaped", "members"},
		{"outside, of a stranger's uid", with(func(p *discover.Proc) { p.UID = stranger }), "forged", "forged", "forged"},
		{"in another session's leaf", with(in("/t/berth-x-g1/work")), "forged", "forged", "members"},
		{"in a leaf of another name", with(in("/t/berth-s-g70/work")), "forged", "forged", "members"},
		{"beside the tree", with(in("/tt/berth-s-g7")), "escaped", "escaped", "members"},
		{"another generation", with(func(p *discover.Proc) { p.Generation = 8 }), "others", "escaped", "others"},
		{"another instance", other, "others", "escaped", "others"},
		{"another session", with(func(p *discover.Proc) { p.Session = "x" }), "", "", ""},
		{"another host", foreign, "", "", ""},
		{"legacy", legacy, "legacy", "legacy escaped", "legacy"},
		{"legacy of the daemon's uid", with(func(p *discover.Proc) { *p = legacy; p.UID = daemon }), "legacy", "legacy", "legacy"},
		{"legacy of a stranger", with(func(p *discover.Proc) { *p = legacy; p.UID = stranger }), "forged", "forged", "forged"},
		{"zombie in its leaf", discover.Proc{Kind: discover.Remains, Zombie: true, Cgroup: "/t/berth-s-g7/work"}, "zombies", "zombies", ""},
		{"zombie elsewhere", discover.Proc{Kind: discover.Remains, Zombie: true, Cgroup: "/t/berth-x-g7/work"}, "", "", ""},
	} {
		for _, mode := range []struct{ name, want string }{{"fenced", c.fenced}, {"whole", c.whole}, {"weak", c.weak}} {
			s := Subject{HostID: hostA, Session: "s", Instance: instanceA, Generation: 7, OwnerUID: owner, DaemonUID: daemon, LeafName: "berth-s-g7"}
			find := leafFinder(pretend)
			switch mode.name {
			case "whole":
				s.Instance, s.Generation = "", 0
			case "weak":
				s.Weak, s.LeafName = true, ""
				find = func(string) (string, bool) { return "", false } // where there is no tree there is no leaf
			}
			h := s.sort(discover.Result{Procs: []discover.Proc{c.proc}}, find, sessionOf)
			if got := lists(h); got != mode.want {
				t.Errorf("%s, %s: in %q, want %q", c.name, mode.name, got, mode.want)
			}
		}
	}
}

func lists(h hits) string {
	var in []string
	for _, l := range []struct {
		name  string
		procs []discover.Proc
	}{
		{"members", h.members}, {"legacy", h.legacy}, {"escaped", h.escaped}, {"forged", h.forged}, {"others", h.others}, {"zombies", h.zombies},
	} {
		if len(l.procs) > 0 {
			in = append(in, l.name)
		}
	}
	return strings.Join(in, " ")
}

// A whole session without a recorded leaf owns every leaf of its name.
func TestSortOfASessionWithoutALeaf(t *testing.T) {
	t.Parallel()
	s := Subject{HostID: hostA, Session: "s", OwnerUID: owner}
	p := discover.Proc{Kind: discover.Member, Host: hostA, Session: "s", Instance: instanceA, Generation: 3, UID: owner, Cgroup: "/t/berth-s-g3/wrap"}
	h := s.sort(discover.Result{Procs: []discover.Proc{p}}, pretend, sessionOf)
	if lists(h) != "members" {
		t.Errorf("%+v", h)
	}
}

func TestDoubtful(t *testing.T) {
	t.Parallel()
	s := Subject{HostID: hostA, Session: "s", Instance: instanceA, OwnerUID: owner, DaemonUID: daemon, LeafName: "berth-s-g7", Since: 100 * time.Second}
	for _, c := range []struct {
		name string
		o    discover.Opaque
		want bool
	}{
		{"newer", discover.Opaque{UID: owner, StartTicks: 10001}, true},
		{"of the same tick", discover.Opaque{UID: owner, StartTicks: 9999}, true},
		{"older", discover.Opaque{UID: owner, StartTicks: 9998}, false},
		{"of unknown age", discover.Opaque{UID: owner}, true},
		{"the daemon's uid", discover.Opaque{UID: daemon, StartTicks: 10001}, true},
		{"a stranger's uid", discover.Opaque{UID: stranger, StartTicks: 10001}, false},
		{"of an unknown uid", discover.Opaque{UID: discover.UnknownUID, StartTicks: 10001}, true},
		{"in its leaf", discover.Opaque{UID: owner, StartTicks: 10001, Cgroup: "/t/berth-s-g7/work"}, true},
		{"the first process", discover.Opaque{PID: 1, UID: daemon, StartTicks: 20}, false},
		{"in another's leaf", discover.Opaque{UID: owner, StartTicks: 10001, Cgroup: "/t/berth-x-g7/work"}, false},
	} {
		h := s.sort(discover.Result{Opaque: []discover.Opaque{c.o}}, pretend, sessionOf)
		if (len(h.opaque) == 1) != c.want {
			t.Errorf("%s: counts %v", c.name, len(h.opaque) == 1)
		}
		want := Absent
		if c.want {
			want = Unknown
		}
		if w := s.markers(h, discover.Result{}); w.Answer != want {
			t.Errorf("%s: markers %v", c.name, w.Answer)
		}
	}
}

func TestMarkersWitness(t *testing.T) {
	t.Parallel()
	fenced := Subject{LeafName: "l"}
	weak := Subject{Weak: true}
	one := []discover.Proc{{PID: 5, Comm: "x"}}
	for _, c := range []struct {
		name string
		s    Subject
		h    hits
		want Answer
	}{
		{"none", fenced, hits{}, Absent},
		{"in the leaf", fenced, hits{members: one}, Absent}, // the leaf speaks for them
		{"escaped", fenced, hits{escaped: one}, Present},
		{"without a leaf", weak, hits{members: one}, Present},
		{"others, forged, legacy", weak, hits{others: one, forged: one, legacy: one}, Absent},
		{"in doubt", weak, hits{opaque: make([]discover.Opaque, 1)}, Unknown},
		{"a hit and a doubt", weak, hits{members: one, opaque: make([]discover.Opaque, 1)}, Present},
	} {
		if w := c.s.markers(c.h, discover.Result{}); w.Answer != c.want || w.Detail == "" {
			t.Errorf("%s: %+v", c.name, w)
		}
	}
}
