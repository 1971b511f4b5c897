package workspace

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// statesEach is how many random states each of the four parallel tests makes;
// "make states" makes 200 in all.
var statesEach = flag.Int("states", 8, "random states in each of four tests")

// case F1, F2: of the random states of a checkout, one that is called clean has
// nothing that its origin has not, and a salvage gives back every commit, stash
// and file of the others.
func TestRandomStates(t *testing.T) {
	needGit(t)
	var clean atomic.Int64
	t.Cleanup(func() { // after the parallel ones
		if n := clean.Load(); n == 0 || n == int64(4**statesEach) {
			t.Errorf("%d of %d states were clean: the test tells nothing", n, 4**statesEach)
		}
	})
	for shard := range 4 {
		t.Run(fmt.Sprint(shard), func(t *testing.T) {
			t.Parallel()
			for i := range *statesEach {
				seed := uint64(shard*1000 + i)
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					if oneState(t, seed) {
						clean.Add(1)
					}
				})
			}
		})
	}
}

func oneState(t *testing.T, seed uint64) (clean bool) {
	w := newWorld(t, seed)
	w.run(1 + w.r.IntN(8))
	defer func() {
		if t.Failed() {
			t.Logf("steps:\n%s", strings.Join(w.log, "\n"))
		}
	}()
	report, err := Inspect(context.Background(), w.root)
	if err != nil {
		t.Fatal(err)
	}
	before := files(t, w.root)
	if report.Clean() {
		w.checkClean(before)
	}
	out := w.dir + "/saved"
	if err := os.Mkdir(out, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Salvage(context.Background(), w.root, out); err != nil {
		t.Fatalf("salvaging: %v", err)
	}
	if after := files(t, w.root); !maps.Equal(before, after) {
		t.Error("the salvage has changed the workspace")
	}
	again, err := Inspect(context.Background(), w.root)
	if err != nil || fmt.Sprint(again.Findings) != fmt.Sprint(report.Findings) {
		t.Errorf("after the salvage: %v, %v; before: %v", again, err, report)
	}
	restored := restore(t, out, w.dir+"/restored")
	w.checkRestored(restored, before)
	return report.Clean()
}

// checkClean: everything there is, is in the origin.
func (w *world) checkClean(have map[string]string) {
	for _, c := range w.commits {
		if out, err := try(w.origin, "branch", "--contains", c); err != nil || out == "" {
			w.t.Errorf("called clean, but the origin does not have commit %s", c)
		}
	}
	if len(w.stashes) > 0 {
		w.t.Errorf("called clean with %d stashes", len(w.stashes))
	}
	fresh := w.dir + "/fresh"
	git(w.t, w.dir, "clone", "-q", "--no-checkout", w.origin, fresh)
	git(w.t, fresh, "checkout", "-q", w.head())
	want := files(w.t, fresh)
	for path, content := range have {
		if want[path] != content && !strings.HasSuffix(path, ".o") {
			w.t.Errorf("called clean, but %q is not what the origin has", path)
		}
	}
}

// restored is what came out of a salvage.
type restoredRepo struct{ path, dir string }

// restore does what the manual says: clone each bundle, extract the archive.
func restore(t *testing.T, out, to string) []restoredRepo {
	data, err := os.ReadFile(filepath.Join(out, ManifestName))
	if err != nil {
		t.Fatal(err)
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	var repos []restoredRepo
	for i, s := range m.Repos {
		dir := filepath.Join(to, fmt.Sprint(i))
		git(t, out, "init", "-q", dir)
		git(t, dir, "fetch", "-q", filepath.Join(out, s.Bundle), "+refs/*:refs/saved/*")
		repos = append(repos, restoredRepo{s.Path, dir})
	}
	return repos
}

func (w *world) checkRestored(repos []restoredRepo, files map[string]string) {
	has := func(id string) bool {
		return slices.ContainsFunc(repos, func(r restoredRepo) bool {
			_, err := try(r.dir, "cat-file", "-e", id+"^{commit}")
			return err == nil
		})
	}
	for _, id := range append(slices.Clone(w.commits), w.stashes...) {
		if !has(id) {
			w.t.Errorf("commit %s was not saved", id)
		}
	}
	got := map[string]string{}
	for _, r := range repos {
		if _, err := try(r.dir, "rev-parse", "--verify", "--quiet", "refs/saved/berth/worktree"); err != nil {
			continue
		}
		write(w.t, filepath.Join(r.dir, ".git/info/attributes"), "* -text -filter\n")
		git(w.t, r.dir, "checkout", "-q", "-f", "refs/saved/berth/worktree")
		for path, content := range filesOf(w.t, r.dir) {
			got[filepath.Join(r.path, path)] = content
		}
	}
	for path, content := range files {
		if got[path] != content && !strings.HasSuffix(path, ".o") {
			w.t.Errorf("file %q was %q, the salvage has %q", path, content, got[path])
		}
	}
}

func filesOf(t *testing.T, dir string) map[string]string { return files(t, dir) }
