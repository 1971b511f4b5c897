package discover

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write golden files anew")

// Every fixture holds the same cast, copied from /proc of the kernel that its name says: a wrapper with
// its lock, an agent, a process without an environment, one that erased it, a legacy one, a foreign one,
// one whose first thread has exited, a zombie, a zombie in a leaf, a kernel thread.
func TestScanOfFixtures(t *testing.T) {
	t.Parallel()
	roots, err := filepath.Glob("testdata/proc-*/loadavg")
	if err != nil || len(roots) == 0 {
		t.Fatal("no fixtures")
	}
	for _, loadavg := range roots {
		root := filepath.Dir(loadavg)
		t.Run(filepath.Base(root), func(t *testing.T) {
			t.Parallel()
			s, err := NewScanner(Options{Root: root, HostID: testHost, CgroupBases: []string{"/berth-" + testHost[:12]}})
			if err != nil {
				t.Fatal(err)
			}
			res, err := s.Scan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			res.At, res.Took = 0, 0
			got, err := json.MarshalIndent(res, "", "\t")
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", filepath.Base(root)+".golden")
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(append(got, '\n'), want) {
				t.Errorf("scan differs from %s:\n%s", golden, got)
			}
			holdersOfFixture(t, s, root, res)
		})
	}
}

// holdersOfFixture looks for the wrapper by its lock.
func holdersOfFixture(t *testing.T, s *Scanner, root string, res Result) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	var dev, inode uint64
	if _, err := fmt.Sscan(string(b), &dev, &inode); err != nil {
		t.Fatal(err)
	}
	h, err := s.LockHolders(t.Context(), dev, inode)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.List) != 1 || len(h.Opaque) != 0 {
		t.Fatalf("holders %+v", h)
	}
	got := h.List[0]
	for _, p := range res.Procs {
		if p.PID == got.PID && p.StartTicks == got.StartTicks && p.Kind == Member {
			if other, err := s.LockHolders(t.Context(), unix.Mkdev(1, 1), inode); err != nil || len(other.List) != 0 {
				t.Errorf("holders of another device's file: %+v %v", other, err)
			}
			return
		}
	}
	t.Errorf("the holder %+v is no member", got)
}
