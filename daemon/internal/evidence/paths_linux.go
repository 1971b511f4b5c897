package evidence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/daemon/internal/sys"
)

// askPaths asks further cgroups, of either version and any hierarchy: each must be gone, proven by a
// parent that is a cgroup still, or have no process anywhere below.
func askPaths(ctx context.Context, dirs []string) Witness {
	w := Witness{Name: Paths, Answer: Absent, At: sys.Now(), Detail: fmt.Sprintf("%d cgroups empty or gone", len(dirs))}
	for _, dir := range dirs {
		empty, err := emptyCgroup(ctx, dir)
		if err != nil {
			return Witness{Name: Paths, At: w.At, Detail: err.Error()}
		}
		if !empty {
			return Witness{Name: Paths, Answer: Present, At: w.At, Detail: dir + " has processes"}
		}
	}
	return w
}

// emptyCgroup walks a cgroup directory. In version 1 a zombie that was not reaped is listed as a process
// (cgroup_pidlist, kernel/cgroup/cgroup-v1.c), which errs on the safe side.
func emptyCgroup(ctx context.Context, dir string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if !isCgroup(dir) {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) && provenGone(dir) {
			return true, nil
		}
		return false, fmt.Errorf("asking cgroup %q: it is not one", dir)
	}
	b, err := os.ReadFile(path.Join(dir, "cgroup.procs"))
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		if vanished(err) && provenGone(dir) {
			return true, nil
		}
		return false, fmt.Errorf("asking cgroup %q: %v", dir, err)
	}
	if len(bytes.TrimSpace(b)) > 0 {
		return false, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !(vanished(err) && provenGone(dir)) {
		return false, fmt.Errorf("asking cgroup %q: %v", dir, err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if empty, err := emptyCgroup(ctx, path.Join(dir, e.Name())); err != nil || !empty {
			return empty, err
		}
	}
	return true, nil
}

// provenGone: the directory is missing, and the nearest one above it that exists is a cgroup. A hierarchy
// that is not mounted proves nothing.
func provenGone(dir string) bool {
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	for dir = path.Dir(dir); ; dir = path.Dir(dir) {
		_, err := os.Lstat(dir)
		switch {
		case err == nil:
			return isCgroup(dir)
		case !errors.Is(err, fs.ErrNotExist), dir == "/", dir == ".":
			return false
		}
	}
}

func isCgroup(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && (st.Type == unix.CGROUP2_SUPER_MAGIC || st.Type == unix.CGROUP_SUPER_MAGIC)
}

func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
