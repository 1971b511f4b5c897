package journal

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"
)

const (
	windowSize  = 4 << 20   // more than the longest record
	windowStep  = 256 << 10 // of it filled at a time: memory that was never touched costs nothing
	unreadable  = 0xdb      // stands for bytes that the device does not give: no magic, not zero
	mediumBlock = 4096
)

// window reads a file of any size through one buffer, forwards or at random.
type window struct {
	f    File
	size int64
	buf  []byte // room
	data []byte // what of buf is filled
	off  int64  // file offset of data
	bad  int    // blocks that could not be read
	err  error  // a failure that is not the medium's: sticky

	check func() error // if set: whether what has just been read may be believed
}

// at returns up to n bytes at off, fewer at the end of the file. The result is valid until the next call.
func (w *window) at(off int64, n int) []byte {
	if rest := w.size - off; int64(n) > rest {
		n = max(int(rest), 0)
	}
	if n == 0 {
		return nil
	}
	if off < w.off || off+int64(n) > w.off+int64(len(w.data)) {
		w.fill(off, n)
	}
	have := w.data[min(off-w.off, int64(len(w.data))):]
	return have[:min(n, len(have))]
}

// fill reads the block of off and what follows, at least n bytes from off on.
func (w *window) fill(off int64, n int) {
	w.off = off &^ (mediumBlock - 1)
	want := max(windowStep, off-w.off+int64(n))
	w.data = w.buf[:min(want, int64(len(w.buf)), w.size-w.off)]
	got, err := readFull(w.f, w.data, w.off)
	if err != nil && isMediumError(err) {
		got, err = w.fillByBlock()
	}
	if err == nil && w.check != nil {
		err = w.check()
	}
	if err != nil {
		w.err = err
		got = 0
	}
	w.data = w.data[:got]
}

// fillByBlock saves what can be read around a bad place; the checksums then find what is missing.
func (w *window) fillByBlock() (int, error) {
	for at := 0; at < len(w.data); at += mediumBlock {
		block := w.data[at:min(at+mediumBlock, len(w.data))]
		n, err := readFull(w.f, block, w.off+int64(at))
		if err != nil {
			if !isMediumError(err) {
				return 0, err
			}
			w.bad++
			for i := range block {
				block[i] = unreadable
			}
			continue
		}
		if n < len(block) {
			return at + n, nil
		}
	}
	return len(w.data), nil
}

// isMediumError tells a place on the disk that cannot be read from a failure of the whole file.
func isMediumError(err error) bool {
	for _, e := range []error{unix.EIO, unix.EBADMSG, unix.EUCLEAN, unix.ENODATA, unix.EREMOTEIO, unix.EILSEQ} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

var zeroes [64 << 10]byte // never written

// zeroFrom reports whether everything from off to the end of the file is zero.
func (w *window) zeroFrom(off int64) bool {
	return w.zeroBetween(off, w.size)
}

func (w *window) zeroBetween(off, end int64) bool {
	for off < end {
		b := w.at(off, int(min(int64(len(zeroes)), end-off)))
		if len(b) == 0 {
			return true // file became shorter, or w.err
		}
		if !bytes.Equal(b, zeroes[:len(b)]) {
			return false
		}
		off += int64(len(b))
	}
	return true
}

var frameMagicBytes = []byte{0x62, 0x72, 0x65, 0x63}

// next finds the first valid record header at a multiple of 8 not before off, with a number not below least.
func (w *window) next(off int64, least uint64, salt uint32) (int64, head, bool) {
	const step = 256 << 10
	off = int64(pad(int(off)))
	for off < w.size {
		b := w.at(off, step)
		i := bytes.Index(b, frameMagicBytes)
		if i < 0 {
			if len(b) < step {
				return 0, head{}, false
			}
			off += int64(len(b)) - frameAlign // the magic may straddle the end
			continue
		}
		at := off + int64(i)
		if at%frameAlign == 0 {
			if h, ok := parseHead(w.at(at, frameHeadSize), salt); ok && h.seq >= least && at+int64(h.size()) <= w.size {
				return at, h, true
			}
		}
		off = int64(pad(int(at) + 1))
	}
	return 0, head{}, false
}
