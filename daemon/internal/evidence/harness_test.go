package evidence

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/daemon/internal/discover"
	"github.com/berthd/berth/daemon/internal/discover/discovertest"
	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/statefs/cgroupfs"
)

// nobody is the uid of the sessions in these tests.
const nobody = 65534

// treePrefix begins the name of every cgroup that these tests make.
var treePrefix = "evidencetest-" + strconv.Itoa(os.Getpid()) + "-"

// host is a machine of its own: a host id, a cgroup tree, a state directory.
type host struct {
	t        testing.TB
	id       string
	tree     *cgroupfs.Tree // nil where there is none
	stateDir string
	scanner  *discover.Scanner
	*Prober
}

func newHost(t testing.TB) *host {
	t.Helper()
	h := &host{t: t, id: random(t), stateDir: t.TempDir()}
	tree, err := cgroupfs.Open("", treePrefix+h.id[:12])
	if err != nil {
		t.Fatal(err)
	}
	if tree.Mode() == cgroupfs.None {
		t.Skipf("needs a cgroup v2 tree: %s", tree.Reason())
	}
	h.tree = tree
	t.Cleanup(h.removeTree)
	h.prober(tree)
	return h
}

// newBareHost has no cgroup tree.
func newBareHost(t testing.TB) *host {
	t.Helper()
	h := &host{t: t, id: random(t), stateDir: t.TempDir()}
	h.prober(nil)
	return h
}

// onBothHosts runs a test with a cgroup tree and without.
func onBothHosts(t *testing.T, test func(*testing.T, *host)) {
	t.Run("fenced", func(t *testing.T) {
		t.Parallel()
		test(t, newHost(t))
	})
	t.Run("weak", func(t *testing.T) {
		t.Parallel()
		test(t, newBareHost(t))
	})
}

func (h *host) prober(tree *cgroupfs.Tree) {
	var trees *cgroupfs.Trees
	opt := discover.Options{HostID: h.id}
	if tree != nil {
		opt.CgroupBases = []string{tree.ProcPath()}
		trees = cgroupfs.NewTrees(tree)
	}
	if uid := uint32(os.Geteuid()); uid != 0 {
		opt.UIDs = []discover.UIDRange{{First: uid, Last: uid}}
	}
	var err error
	if h.scanner, err = discover.NewScanner(opt); err != nil {
		h.t.Fatal(err)
	}
	if h.Prober, err = NewProber(Options{Trees: trees, Scanner: h.scanner, StateDir: h.stateDir}); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = h.Close() })
}

// removeTree kills and removes everything in the tree.
func (h *host) removeTree() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	names, err := h.tree.List()
	if err != nil {
		h.t.Error(err)
	}
	for _, name := range names {
		leaf, err := h.tree.Open(name)
		if err != nil {
			h.t.Error(err)
			continue
		}
		if err := leaf.Kill(); err != nil {
			h.t.Error(err)
		}
		if err := leaf.WaitEmpty(ctx); err != nil {
			h.t.Error(err)
		}
		if err := leaf.Remove(ctx); err != nil {
			h.t.Error(err)
		}
	}
	if err := h.tree.Remove(); err != nil {
		h.t.Error(err)
	}
	if err := h.tree.Close(); err != nil {
		h.t.Error(err)
	}
}

func random(t testing.TB) string {
	t.Helper()
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(b[:])
}

// place is one generation of one session on a host: its leaf and its lock file.
type place struct {
	h    *host
	s    Subject
	leaf *cgroupfs.Leaf // nil where there is no tree
}

// newPlace makes leaf and lock file, as the daemon does before it spawns.
func (h *host) newPlace(session string, generation uint64) *place {
	h.t.Helper()
	p := &place{h: h, s: Subject{
		HostID: h.id, Session: session, Instance: random(h.t), Generation: generation,
		OwnerUID: nobody, DaemonUID: uint32(os.Geteuid()), Since: sys.Now() - time.Second,
	}}
	if os.Geteuid() != 0 {
		p.s.OwnerUID = p.s.DaemonUID
	}
	p.s.LockPath = filepath.Join(h.stateDir, session, fmt.Sprintf("g%d", generation), "lock")
	if err := os.MkdirAll(filepath.Dir(p.s.LockPath), 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(p.s.LockPath, nil, 0o600); err != nil {
		h.t.Fatal(err)
	}
	if h.tree == nil {
		p.s.Weak = true
		return p
	}
	leaf, err := h.tree.Make(cgroupfs.LeafName(session, generation))
	if err != nil {
		h.t.Fatal(err)
	}
	p.leaf = leaf
	p.s.LeafPath, p.s.LeafParentInode = leaf.Path(), leaf.ParentInode()
	return p
}

// env is what wrappers and agents of the place carry.
func (p *place) env() []string {
	return []string{
		"PATH=/bin", discover.EnvHost + "=" + p.s.HostID, discover.EnvSession + "=" + p.s.Session,
		discover.EnvInstance + "=" + p.s.Instance, discover.EnvGeneration + "=" + strconv.FormatUint(p.s.Generation, 10),
	}
}

// wrapper starts a process that is all that a wrapper is to the witnesses, and records it.
func (p *place) wrapper() *discovertest.Actor {
	p.h.t.Helper()
	a := p.start(discovertest.Role{Args: []string{"ofd", p.s.LockPath}, Env: p.env()}, "wrap")
	p.record(a.PID)
	return a
}

// agent starts a role in work under the session's uid.
func (p *place) agent(args ...string) *discovertest.Actor {
	p.h.t.Helper()
	return p.start(discovertest.Role{Args: args, Env: p.env(), UID: p.uid()}, "work")
}

// uid is the session's, as discovertest wants it.
func (p *place) uid() int {
	if p.s.OwnerUID == p.s.DaemonUID {
		return 0
	}
	return int(p.s.OwnerUID)
}

// start starts a role in a child of the leaf, "" and hosts without a tree leave it outside.
func (p *place) start(r discovertest.Role, child string) *discovertest.Actor {
	p.h.t.Helper()
	if p.leaf != nil && child != "" {
		open := map[string]func() (*os.File, error){"wrap": p.leaf.OpenWrap, "work": p.leaf.OpenWork}[child]
		dir, err := open()
		if err != nil {
			p.h.t.Fatal(err)
		}
		defer dir.Close()
		r.Cgroup = dir
	}
	return discovertest.Start(p.h.t, r)
}

func (p *place) record(pid int) {
	p.h.t.Helper()
	id, err := sys.IdentityOf(pid)
	if err != nil {
		p.h.t.Fatal(err)
	}
	p.s.Wrapper = id
}

func (p *place) quick() Report { return p.h.Quick(p.h.t.Context(), p.s) }
func (p *place) full() Report  { return p.h.Full(p.h.t.Context(), p.s) }

// want checks a report's verdict and that its reason speaks of something.
func want(t testing.TB, what string, r Report, verdict Answer, about string) {
	t.Helper()
	if r.Verdict != verdict || !strings.Contains(r.Reason, about) {
		t.Errorf("%s: %v (%q), want %v about %q; witnesses %+v", what, r.Verdict, r.Reason, verdict, about, r.Witnesses)
	}
	if (r.Wrapper != nil) != (r.Verdict == Present) {
		t.Errorf("%s: verdict %v, wrapper %v", what, r.Verdict, r.Wrapper)
	}
	for _, w := range r.Witnesses {
		if w.At <= 0 || w.At > sys.Now() {
			t.Errorf("%s: %s was asked at %v", what, w.Name, w.At)
		}
	}
}

func witness(r Report, name string) Witness {
	for _, w := range r.Witnesses {
		if w.Name == name {
			return w
		}
	}
	return Witness{}
}

func pids(procs []discover.Proc) []int {
	var all []int
	for _, p := range procs {
		all = append(all, p.PID)
	}
	return all
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}
