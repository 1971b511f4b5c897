package cli

import (
	"bytes"
	"fmt"
	"strings"
)

// defaultDetachKeys leave a terminal without ending its session.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// parseKeys reads a key sequence: single characters and ctrl-X, separated by
// commas; empty = none.
func parseKeys(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	var keys []byte
	for word := range strings.SplitSeq(text, ",") {
		letter, ctrl := strings.CutPrefix(strings.ToLower(word), "ctrl-")
		switch {
		case ctrl && len(letter) == 1 && strings.Contains("@abcdefghijklmnopqrstuvwxyz[\\]^_", letter):
			keys = append(keys, strings.ToUpper(letter)[0]&0x1f)
		case !ctrl && len(word) == 1:
			keys = append(keys, word[0])
		default:
			return nil, fmt.Errorf("%q is neither one character nor ctrl-X", word)
		}
	}
	return keys, nil
}

// detacher looks for the detach keys in what is typed. The beginning of the
// sequence is held back until it is clear that it is not the whole.
type detacher struct {
	keys []byte
	held int // the first held keys were typed
}

// feed returns what goes to the agent, and whether the sequence is complete.
func (d *detacher) feed(in []byte) (out []byte, detach bool) {
	if len(d.keys) == 0 {
		return in, false
	}
	for _, b := range in {
		typed := append(bytes.Clone(d.keys[:d.held]), b)
		// The longest end of what was typed that begins the sequence stays held.
		n := min(len(typed), len(d.keys))
		for !bytes.HasPrefix(d.keys, typed[len(typed)-n:]) {
			n--
		}
		out = append(out, typed[:len(typed)-n]...)
		if d.held = n; n == len(d.keys) {
			return out, true
		}
	}
	return out, false
}
