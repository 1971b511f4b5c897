package workspace

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Inspect looks at everything in the workspace root that its deletion would
// lose. An error says that nothing is known.
func Inspect(ctx context.Context, root string) (*Report, error) { return look(ctx, root, false) }

// look is Inspect, on request with the files that git ignores.
func look(ctx context.Context, root string, ignored bool) (*Report, error) {
	report := &Report{Findings: []Finding{}}
	t, err := walk(ctx, root, report, nil)
	if err != nil {
		return nil, err
	}
	t.loose.report(report, Files, ".")
	seen := map[string]bool{}
	for _, r := range t.repos {
		if err := r.inspect(ctx, t, seen); err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			report.unknown(r.rel, err)
		}
		if !ignored || r.workTree == "" {
			continue
		}
		if err := r.ignored(ctx, report); err != nil {
			report.unknown(r.rel, err)
		}
	}
	report.Repositories = len(t.repos)
	return report, nil
}

// resolve finds the repository's real directory and the one that it shares with
// its other working trees, and switches its filters off.
func (r *repo) resolve(ctx context.Context) (common string, err error) {
	if err := r.disarm(ctx); err != nil {
		return "", err
	}
	own, err := r.line(ctx, "rev-parse", "--absolute-git-dir")
	if err != nil {
		return "", err
	}
	common, err = r.line(ctx, "rev-parse", "--path-format=absolute", "--git-common-dir")
	if err != nil {
		return "", err
	}
	r.gitDir = own
	return common, nil
}

// inspect looks at one repository: its files, and its commits once for all its
// working trees, if they are lost with the workspace at all.
func (r *repo) inspect(ctx context.Context, t *tree, seen map[string]bool) error {
	common, err := r.resolve(ctx)
	if err != nil {
		return err
	}
	if r.workTree != "" {
		if err := r.files(ctx, t.report); err != nil {
			return err
		}
		r.inProgress(t.report)
	}
	if seen[common] || !within(t.root, common) {
		return nil
	}
	seen[common] = true
	return r.commits(ctx, t.report)
}

// within reports whether path, links followed, is below root.
func within(root, path string) bool {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return true // what cannot be told is looked at
	}
	if base, err := filepath.EvalSymlinks(root); err == nil {
		root = base
	}
	return real == root || strings.HasPrefix(real, root+"/")
}

// files reports what git status does, and tracked files that it is told to pass over.
func (r *repo) files(ctx context.Context, report *Report) error {
	var changed, untracked, hidden sample
	err := r.each(ctx, 0, func(s string) error {
		switch {
		case strings.HasPrefix(s, "1 "), strings.HasPrefix(s, "u "):
			changed.add(lastField(s))
		case strings.HasPrefix(s, "? "):
			untracked.add(s[2:])
		}
		return nil
	}, "status", "--porcelain=v2", "-z", "--no-renames", "--untracked-files=normal", "--ignore-submodules=none")
	if err != nil {
		return err
	}
	err = r.each(ctx, 0, func(s string) error {
		tag, name, ok := strings.Cut(s, " ")
		if !ok || tag == "" {
			return nil
		}
		_, gone := os.Lstat(filepath.Join(r.workTree, name))
		if tag == "S" && gone == nil || tag[0] >= 'a' && tag[0] <= 'z' {
			hidden.add(name)
		}
		return nil
	}, "ls-files", "-v", "-z")
	if err != nil {
		return err
	}
	changed.report(report, Uncommitted, r.rel)
	untracked.report(report, Untracked, r.rel)
	hidden.report(report, Hidden, r.rel)
	return nil
}

// ignored reports what git status passes over because it is told to.
func (r *repo) ignored(ctx context.Context, report *Report) error {
	var s sample
	err := r.each(ctx, 0, func(name string) error {
		s.add(name)
		return nil
	}, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
	if err != nil {
		return err
	}
	s.report(report, Ignored, r.rel)
	return nil
}

// lastField is the path of a line of git status in format 2: the 9th field of an
// ordinary entry, the 11th of an unmerged one.
func lastField(s string) string {
	n := 9
	if s[0] == 'u' {
		n = 11
	}
	parts := strings.SplitN(s, " ", n)
	return parts[len(parts)-1]
}

// states are the files that git keeps while an operation is unfinished.
var states = []struct{ file, name string }{
	{"MERGE_HEAD", "merge"}, {"rebase-merge", "rebase"}, {"rebase-apply", "rebase or am"},
	{"CHERRY_PICK_HEAD", "cherry-pick"}, {"REVERT_HEAD", "revert"}, {"BISECT_LOG", "bisect"},
}

func (r *repo) inProgress(report *Report) {
	var s sample
	for _, state := range states {
		if r.has(state.file) {
			s.add(state.name)
		}
	}
	s.report(report, InProgress, r.rel)
}

// commits reports what no remote has.
func (r *repo) commits(ctx context.Context, report *Report) error {
	refs := []string{"--exclude=refs/stash", "--exclude=refs/remotes/*", "--glob=refs/*"}
	if err := r.count(ctx, report, Unpushed, refs, "--not", "--remotes"); err != nil {
		return err
	}
	heads, err := r.detached(ctx)
	if err != nil {
		return err
	}
	if len(heads) > 0 {
		if err := r.count(ctx, report, Detached, heads, "--not", "--branches", "--tags", "--remotes"); err != nil {
			return err
		}
	}
	return r.stashes(ctx, report)
}

// count reports the commits of a walk, if there are any.
func (r *repo) count(ctx context.Context, report *Report, kind Kind, from []string, without ...string) error {
	var s sample
	args := append(append([]string{"rev-list", "--abbrev-commit"}, from...), without...)
	err := r.each(ctx, '\n', func(line string) error {
		s.add(line)
		return nil
	}, args...)
	if err != nil {
		return err
	}
	s.report(report, kind, r.rel)
	return nil
}

// detached returns commits that were or are checked out without a branch: the
// heads of all working trees, and what the reflog says was left behind.
func (r *repo) detached(ctx context.Context) ([]string, error) {
	var heads []string
	take := func(rev string) {
		if hexID(rev) && len(heads) < maxHeads && r.exists(ctx, rev) {
			heads = append(heads, rev)
		}
	}
	err := r.each(ctx, '\n', func(s string) error {
		if rev, ok := strings.CutPrefix(s, "HEAD "); ok {
			take(rev)
		}
		return nil
	}, "worktree", "list", "--porcelain")
	if err != nil {
		return nil, err
	}
	left := map[string]bool{}
	err = r.each(ctx, '\n', func(s string) error {
		if rest, ok := strings.CutPrefix(s, "checkout: moving from "); ok {
			from, _, _ := strings.Cut(rest, " ")
			left[from] = true
		}
		return nil
	}, "reflog", "show", "--format=%gs", "HEAD")
	if err != nil && r.exists(ctx, "HEAD") {
		return nil, err // an unborn branch has no reflog
	}
	for rev := range left {
		take(rev)
	}
	return heads, nil
}

const maxHeads = 1000

func hexID(s string) bool {
	if len(s) != 40 && len(s) != 64 {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}

func (r *repo) stashes(ctx context.Context, report *Report) error {
	if !r.exists(ctx, "refs/stash") {
		return nil
	}
	var s sample
	err := r.each(ctx, '\n', func(string) error {
		s.add("stash@{" + strconv.Itoa(s.count) + "}")
		return nil
	}, "reflog", "show", "--format=%H", "refs/stash")
	if err != nil {
		return fmt.Errorf("listing the stash: %w", err)
	}
	if s.count == 0 {
		s.add("refs/stash") // its reflog is gone
	}
	s.report(report, Stash, r.rel)
	return nil
}
