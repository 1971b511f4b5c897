package appraise

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthd/berth/daemon/internal/workspace"
	"github.com/berthd/berth/statefs"
	"golang.org/x/sys/unix"
)

// A mirror holds the objects of the last clones that a user has made of one
// repository. Nobody but the daemon reaches the directory that mirrors are in:
// a step is given its own, open and for reading, and copies from it. So what a
// session does to its repository changes no other's, and what one user may read
// no other gets.

const (
	// maxPacks is how many packs a mirror has before it is begun anew: each clone
	// that finds news adds one.
	maxPacks = 50
	maxRefs  = 16 << 20 // bytes of a list of refs
)

// mirrorPath is the mirror of a user's clones of a repository.
func (a *Appraiser) mirrorPath(uid uint32, url string) string {
	sum := sha256.Sum256([]byte(strconv.FormatUint(uint64(uid), 10) + "\x00" + url))
	return filepath.Join(a.opts.Dir.Cache(), "git", hex.EncodeToString(sum[:16]))
}

// openMirror opens a mirror for a step; an error when there is none.
func (a *Appraiser) openMirror(uid uint32, url string) (*os.File, error) {
	return os.OpenFile(a.mirrorPath(uid, url), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// dropMirror removes a mirror that may be of no use.
func (a *Appraiser) dropMirror(uid uint32, url string) {
	if err := os.RemoveAll(a.mirrorPath(uid, url)); err != nil {
		a.opts.Logger.Warn("kept objects of clones cannot be removed", "error", err)
	}
}

// keepObjects copies what a clone has fetched into the mirror. It is done before
// anything but git was in the workspace. A failure costs the next clone time.
func (a *Appraiser) keepObjects(ctx context.Context, s Subject, url string, begin bool) {
	select {
	case a.keeping <- struct{}{}: // one at a time: two could want one name
		defer func() { <-a.keeping }()
	case <-ctx.Done():
		return
	}
	path := a.mirrorPath(s.UID, url)
	if begin || countPacks(path) > maxPacks {
		a.dropMirror(s.UID, url)
	}
	if err := a.takeObjects(ctx, s.Root, path); err != nil {
		a.opts.Logger.Warn("the objects of a clone are not kept for the next one", "session", s.Session, "error", err)
	}
}

func countPacks(mirror string) int {
	names, err := os.ReadDir(filepath.Join(mirror, workspace.MirrorPacks))
	if err != nil {
		return 0
	}
	return len(names) / 2
}

func (a *Appraiser) takeObjects(ctx context.Context, root, mirror string) error {
	packs := filepath.Join(mirror, workspace.MirrorPacks)
	if err := os.MkdirAll(packs, 0o755); err != nil {
		return err
	}
	// The user reads them by descriptor; that nobody gets there by path is for the
	// directory above to see to.
	if err := errors.Join(os.Chmod(mirror, 0o755), os.Chmod(packs, 0o755)); err != nil {
		return err
	}
	dir, err := openBeneath(root, ".git/objects/pack", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(4 * maxPacks)
	if err != nil && err != io.EOF {
		return err
	}
	for _, name := range names {
		base, ok := strings.CutSuffix(name, ".idx")
		if !ok || !workspace.PackName.MatchString(base) {
			continue
		}
		for _, file := range []string{base + ".pack", name} { // an index without its pack would be believed
			if err := a.takeFile(ctx, dir, file, packs); err != nil {
				return err
			}
		}
	}
	return takeRefs(root, mirror)
}

// takeFile copies one file of a repository that others can write to.
func (a *Appraiser) takeFile(ctx context.Context, dir *os.File, name, to string) (err error) {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	path := filepath.Join(to, name)
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	src := os.NewFile(uintptr(fd), name)
	defer src.Close()
	info, err := src.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("%q is not a plain file", name)
	}
	if err := a.roomFor(to, uint64(info.Size())); err != nil {
		return err
	}
	temp := path + ".part"
	dst, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o444)
	if err != nil {
		return err
	}
	defer os.Remove(temp) // fails once it has its name
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) != nil {
		_, err = io.Copy(dst, io.LimitReader(src, info.Size()))
	}
	if err := errors.Join(err, dst.Chmod(0o444), dst.Sync(), dst.Close()); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// roomFor refuses what would take from the room that is to stay free.
func (a *Appraiser) roomFor(dir string, bytes uint64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if free := st.Bavail * uint64(st.Frsize); free < bytes || free-bytes < a.opts.KeepFree {
		return fmt.Errorf("%d bytes are needed, %d are free and %d must stay so", bytes, free, a.opts.KeepFree)
	}
	return nil
}

// takeRefs notes which commits the objects belong to. Only lines of the known form
// are taken.
func takeRefs(root, mirror string) error {
	f, err := openBeneath(root, ".git/packed-refs", unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, os.ErrNotExist) {
		return nil // an empty repository
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.New("the list of refs is not a plain file")
	}
	var text strings.Builder
	sc := bufio.NewScanner(io.LimitReader(f, maxRefs))
	for sc.Scan() {
		if workspace.RefLine.MatchString(sc.Text()) {
			text.WriteString(sc.Text() + "\n")
		}
	}
	if err := sc.Err(); err != nil {
		return err
	}
	return statefs.WriteFile(filepath.Join(mirror, workspace.MirrorRefs), []byte(text.String()), 0o644)
}

// openBeneath opens what is below a directory by no link and on no other mount.
func openBeneath(root, path string, flags uint64) (*os.File, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Join(root, path), Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Mirrors are the paths of all mirrors, the one that was used longest ago first.
func (a *Appraiser) Mirrors() []string {
	root := filepath.Join(a.opts.Dir.Cache(), "git")
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil
	}
	used := map[string]time.Time{}
	var paths []string
	for _, e := range entries {
		path := filepath.Join(root, e.Name())
		if info, err := os.Stat(filepath.Join(path, workspace.MirrorRefs)); err == nil {
			used[path] = info.ModTime()
		}
		paths = append(paths, path)
	}
	slices.SortFunc(paths, func(a, b string) int { return used[a].Compare(used[b]) })
	return paths
}
