package statefstest

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/statefs/journal"
)

// handle is an open file.
type handle struct {
	disk   *Disk
	node   *node
	mode   journal.Mode
	closed bool
}

// ask names the file as it is called now, not as it was opened.
func (h *handle) ask(op Op) Outcome {
	h.disk.mu.Lock()
	op.Name = h.node.name
	h.disk.mu.Unlock()
	return h.disk.ask(op)
}

func (h *handle) Pread(p []byte, off int64) (int, error) {
	o := h.ask(Op{Kind: Read, Off: off, Len: len(p)})
	if o.Err != nil {
		return 0, o.Err
	}
	if o.Short {
		p = p[:min(o.Bytes, len(p))]
	}
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if h.closed {
		return 0, unix.EBADF
	}
	if off >= int64(len(h.node.data)) {
		return 0, nil
	}
	return copy(p, h.node.data[off:]), nil
}

func (h *handle) Pwrite(p []byte, off int64) (int, error) {
	o := h.ask(Op{Kind: Write, Off: off, Len: len(p)})
	if o.Short {
		p = p[:min(o.Bytes, len(p))]
	} else if o.Err != nil {
		return 0, o.Err
	}
	d := h.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if h.closed || h.mode == journal.ReadOnly {
		return 0, unix.EBADF
	}
	grows := off + int64(len(p)) - int64(len(h.node.data))
	if grows > 0 && d.capacity > 0 {
		if free := d.capacity - d.usedLocked(); free < grows {
			p = p[:max(0, int64(len(p))-grows+max(free, 0))]
			if len(p) == 0 {
				return 0, unix.ENOSPC
			}
		}
	}
	h.node.data = overwrite(h.node.data, p, off)
	h.node.pending = append(h.node.pending, write{off: off, data: slices.Clone(p)})
	if o.Err != nil {
		return 0, o.Err // torn: part of it is there
	}
	return len(p), nil
}

func (h *handle) Datasync() error {
	o := h.ask(Op{Kind: Datasync})
	if o.Lie {
		return o.Err
	}
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if o.Err != nil { // as Linux does: the pages are clean from now on, and not on the disk
		h.node.pending = nil
		return o.Err
	}
	for _, w := range h.node.pending {
		h.node.durable = overwrite(h.node.durable, w.data, w.off)
	}
	h.node.pending = nil
	return nil
}

func (h *handle) Info() (journal.FileInfo, error) {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	n := int64(len(h.node.data))
	return journal.FileInfo{Bytes: n, AllocatedBytes: n, Inode: h.node.inode}, nil
}

func (h *handle) Close() error {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if h.closed {
		return unix.EBADF
	}
	h.closed = true
	h.node.handles--
	return nil
}
