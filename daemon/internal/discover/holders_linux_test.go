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
