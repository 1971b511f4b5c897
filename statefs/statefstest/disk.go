// Package statefstest has a directory in memory that fails, tears and loses power, for tests of durable code.
//
// It owns a model of what an operating system may do to writes that were not synced: any subset of the sectors, and any
// prefix of the name changes, survives a power cut. It knows nothing of what is stored. Used by tests only.
package statefstest

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/berthd/berth/statefs/journal"
)

// Sector is the unit that a power cut keeps or loses whole.
const Sector = 512

// Op is one call that is about to happen.
type Op struct {
	N    int // from 1, over all calls of the disk
	Kind Kind
	Name string
	Off  int64
	Len  int
}

// Kind is the kind of an [Op].
type Kind uint8

// Kinds of calls.
const (
	Open Kind = iota + 1
	Create
	Read
	Write
	Datasync
	Rename
	Remove
	SyncDir
)

// Changes reports whether calls of this kind change something.
func (k Kind) Changes() bool { return k != Open && k != Read }

// Outcome is what happens instead of, or to, a call. The zero value lets it pass.
type Outcome struct {
	Err error
	// Bytes, if Short, is how much a read or write transfers, with Err or without.
	Short bool
	Bytes int
	// Lie makes a sync report success and do nothing.
	Lie bool
}

// Disk is one directory. It implements journal.FS.
type Disk struct {
	mu       sync.Mutex
	names    map[string]*node
	durable  map[string]*node
	changes  []change // of names, since the last SyncDir
	calls    int
	inode    uint64
	hook     func(Op) Outcome
	capacity int64
}

type change struct {
	from, to string // to is "" for a removal, from is "" for a creation
	node     *node
}

type node struct {
	inode   uint64
	name    string // the present one
	data    []byte // as processes see it
	durable []byte
	pending []write
	handles int
}

type write struct {
	off  int64
	data []byte
}

// New returns an empty disk.
func New() *Disk {
	return &Disk{names: map[string]*node{}, durable: map[string]*node{}}
}

// Hook makes f decide about every call before it happens. f runs outside the disk's lock and may call its methods.
func (d *Disk) Hook(f func(Op) Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = f
}

// SetCapacity makes writes that would need more than so many bytes for all files together fail with ENOSPC. 0 is no limit.
func (d *Disk) SetCapacity(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.capacity = bytes
}

// Used is the sum of the file sizes.
func (d *Disk) Used() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usedLocked()
}

func (d *Disk) usedLocked() int64 {
	var n int64
	for _, f := range d.names {
		n += int64(len(f.data))
	}
	return n
}

// Crash returns the disk as the next process finds it after this one was killed: everything written is there, and what
// was not synced still is not.
func (d *Disk) Crash() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := New()
	n.inode = d.inode
	copies := map[*node]*node{nil: nil}
	copyOf := func(f *node) *node {
		if c, ok := copies[f]; ok {
			return c
		}
		c := &node{
			inode: f.inode, name: f.name, data: slices.Clone(f.data), durable: slices.Clone(f.durable), pending: slices.Clone(f.pending),
		}
		copies[f] = c
		return c
	}
	for name, f := range d.names {
		n.names[name] = copyOf(f)
	}
	for name, f := range d.durable {
		n.durable[name] = copyOf(f)
	}
	for _, c := range d.changes {
		c.node = copyOf(c.node)
		n.changes = append(n.changes, c)
	}
	return n
}

// Cut returns the disk as the next boot finds it after a power cut: what was synced, of the rest any sectors, and the name
// changes up to some point.
func (d *Disk) Cut(r *rand.Rand) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := maps.Clone(d.durable)
	for _, c := range d.changes[:r.IntN(len(d.changes)+1)] {
		c.apply(names)
	}
	n := New()
	for name, f := range names {
		n.inode++
		data := f.cut(r)
		n.names[name] = &node{inode: n.inode, name: name, data: data, durable: slices.Clone(data)}
	}
	n.durable = maps.Clone(n.names)
	return n
}

// cut picks for every sector how many of the writes to it came through.
func (f *node) cut(r *rand.Rand) []byte {
	data := slices.Clone(f.durable)
	keep := r.IntN(3) // none, all, or sector by sector
	for _, w := range f.pending {
		for len(w.data) > 0 {
			n := min(Sector-int(w.off%Sector), len(w.data))
			if keep == 1 || keep == 2 && r.IntN(2) == 0 {
				data = overwrite(data, w.data[:n], w.off)
			}
			w.off, w.data = w.off+int64(n), w.data[n:]
		}
	}
	return data
}

func overwrite(data, p []byte, off int64) []byte {
	if need := off + int64(len(p)); int64(len(data)) < need {
		data = append(data, make([]byte, need-int64(len(data)))...)
	}
	copy(data[off:], p)
	return data
}

func (c change) apply(names map[string]*node) {
	if c.from != "" {
		delete(names, c.from)
	}
	if c.to != "" {
		names[c.to] = c.node
	}
}

// ask counts a call and asks the hook.
func (d *Disk) ask(op Op) Outcome {
	d.mu.Lock()
	d.calls++
	op.N = d.calls
	hook := d.hook
	d.mu.Unlock()
	if hook == nil {
		return Outcome{}
	}
	return hook(op)
}

// Calls is how many calls there were.
func (d *Disk) Calls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// Files returns the content of every file, as a process sees it.
func (d *Disk) Files() map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	files := map[string][]byte{}
	for name, f := range d.names {
		files[name] = slices.Clone(f.data)
	}
	return files
}

// Put makes or replaces a file, durably.
func (d *Disk) Put(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inode++
	f := &node{inode: d.inode, name: name, data: slices.Clone(data), durable: slices.Clone(data)}
	d.names[name], d.durable[name] = f, f
}

// Flip inverts the bits of mask in one byte of a file, durably.
func (d *Disk) Flip(name string, off int, mask byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.names[name]
	f.data[off] ^= mask
	f.durable[off] ^= mask
}

// Handles is how many files are open.
func (d *Disk) Handles() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, f := range d.names {
		n += f.handles
	}
	return n
}

// Open implements journal.FS.
func (d *Disk) Open(name string, mode journal.Mode) (journal.File, error) {
	kind := Open
	if mode == journal.Create {
		kind = Create
	}
	if o := d.ask(Op{Kind: kind, Name: name}); o.Err != nil {
		return nil, fmt.Errorf("open %s: %w", name, o.Err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.names[name]
	switch {
	case ok && mode == journal.Create:
		return nil, fmt.Errorf("open %s: %w", name, fs.ErrExist)
	case !ok && mode != journal.Create:
		return nil, fmt.Errorf("open %s: %w", name, fs.ErrNotExist)
	case !ok:
		d.inode++
		f = &node{inode: d.inode, name: name}
		d.names[name] = f
		d.changes = append(d.changes, change{to: name, node: f})
	}
	f.handles++
	return &handle{disk: d, node: f, mode: mode}, nil
}

// Rename implements journal.FS.
func (d *Disk) Rename(from, to string) error {
	if o := d.ask(Op{Kind: Rename, Name: from}); o.Err != nil {
		return fmt.Errorf("rename %s: %w", from, o.Err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.names[from]
	if !ok {
		return fmt.Errorf("rename %s: %w", from, fs.ErrNotExist)
	}
	f.name = to
	c := change{from: from, to: to, node: f}
	c.apply(d.names)
	d.changes = append(d.changes, c)
	return nil
}

// Remove implements journal.FS.
func (d *Disk) Remove(name string) error {
	if o := d.ask(Op{Kind: Remove, Name: name}); o.Err != nil {
		return fmt.Errorf("remove %s: %w", name, o.Err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.names[name]; !ok {
		return fmt.Errorf("remove %s: %w", name, fs.ErrNotExist)
	}
	delete(d.names, name)
	d.changes = append(d.changes, change{from: name})
	return nil
}

// Names implements journal.FS.
func (d *Disk) Names() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.names)), nil
}

// Sync implements journal.FS.
func (d *Disk) Sync() error {
	o := d.ask(Op{Kind: SyncDir})
	if o.Err != nil || o.Lie {
		return o.Err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.durable = maps.Clone(d.names)
	d.changes = nil
	return nil
}
