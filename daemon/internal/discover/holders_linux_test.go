package discover

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/daemon/internal/discover/discovertest"
)

func TestLockHolders(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"ofd", "flock", "headless-lock"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "lock")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			a := discovertest.Start(t, discovertest.Role{Args: []string{role, path}})
			bystander, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer bystander.Close()
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil {
				t.Fatal(err)
			}
			s := newScanner(t, Options{})
			h, err := s.LockHolders(t.Context(), st.Dev, st.Ino)
			if err != nil {
				t.Fatal(err)
			}
			if len(h.List) != 1 || h.List[0].PID != a.PID || h.List[0].UID != uint32(os.Geteuid()) || h.List[0].StartTicks == 0 {
				t.Errorf("holders %+v, want process %d", h, a.PID)
			}
			for pid, want := range map[int]bool{a.PID: true, os.Getpid(): false, 1<<22 + 1: false} {
				if got, err := s.Holds(pid, st.Dev, st.Ino); err != nil || got != want {
					t.Errorf("process %d holds: %v %v", pid, got, err)
				}
			}
			a.Stop()
			if h, err := s.LockHolders(t.Context(), st.Dev, st.Ino); err != nil || len(h.List) != 0 {
				t.Errorf("after its end %+v %v", h, err)
			}
		})
	}
}

// On an overlay the lock line and stat(2) need not agree about device and inode.
func TestLockHoldersOnAnOverlay(t *testing.T) {
	t.Parallel()
	needRoot(t)
	base := t.TempDir()
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(base, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(base, "merged")
	opts := "lowerdir=" + base + "/lower,upperdir=" + base + "/upper,workdir=" + base + "/work"
	if err := unix.Mount("overlay", merged, "overlay", 0, opts); err != nil {
		t.Skipf("no overlay can be mounted on %s: %v", base, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(merged, 0); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(merged, "lock")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := discovertest.Start(t, discovertest.Role{Args: []string{"ofd", path}})
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	h, err := newScanner(t, Options{}).LockHolders(t.Context(), st.Dev, st.Ino)
	if err != nil || len(h.List) != 1 || h.List[0].PID != a.PID {
		t.Errorf("holders %+v, %v, want process %d", h, err, a.PID)
	}
	a.Stop()
}
