package cgroupfs

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync/atomic"
)

// Trees are the bases that one host's leaves may lie in: its subtree, always, and the slice whose scopes
// systemd knows, while there is one. Both kinds of leaves may exist at once, after an upgrade or when systemd
// was not to be had for a while. A leaf's name tells its base. Methods may be called concurrently.
type Trees struct {
	subtree *Tree
	slice   atomic.Pointer[Tree]
}

// NewTrees returns the bases of a host that has no slice yet.
func NewTrees(subtree *Tree) *Trees { return &Trees{subtree: subtree} }

// noSlice stands for a slice that there is not.
var noSlice = &Tree{reason: "no slice of systemd's is in use"}

// Subtree is the base of leaves that are not scopes; it may have Mode None.
func (t *Trees) Subtree() *Tree { return t.subtree }

// Slice is the base of leaves that are scopes; it has Mode None while there is none.
func (t *Trees) Slice() *Tree {
	if s := t.slice.Load(); s != nil {
		return s
	}
	return noSlice
}

// SetSlice puts a slice in the place of the one of before, whose descriptor goes once nobody uses it.
func (t *Trees) SetSlice(slice *Tree) { t.slice.Store(slice) }

// Of is the base for leaves of that name.
func (t *Trees) Of(leaf string) *Tree {
	if IsScope(leaf) {
		return t.Slice()
	}
	return t.subtree
}

// Mode is the layout, None where there are leaves of no kind.
func (t *Trees) Mode() Mode { return max(t.subtree.Mode(), t.Slice().Mode()) }

// any is a base that can be asked about processes and paths of the whole hierarchy.
func (t *Trees) any() *Tree {
	if t.subtree.Mode() == None {
		return t.Slice()
	}
	return t.subtree
}

// Make is Tree.Make in the base that the name belongs to.
func (t *Trees) Make(leaf string) (*Leaf, error) { return t.Of(leaf).Make(leaf) }

// Open is Tree.Open in the base that the name belongs to. A leaf whose base is gone for good is gone too.
func (t *Trees) Open(leaf string) (*Leaf, error) {
	base := t.Of(leaf)
	l, err := base.Open(leaf)
	if errors.Is(err, ErrReplaced) && base.lost() {
		return nil, fmt.Errorf("opening leaf %q: gone with its base: %w", leaf, fs.ErrNotExist)
	}
	return l, err
}

// lost reports whether the very base that was opened is proven not to exist any more, and so all that was
// in it: systemd removes its slice when that is stopped.
func (t *Tree) lost() bool {
	gone, err := Gone(t.inode)
	return gone && err == nil
}

// List returns the names of all directories in the bases, sorted, never nil on success. ErrUnavailable when
// there is no base.
func (t *Trees) List() ([]string, error) {
	names, err := t.subtree.List()
	slice := t.Slice()
	if err != nil && !(errors.Is(err, ErrUnavailable) && slice.Mode() != None) || slice.Mode() == None {
		return names, err
	}
	scopes, err := slice.List()
	if errors.Is(err, ErrReplaced) && slice.lost() {
		scopes, err = []string{}, nil
	}
	if err != nil {
		return nil, err
	}
	names = append(names, scopes...)
	slices.Sort(names)
	return names, nil
}

// PathOf is Tree.PathOf.
func (t *Trees) PathOf(pid int) (string, error) { return t.any().PathOf(pid) }

// MayEnter is Tree.MayEnter.
func (t *Trees) MayEnter(procPath string) bool { return t.any().MayEnter(procPath) }

// LeafOfPath returns the name of the directory, of either base, that a path which ParseProcCgroup returned
// lies in.
func (t *Trees) LeafOfPath(procPath string) (leaf string, ok bool) {
	if leaf, ok = t.subtree.LeafOfPath(procPath); ok {
		return leaf, ok
	}
	return t.Slice().LeafOfPath(procPath)
}
