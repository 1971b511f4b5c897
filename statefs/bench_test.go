//go:build bench

package statefs

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestBenchPurge is the gate of deleting: 100,000 files in the trash against
// "rm -rf" of the same tree, in turn, since the machine may have other work.
func TestBenchPurge(t *testing.T) {
	d := newState(t, "")
	const rounds, files = 3, 100_000
	took := map[string][]time.Duration{}
	for range rounds {
		for _, who := range []string{"rm", "purge"} {
			ws := workspace(t, d.Workspaces(), "s1")
			manyFiles(t, ws, files)
			mustPut(t, d, ws, "n")
			began := time.Now()
			if who == "rm" {
				run(t, "rm", "-rf", filepath.Join(d.Path(), "trash", "n"))
			} else {
				mustPurge(t, d, "n")
			}
			took[who] = append(took[who], time.Since(began))
		}
	}
	median := func(who string) time.Duration {
		slices.Sort(took[who])
		return took[who][rounds/2]
	}
	ratio := float64(median("rm")) / float64(median("purge"))
	mark := "ok  "
	if ratio < 0.8 {
		mark = "MISS"
		t.Fail()
	}
	fmt.Printf("  %s deleting %d files: %s, rm -rf %s, %.2f of its speed (gate 0.8)\n", mark, files,
		median("purge").Round(time.Millisecond), median("rm").Round(time.Millisecond), ratio)
}
