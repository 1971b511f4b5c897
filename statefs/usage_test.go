package statefs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Measure counts as du(1) does: files with several names once, links as themselves,
// holes not at all.
func TestMeasure(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := `mkdir -p a/b/c; head -c 100000 /dev/urandom >a/file; ln a/file a/b/again; ln -s /usr a/b/usr
truncate -s 1G a/hole; mkfifo a/pipe; i=0; while test $i -lt 300; do echo $i >a/b/c/$i; i=$((i+1)); done`
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := Measure(context.Background(), filepath.Join(dir, "a"))
	if err != nil || got.Partial {
		t.Fatalf("%+v, %v", got, err)
	}
	for flag, have := range map[string]uint64{"-s": got.Bytes / 1024, "--inodes": got.Inodes} {
		out, err := exec.Command("du", "-s", flag, filepath.Join(dir, "a")).Output()
		if err != nil {
			t.Skipf("needs du of GNU: %v", err)
		}
		if want, _ := strconv.ParseUint(strings.Fields(string(out))[0], 10, 64); want != have {
			t.Errorf("du %s says %d, Measure %d", flag, want, have)
		}
	}
	if _, err := Measure(context.Background(), dir+"/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Measure(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	deep := dir + "/deep"
	for range measureDepth + 2 {
		deep += "/d"
	}
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := Measure(context.Background(), dir+"/deep"); err != nil || !got.Partial {
		t.Errorf("too deep: %+v, %v", got, err)
	}
}
