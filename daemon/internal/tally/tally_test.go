package tally

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestCounts(t *testing.T) {
	t.Parallel()
	c := NewCounts("zebra", "ant")
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for range 100 {
				c.Add("ant")
				c.Add("new")
			}
		})
	}
	all.Wait()
	var got []string
	c.Each(func(word string, n uint64) { got = append(got, fmt.Sprint(word, " ", n)) })
	if want := []string{"ant 1000", "new 1000", "zebra 0"}; !slices.Equal(got, want) {
		t.Errorf("counted %q, want %q", got, want)
	}
}

// A duration is counted in the class whose bound it reaches and does not pass.
func TestTimes(t *testing.T) {
	t.Parallel()
	times := NewTimes(time.Millisecond, time.Second)
	for _, d := range []time.Duration{-time.Hour, time.Millisecond, time.Millisecond + 1, time.Second, time.Minute} {
		times.Add(d)
	}
	bounds, counts, sum := times.Read()
	if want := []uint64{2, 2, 1}; !slices.Equal(counts, want) || len(bounds) != 2 {
		t.Errorf("counted %d within %v, want %d", counts, bounds, want)
	}
	if want := time.Minute + time.Second + 2*time.Millisecond + 1; sum != want {
		t.Errorf("the sum is %v, want %v", sum, want)
	}
}
