// Package tally has sums that only ever grow: counts by a word of a closed set,
// and times by how long they were. The engine and the scanner add to them, and
// metrics reads them.
//
// It refuses to know what is counted and how it is shown.
package tally

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Counts counts by word. Its methods may be called by several goroutines at
// once. The zero value is not usable.
type Counts struct {
	mu    sync.Mutex
	words map[string]uint64
}

// NewCounts starts every word at 0, so that a reader sees each from the start.
func NewCounts(words ...string) *Counts {
	c := &Counts{words: make(map[string]uint64, len(words))}
	for _, w := range words {
		c.words[w] = 0
	}
	return c
}

// Add counts one more of word.
func (c *Counts) Add(word string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.words[word]++
}

// Each calls f for every word, in order.
func (c *Counts) Each(f func(word string, n uint64)) {
	for _, w := range c.read() {
		f(w.word, w.n)
	}
}

type count struct {
	word string
	n    uint64
}

// read copies, so that f runs without the lock.
func (c *Counts) read() []count {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]count, 0, len(c.words))
	for w, n := range c.words {
		all = append(all, count{w, n})
	}
	slices.SortFunc(all, func(a, b count) int { return strings.Compare(a.word, b.word) })
	return all
}

// Times counts durations by class. Its methods may be called by several
// goroutines at once. The zero value is not usable.
type Times struct {
	bounds []time.Duration
	mu     sync.Mutex
	counts []uint64
	sum    time.Duration
}

// NewTimes makes classes with these upper bounds, themselves included and in
// rising order, and one for what is longer.
func NewTimes(bounds ...time.Duration) *Times {
	return &Times{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

// Add counts one duration; one below 0, from a clock that was set back, as 0.
func (t *Times) Add(d time.Duration) {
	d = max(d, 0)
	i, _ := slices.BinarySearch(t.bounds, d)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[i]++
	t.sum += d
}

// Read returns the classes' bounds, how many were in each and above the last,
// and their sum. The slices are the caller's to read only, and to keep.
func (t *Times) Read() (bounds []time.Duration, counts []uint64, sum time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bounds, slices.Clone(t.counts), t.sum
}
