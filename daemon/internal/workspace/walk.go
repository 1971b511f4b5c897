package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	maxRepositories = 1000
	maxDepth        = 256
)

// tree is what a walk over the workspace has found.
type tree struct {
	root   string
	device uint64
	repos  []*repo
	loose  sample // files outside every repository
	report *Report
	visit  func(rel string, e fs.DirEntry) // nil, or called for each loose entry
}

// walk finds the repositories and the files that are in none. Links are never
// followed, mounts never entered.
func walk(ctx context.Context, root string, report *Report, visit func(string, fs.DirEntry)) (*tree, error) {
	var st unix.Stat_t
	if err := unix.Lstat(root, &st); err != nil {
		return nil, fmt.Errorf("looking at %q: %w", root, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, fmt.Errorf("looking at %q: not a directory", root)
	}
	t := &tree{root: root, device: st.Dev, report: report, visit: visit}
	if err := t.dir(ctx, ".", false, 0); err != nil {
		return nil, err
	}
	// A submodule's checkout tells more than its repository, which is met first.
	var checkouts, bares []*repo
	for _, r := range t.repos {
		if r.workTree != "" {
			checkouts = append(checkouts, r)
		} else {
			bares = append(bares, r)
		}
	}
	t.repos = append(checkouts, bares...)
	return t, nil
}

// dir looks at one directory; tracked says that a repository's working tree
// holds it, so that git tells about its files.
func (t *tree) dir(ctx context.Context, rel string, tracked bool, depth int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if depth > maxDepth {
		return t.cannot(rel, errors.New("nested too deeply"))
	}
	path := filepath.Join(t.root, rel)
	entries, err := os.ReadDir(path)
	if err != nil {
		return t.cannot(rel, err)
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name()] = true
	}
	if len(t.repos) > maxRepositories {
		return fmt.Errorf("more than %d repositories", maxRepositories)
	}
	switch {
	case names[".git"]:
		t.repos = append(t.repos, &repo{rel: rel, gitDir: filepath.Join(path, ".git"), workTree: path})
		tracked = true
	case bare(path, names):
		t.repos = append(t.repos, &repo{rel: rel, gitDir: path})
		return nil
	}
	for _, e := range entries {
		if err := t.entry(ctx, filepath.Join(rel, e.Name()), e, tracked, depth); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) entry(ctx context.Context, rel string, e fs.DirEntry, tracked bool, depth int) error {
	if e.IsDir() {
		if other, err := t.otherDevice(rel); err != nil || other {
			if err == nil {
				err = errors.New("another file system is mounted here")
			}
			return t.cannot(rel, err)
		}
		if e.Name() == ".git" {
			return t.modules(ctx, rel, depth)
		}
		return t.dir(ctx, rel, tracked, depth+1)
	}
	if !tracked {
		t.loose.add(rel)
		if t.visit != nil {
			t.visit(rel, e)
		}
	}
	return nil
}

// modules looks for the repositories of submodules, which outlive their checkouts.
func (t *tree) modules(ctx context.Context, git string, depth int) error {
	rel := filepath.Join(git, "modules")
	if _, err := os.Lstat(filepath.Join(t.root, rel)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return t.dir(ctx, rel, true, depth+2)
}

func (t *tree) otherDevice(rel string) (bool, error) {
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(t.root, rel), &st); err != nil {
		return false, err
	}
	return st.Dev != t.device, nil
}

// cannot notes what could not be read. It is no error: the rest is looked at.
func (t *tree) cannot(rel string, err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	t.report.unknown(rel, err)
	return nil
}

// bare reports whether the directory is a repository without a working tree.
func bare(path string, names map[string]bool) bool {
	if !names["HEAD"] || !names["objects"] || !names["refs"] {
		return false
	}
	info, err := os.Lstat(filepath.Join(path, "objects"))
	return err == nil && info.IsDir()
}
