package statefs

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func owner(t *testing.T, path string) (uid, gid uint32) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return st.Uid, st.Gid
}

func TestMakeWorkspace(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	if uid == 0 {
		uid, gid = 12345, 12346
	}
	for range 2 {
		path, err := MakeWorkspace(root, "s1", uid, gid)
		if err != nil || path != filepath.Join(root, "s1") {
			t.Fatalf("%q, %v", path, err)
		}
		if u, g := owner(t, path); u != uid || g != gid {
			t.Errorf("owner %d:%d", u, g)
		}
		wantMode(t, path, 0o700)
		// Its owner works in it, and may take away every permission.
		if err := errors.Join(os.WriteFile(filepath.Join(path, "work"), nil, 0o600), os.Chmod(path, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := MakeWorkspace(root, "s1", uid, gid); err != nil {
		t.Fatal(err)
	}
	if got := names(t, filepath.Join(root, "s1")); len(got) != 1 {
		t.Errorf("content: %v", got)
	}
	for _, id := range []string{"", ".", "..", "a/b", ".hidden"} {
		if _, err := MakeWorkspace(root, id, uid, gid); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestMakeWorkspaceRefuses(t *testing.T) {
	t.Parallel()
	root, precious := t.TempDir(), t.TempDir()
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	if err := errors.Join(os.Symlink(precious, filepath.Join(root, "link")), os.WriteFile(filepath.Join(root, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"link", "file"} {
		if _, err := MakeWorkspace(root, id, uid+1, gid); !errors.Is(err, ErrUnfit) {
			t.Errorf("%s: %v", id, err)
		}
	}
	if u, _ := owner(t, precious); u != uid {
		t.Errorf("the link was followed")
	}
	if _, err := MakeWorkspace(filepath.Join(root, "none"), "s", uid, gid); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no root: %v", err)
	}
	if uid != 0 {
		if _, err := MakeWorkspace(root, "s", uid+1, gid); !errors.Is(err, syscall.EPERM) {
			t.Errorf("unprivileged: %v", err)
		}
	}
}

// A workspace never changes hands: what an earlier owner left is not given to
// another uid. A crash before chown leaves an empty one of ours: it is given.
func TestMakeWorkspaceOwners(t *testing.T) {
	t.Parallel()
	needRoot(t)
	root := t.TempDir()
	if _, err := MakeWorkspace(root, "s", 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeWorkspace(root, "s", 12346, 12345); !errors.Is(err, ErrUnfit) {
		t.Errorf("another owner: %v", err)
	}
	if _, err := MakeWorkspace(root, "s", 12345, 777); err != nil {
		t.Errorf("another group: %v", err)
	}
	if u, g := owner(t, filepath.Join(root, "s")); u != 12345 || g != 777 {
		t.Errorf("owner %d:%d", u, g)
	}
	for _, name := range []string{"crashed", "full"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "full", "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeWorkspace(root, "crashed", 12345, 12345); err != nil {
		t.Errorf("after a crash: %v", err)
	}
	if _, err := MakeWorkspace(root, "full", 12345, 12345); !errors.Is(err, ErrUnfit) {
		t.Errorf("ours and not empty: %v", err)
	}
}
