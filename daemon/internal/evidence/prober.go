package evidence

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/berthd/berth/daemon/internal/discover"
	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/statefs/cgroupfs"
)

// Options of a Prober.
type Options struct {
	Trees   *cgroupfs.Trees // nil, or of mode none, where there are no cgroups
	Scanner *discover.Scanner

	// StateDir is the directory that all lock files lie below. It is opened once, so that a state
	// directory which is unmounted, moved or replaced later is not taken for one without locks.
	StateDir string

	// Kept asks a process descriptor from before whether the process lives; ok
	// is false where there is none that can tell. May be nil.
	Kept func(session string, generation uint64, id sys.Identity) (p sys.Presence, ok bool)
}

// Prober asks the witnesses. Its methods may be called by several goroutines at once. None of them
// changes anything outside, and none fails: what could not be asked is unknown in the report.
type Prober struct {
	trees   *cgroupfs.Trees
	scanner *discover.Scanner
	state   *os.File
	kept    func(session string, generation uint64, id sys.Identity) (p sys.Presence, ok bool)
	share   share
	lost    sync.Map // ids of trees that are proven gone, for good
}

// NewProber opens the state directory.
func NewProber(opt Options) (*Prober, error) {
	if opt.Scanner == nil {
		return nil, errors.New("making a prober: no scanner")
	}
	p := &Prober{trees: opt.Trees, scanner: opt.Scanner, kept: opt.Kept}
	if opt.StateDir != "" {
		var err error
		if p.state, err = openDir(opt.StateDir); err != nil {
			return nil, fmt.Errorf("making a prober: %w", err)
		}
	}
	return p, nil
}

// Close gives the state directory's descriptor back.
func (p *Prober) Close() error {
	if p.state == nil {
		return nil
	}
	return p.state.Close()
}

// Quick asks the leaf, the recorded process and the lock: some 20 µs, no scan. Where absence needs the
// markers, or a held lock contradicts an empty leaf, its verdict is unknown, and Full may know more.
func (p *Prober) Quick(ctx context.Context, s Subject) Report {
	r := Report{Subject: s, At: sys.Now()}
	r.Witnesses, _ = p.quick(ctx, &s)
	r.conclude()
	return r
}

// Full asks everything: what Quick asks, a marker scan (9 µs for each process of the machine, shared with
// whoever asks at the same time), the holders of a lock that contradicts the leaf, the wrapper when it
// was never recorded, and which processes no signal reaches. It ends soon after ctx does, with a verdict
// that is never absent for that reason.
func (p *Prober) Full(ctx context.Context, s Subject) Report {
	r := Report{Subject: s, At: sys.Now()}
	on := p.look(ctx, &r)
	p.scan(ctx, &r)
	p.findWrapper(ctx, &r, on)
	r.conclude()
	if r.Verdict == Absent {
		// The scan took its time; the fence is asked once more behind it.
		p.look(ctx, &r)
		r.conclude()
	}
	p.listStuck(ctx, &r)
	r.bound()
	return r
}

// look asks the quick witnesses and settles a contradiction between them.
func (p *Prober) look(ctx context.Context, r *Report) lockFile {
	witnesses, on := p.quick(ctx, &r.Subject)
	for i := range witnesses {
		if witnesses[i].Name == Lock && p.contradicts(&r.Subject, witnesses, on) {
			p.resolveLock(ctx, r, &witnesses[i], on)
		}
	}
	r.Witnesses = append(r.Witnesses, witnesses...)
	return on
}

// quick asks all witnesses that cost no scan.
func (p *Prober) quick(ctx context.Context, s *Subject) ([]Witness, lockFile) {
	var all []Witness
	if s.fenced() {
		all = append(all, p.askLeaf(s))
	}
	if len(s.CgroupPaths) > 0 {
		all = append(all, askPaths(ctx, s.CgroupPaths))
	}
	if s.Wrapper.PID != 0 {
		all = append(all, p.askWrapper(ctx, s))
	}
	var on lockFile
	if s.LockPath != "" {
		w := Witness{Name: Lock, At: sys.Now()}
		w.Answer, on, w.Detail = p.askLock(s.LockPath)
		all = append(all, w)
	}
	if s.Link != Unknown {
		all = append(all, Witness{Name: Link, Answer: s.Link, At: s.LinkAt})
	}
	if s.Provider != Unknown {
		all = append(all, Witness{Name: Provider, Answer: s.Provider, At: s.ProviderAt})
	}
	return all, on
}

// askLeaf asks the fence.
func (p *Prober) askLeaf(s *Subject) Witness {
	w := Witness{Name: Leaf, At: sys.Now()}
	tree := p.recorded(s)
	if tree == nil {
		p.askLost(s, p.treeOf(s), &w)
		return w
	}
	leaf, err := tree.Open(s.leafName())
	var populated bool
	if err == nil {
		populated, err = leaf.Populated()
	}
	switch {
	case errors.Is(err, cgroupfs.ErrReplaced):
		p.askLost(s, nil, &w)
	case errors.Is(err, fs.ErrNotExist):
		w.Answer, w.Detail = Absent, "gone"
	case err != nil:
		w.Detail = err.Error()
	case populated:
		w.Answer, w.Detail = Present, "populated 1"
	default:
		w.Answer, w.Detail = Absent, "populated 0"
	}
	return w
}

// treeOf returns the tree of today that the subject's leaf would lie in, nil when there is none.
func (p *Prober) treeOf(s *Subject) *cgroupfs.Tree {
	if p.trees == nil {
		return nil
	}
	if tree := p.trees.Of(s.leafName()); tree.Mode() != cgroupfs.None {
		return tree
	}
	return nil
}

// recorded returns the tree that the subject's leaf was made in, nil when that is not the one of today.
func (p *Prober) recorded(s *Subject) *cgroupfs.Tree {
	if tree := p.treeOf(s); tree != nil && s.fenced() && tree.Inode() == s.LeafParentInode {
		return tree
	}
	return nil
}

// askLost asks for a leaf that was made in another tree than the one of now: the daemon runs elsewhere, an
// ordinary user's tree went with the user's last process, or systemd has removed its slice. That the leaf
// is missing here says nothing. But when the kernel has no such tree any more, nothing that was in it is
// left.
func (p *Prober) askLost(s *Subject, tree *cgroupfs.Tree, w *Witness) {
	base := s.LeafParentInode
	if _, known := p.lost.Load(base); known {
		w.Answer, w.Detail = Absent, lostDetail
		return
	}
	w.Detail = "no cgroup tree now, there was one when the leaf was made"
	if tree != nil {
		w.Detail = fmt.Sprintf("made below inode %d, the tree is %d now", base, tree.Inode())
	}
	gone, err := cgroupfs.Gone(base)
	switch {
	case gone:
		p.lost.Store(base, struct{}{})
		w.Answer, w.Detail = Absent, lostDetail
	case err != nil:
		w.Detail += "; " + err.Error()
	default:
		w.Detail += ", and that one still exists"
	}
}

const lostDetail = "gone with the tree that it was made in"

// conclude judges the witnesses.
func (r *Report) conclude() {
	r.Judgement, r.Wrapper = Judge(r.Subject, r.Witnesses), nil
	if r.Verdict == Present {
		id := r.Subject.Wrapper
		r.Wrapper = &id
	}
}

// scan asks the markers.
func (p *Prober) scan(ctx context.Context, r *Report) {
	asked := sys.Now()
	res, err := p.share.scan(ctx, p.scanner)
	if err != nil {
		r.Witnesses = append(r.Witnesses, Witness{Name: Markers, At: asked, Detail: err.Error()})
		return
	}
	h := r.Subject.sort(res, p.leafOf, sessionOf)
	h.opaque = p.within(&r.Subject, h.opaque)
	r.Witnesses = append(r.Witnesses, r.Subject.markers(h, res))
	r.Members, r.Escaped, r.Legacy, r.Others, r.Zombies = h.members, h.escaped, h.legacy, h.others, h.zombies
	r.Forged = append(r.Forged, h.forged...)
	r.Opaque = h.opaque
	r.Scan = &Scan{At: res.At, Took: res.Took, Scanned: res.Scanned, Quiet: res.Quiet}
}

// within leaves out, of the processes that could not be judged, those in a cgroup that nothing from the
// leaf can have moved into. Where daemon and agent share an ordinary uid these are the user's logins: what
// has changed its uid to ours shows its environment to root alone.
func (p *Prober) within(s *Subject, all []discover.Opaque) []discover.Opaque {
	if !s.fenced() || p.trees == nil || s.OwnerUID != uint32(os.Geteuid()) {
		return all
	}
	return slices.DeleteFunc(all, func(o discover.Opaque) bool {
		return o.UID == s.OwnerUID && o.Cgroup != "" && !p.trees.MayEnter(o.Cgroup)
	})
}

func (p *Prober) leafOf(cgroup string) (string, bool) {
	if p.trees == nil || cgroup == "" {
		return "", false
	}
	return p.trees.LeafOfPath(cgroup)
}

func sessionOf(leaf string) string {
	session, _, _ := cgroupfs.ParseLeafName(leaf)
	return session
}

// bound keeps a report from growing with an attack on it.
func (r *Report) bound() {
	for _, list := range []*[]discover.Proc{&r.Members, &r.Escaped, &r.Forged, &r.Legacy, &r.Others, &r.Zombies} {
		if len(*list) > maxListed {
			*list = slices.Clone((*list)[:maxListed])
		}
	}
	if len(r.Stuck) > maxListed {
		r.Stuck = slices.Clone(r.Stuck[:maxListed])
	}
	if len(r.Opaque) > maxListed {
		r.Opaque = slices.Clone(r.Opaque[:maxListed])
	}
}
