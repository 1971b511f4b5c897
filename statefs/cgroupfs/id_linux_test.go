package cgroupfs

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A cgroup is found by its id, and proven gone once it was removed, also by a user who has to look at all.
func TestGoneByID(t *testing.T) {
	t.Parallel()
	tree := base(t)
	l := make1(t, tree, LeafName("s", 1))
	root, err := os.Open(tree.mount)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, id := range []uint64{tree.Inode(), l.Inode()} {
		if gone, err := Gone(id); gone || err != nil {
			t.Errorf("%d: %v, %v", id, gone, err)
		}
		if exists, err := searchID(int(root.Fd()), id); isRoot(int(root.Fd())) && (!exists || err != nil) {
			t.Errorf("%d: %v, %v", id, exists, err)
		}
	}
	if err := l.Remove(bound(t)); err != nil {
		t.Fatal(err)
	}
	if gone, err := Gone(l.Inode()); !gone || err != nil {
		t.Errorf("removed: %v, %v", gone, err)
	}
	exists, err := searchID(int(root.Fd()), l.Inode())
	if isRoot(int(root.Fd())) != (err == nil) || exists {
		t.Errorf("removed: %v, %v", exists, err)
	}
	if gone, err := Gone(0); gone || err == nil {
		t.Errorf("no id: %v, %v", gone, err)
	}
}

// An ordinary user cannot ask by id. What it cannot see it does not call gone.
func TestGoneByIDAsOrdinaryUser(t *testing.T) { // not parallel: it sets the environment
	const env = "CGROUPFS_TEST_ID"
	if os.Getenv(innerEnv) == "" {
		tree := base(t)
		t.Setenv(env, strconv.FormatUint(make1(t, tree, LeafName("s", 1)).Inode(), 10))
	}
	if !inner(t, asNobody()) {
		return
	}
	id, err := strconv.ParseUint(os.Getenv(env), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	mount, _ := Detect()
	root, err := os.Open(mount)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := openByID(int(root.Fd()), id); !errors.Is(err, unix.EPERM) {
		t.Errorf("by its id: %v", err)
	}
	for id, want := range map[uint64]bool{id: false, 1<<63 + 1: true} {
		gone, err := Gone(id)
		if !isRoot(int(root.Fd())) || errors.Is(err, unix.EACCES) { // somebody hides a cgroup
			gone, want = !gone && err != nil, true
		}
		if gone != want {
			t.Errorf("%d: %v, %v", id, gone, err)
		}
	}
}
