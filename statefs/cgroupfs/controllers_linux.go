package cgroupfs

// Controllers returns the controllers whose limits a leaf of this tree can
// have, in the kernel's order; nil where there are none, as on a hybrid host.
func (t *Tree) Controllers() []string {
	if t.mode == None {
		return nil
	}
	return controllers(t.fd(), "cgroup.subtree_control")
}
