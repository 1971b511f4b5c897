package workspace

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// kinds are what a report tells, as "kind path" in order.
func kinds(r *Report) []string {
	var out []string
	for _, f := range r.Findings {
		out = append(out, string(f.Kind)+" "+f.Path)
	}
	slices.Sort(out)
	return out
}

func inspect(t *testing.T, root string) []string {
	t.Helper()
	r, err := Inspect(context.Background(), root)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Findings {
		if strings.ContainsAny(f.String(), "\n\x1b") {
			t.Errorf("%q would disturb a terminal", f.String())
		}
	}
	return kinds(r)
}

func expect(t *testing.T, root string, want ...string) {
	t.Helper()
	if got := inspect(t, root); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

func TestFilesOutsideGit(t *testing.T) {
	root := t.TempDir()
	expect(t, root)
	if err := os.MkdirAll(root+"/a/b", 0o755); err != nil {
		t.Fatal(err)
	}
	expect(t, root) // directories are no work
	write(t, root+"/a/b/\x1b[31mred\n", "x")
	expect(t, root, "files .")
}

// Submodules: their commits live in the outer repository's directory, also when
// they are not checked out.
func TestSubmodules(t *testing.T) {
	needGit(t)
	w := newWorld(t, 1)
	sub := newWorld(t, 2)
	git(t, w.root, "submodule", "add", "-q", sub.origin, "sub")
	git(t, w.root, "commit", "-q", "-m", "sub")
	git(t, w.root, "push", "-q", "origin", "HEAD:main")
	git(t, w.root, "fetch", "-q")
	expect(t, w.root)
	write(t, w.root+"/sub/readme", "changed\n")
	expect(t, w.root, "uncommitted .", "uncommitted sub")
	git(t, w.root+"/sub", "commit", "-q", "-am", "in the submodule")
	expect(t, w.root, "uncommitted .", "unpushed sub")
	git(t, w.root, "submodule", "deinit", "-q", "--force", "sub")
	expect(t, w.root, "unpushed .git/modules/sub")
}

// A repository without a checkout, one whose HEAD is nothing, and a second
// working tree of a repository that stays.
func TestOddRepositories(t *testing.T) {
	needGit(t)
	w := newWorld(t, 1)
	root := t.TempDir()
	git(t, root, "init", "-q", "--bare", "bare")
	git(t, root, "init", "-q", "empty")
	expect(t, root)
	git(t, w.root, "push", "-q", root+"/bare", "HEAD:main")
	write(t, root+"/empty/file", "x")
	expect(t, root, "unpushed bare", "untracked empty")
	tree := t.TempDir()
	git(t, w.root, "worktree", "add", "-q", "-b", "side", tree+"/side")
	expect(t, tree)
	write(t, tree+"/side/readme", "changed\n")
	expect(t, tree, "uncommitted side")
	git(t, tree+"/side", "commit", "-q", "-am", "stays in the other repository")
	expect(t, tree)
}

// What cannot be read is unknown, and never nothing.
func TestUnknownIsWork(t *testing.T) {
	needGit(t)
	w := newWorld(t, 1)
	expect(t, w.root)
	for name, damage := range map[string]func(dir string) error{
		"no HEAD":    func(dir string) error { return os.Remove(dir + "/HEAD") },
		"no objects": func(dir string) error { return os.RemoveAll(dir + "/objects") },
		"bad index":  func(dir string) error { return os.WriteFile(dir+"/index", []byte("DIRC nonsense"), 0o600) },
		"bad config": func(dir string) error { return os.WriteFile(dir+"/config", []byte("[core"), 0o600) },
		"bad ref":    func(dir string) error { return os.WriteFile(dir+"/refs/heads/main", []byte("nonsense\n"), 0o600) },
		"link to /":  func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Symlink("/", dir)) },
		"only a file": func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, []byte("gitdir: /nowhere"), 0o600))
		},
		"a later form": func(dir string) error {
			git(t, w.root, "config", "core.repositoryFormatVersion", "99")
			return os.WriteFile(dir+"/config", []byte("[core]\n\trepositoryformatversion = 99\n"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			copied := t.TempDir() + "/copy"
			if err := os.CopyFS(copied, os.DirFS(w.origin+"/../work")); err != nil {
				t.Fatal(err)
			}
			if err := damage(copied + "/.git"); err != nil {
				t.Fatal(err)
			}
			got := inspect(t, copied)
			if len(got) == 0 {
				t.Error("called clean")
			}
			if r, err := Salvage(context.Background(), copied, t.TempDir()); err == nil {
				t.Errorf("saved %v of %v", r.Saved, got)
			}
		})
	}
}

// A workspace that never ends: the bound holds, and nothing is known.
func TestBound(t *testing.T) {
	needGit(t)
	w := newWorld(t, 1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	if r, err := Inspect(ctx, w.root); err == nil {
		t.Errorf("called %v after the bound", r)
	}
	if _, err := Inspect(context.Background(), filepath.Join(w.root, "missing")); err == nil {
		t.Error("a workspace that is not there was looked at")
	}
}

// A salvage that would fill the disk ends, and says why.
func TestSalvageLeavesRoom(t *testing.T) {
	needGit(t)
	w := newWorld(t, 1)
	write(t, w.root+"/new", "x")
	ctx, stop := keepFree(context.Background(), t.TempDir(), 1<<62)
	defer stop()
	if r, err := Salvage(ctx, w.root, t.TempDir()); err == nil {
		t.Errorf("saved %v", r.Saved)
	}
	if cause := context.Cause(ctx); cause == nil || !strings.Contains(cause.Error(), "must stay free") {
		t.Errorf("the reason is %v", cause)
	}
	ctx, stop = keepFree(context.Background(), t.TempDir(), 0)
	defer stop()
	if _, err := Salvage(ctx, w.root, t.TempDir()); err != nil {
		t.Errorf("with room: %v", err)
	}
}
