package wrap

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/deps.golden")

// Growth of the wrapper shows in review, and some packages never come in: the
// wrapper must stay small and must not depend on the daemon.
func TestDependencies(t *testing.T) {
	t.Parallel()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("needs the go command")
	}
	cmd := exec.Command(goTool, "list", "-deps", mainPackage)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	slices.Sort(deps)
	for _, dep := range deps {
		for _, never := range []string{"net", "net/http", "os/exec", "google.golang.org/", "github.com/hashicorp/", "internal/engine", "internal/lease"} {
			if dep == never || strings.HasSuffix(never, "/") && strings.HasPrefix(dep, never) || strings.Contains(never, "internal/") && strings.HasSuffix(dep, never) {
				t.Errorf("the wrapper must not depend on %s", dep)
			}
		}
	}
	got := []byte(strings.Join(deps, "\n") + "\n")
	const golden = "testdata/deps.golden"
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		for _, d := range deps {
			if !slices.Contains(strings.Fields(string(want)), d) {
				t.Errorf("new dependency %s", d)
			}
		}
		for _, d := range strings.Fields(string(want)) {
			if !slices.Contains(deps, d) {
				t.Errorf("dependency %s is gone", d)
			}
		}
		t.Error("dependencies have changed: look at them, then run go test -run Dependencies -update")
	}
}
