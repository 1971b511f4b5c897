//go:build bench

package daemontest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
	"golang.org/x/sys/unix"
)

// bareEnv names a directory with a copy of a journal, for a test binary that is
// to do the bare work of a restart and nothing else.
const bareEnv = "BERTH_BENCH_BARE"

// TestBareRestart is that program: replay, a verified pidfd for each wrapper,
// and a socket that listens.
func TestBareRestart(t *testing.T) {
	dir := os.Getenv(bareEnv)
	if dir == "" {
		t.Skip("is run by TestBenchThousand")
	}
	wrappers := map[string]record.Wrapper{}
	j, _, err := journal.Open(filepath.Join(dir, "journal"), journal.Options{}, func(r journal.Record) error {
		if record.Type(r.Type) != record.TypeLease {
			return nil
		}
		l, err := record.DecodeLease(r.Body)
		wrappers[l.Session] = l.Wrapper
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrappers {
		fd, err := sys.OpenVerified(sys.Identity{
			PID: w.PID, StartTicks: w.StartTicks, PidfdInode: w.PidfdInode, BootID: w.BootID,
		})
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("\n") // the parent's clock stops here
	l.Close()
	j.Close()
}

// bareRestart measures that program, from exec to its end of work, while the
// daemon is down.
func bareRestart(t *testing.T, h *Host) time.Duration {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "journal"), os.DirFS(filepath.Join(h.State, "journal"))); err != nil {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(dir, "journal", "lock"))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run", "^TestBareRestart$")
	cmd.Env = append(os.Environ(), bareEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if err := cmd.Wait(); err != nil {
		t.Fatal(fmt.Errorf("the bare restart: %w", err))
	}
	return took
}
