package daemon

import (
	"path/filepath"

	"github.com/berthd/berth/daemon/internal/api"
	"github.com/berthd/berth/daemon/internal/config"
	"github.com/berthd/berth/statefs/cgroupfs"
)

// openTrees opens the subtree, and the slice that scopes lie in.
func (d *Daemon) openTrees() error {
	subtree, err := cgroupfs.Open(d.cfg.CgroupParent, "berth-"+d.dir.HostID()[:12])
	if err != nil {
		return err
	}
	d.closers = append(d.closers, subtree.Close, func() error {
		_ = subtree.Remove() // only an empty one goes; it is made again at the next start
		return nil
	})
	d.trees = cgroupfs.NewTrees(subtree)
	if subtree.Mode() != cgroupfs.None {
		release, err := claimOwn(subtree.Path())
		if err != nil {
			return err
		}
		d.closers = append(d.closers, release)
	}
	d.scopes = newScopes(d.cfg.Leaves, d.dir.HostID(), d.trees, d.log.Named("scopes"))
	d.closers = append(d.closers, d.scopes.close)
	d.scopes.start()
	if d.trees.Mode() == cgroupfs.None {
		d.log.Warn("running without cgroups: evidence is weak", "why", subtree.Reason())
	}
	return nil
}

// bases are the trees as /proc spells them.
func (d *Daemon) bases() []string {
	var all []string
	for _, base := range []string{d.trees.Subtree().ProcPath(), d.scopes.procPath} {
		if base != "" {
			all = append(all, base)
		}
	}
	return all
}

// leaf names the leaf that an instance is to get; empty without cgroups.
func (d *Daemon) leaf(session string, generation uint64) (string, uint64) {
	if d.scopes.usable() {
		return d.leafAt(cgroupfs.ScopeName(session, generation))
	}
	return d.leafAt(cgroupfs.LeafName(session, generation))
}

// leafAt says where a leaf of that name lies, or would lie, today.
func (d *Daemon) leafAt(name string) (string, uint64) {
	tree := d.trees.Of(name)
	if tree.Mode() == cgroupfs.None {
		return "", 0
	}
	return filepath.Join(tree.Path(), name), tree.Inode()
}

// leavesStatus says what a session that is started now gets as its leaf.
func (d *Daemon) leavesStatus() api.LeavesStatus {
	s := api.LeavesStatus{Cgroup: d.trees.Mode().String(), Evidence: "strong", Kind: config.LeavesSubtree, Path: d.trees.Subtree().Path()}
	if d.scopes.obstacle() == "" {
		s.Kind, s.Path = config.LeavesScope, d.trees.Slice().Path()
	} else if d.trees.Subtree().Mode() == cgroupfs.None {
		s.Kind, s.Evidence = cgroupfs.None.String(), "weak"
	}
	s.Reason = d.scopes.problem()
	s.Refused = d.cfg.Leaves == config.LeavesScope && s.Kind != config.LeavesScope
	return s
}
