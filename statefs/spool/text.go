package spool

import (
	"strings"
	"unicode/utf8"
)

// Text turns the chunks of one stream into text. A character that is split
// between chunks is held back until it is whole, so that no chunk boundary ever
// shows as a replacement character; bytes that are no UTF-8 become U+FFFD, one
// each. The zero value is ready.
type Text struct {
	pending [utf8.UTFMax]byte
	n       int
}

// Decode returns the text that chunk completes; empty when it only begins a
// character.
func (t *Text) Decode(chunk []byte) string {
	var b strings.Builder
	b.Grow(t.n + len(chunk))
	for t.n > 0 && len(chunk) > 0 {
		t.pending[t.n] = chunk[0]
		t.n++
		chunk = chunk[1:]
		t.settle(&b)
	}
	whole := len(chunk) - incompleteTail(chunk)
	appendValid(&b, chunk[:whole])
	t.n += copy(t.pending[t.n:], chunk[whole:])
	return b.String()
}

// settle moves what is decided of the pending bytes to b.
func (t *Text) settle(b *strings.Builder) {
	for t.n > 0 && utf8.FullRune(t.pending[:t.n]) {
		_, size := utf8.DecodeRune(t.pending[:t.n])
		appendValid(b, t.pending[:size])
		t.n = copy(t.pending[:], t.pending[size:t.n])
	}
}

// Flush returns what is held back, as U+FFFD for each byte, at the end of the
// stream or at a gap.
func (t *Text) Flush() string {
	var b strings.Builder
	appendValid(&b, t.pending[:t.n])
	t.n = 0
	return b.String()
}

// incompleteTail returns how many bytes at the end of p begin a character that
// needs more.
func incompleteTail(p []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		tail := p[len(p)-i:]
		if utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return i
		}
	}
	return 0
}

// appendValid appends p with U+FFFD for every byte that is no UTF-8.
func appendValid(b *strings.Builder, p []byte) {
	for len(p) > 0 {
		r, size := utf8.DecodeRune(p)
		b.WriteRune(r)
		p = p[size:]
	}
}
