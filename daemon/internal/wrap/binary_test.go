package wrap

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// buildFlags are those of the Makefile.
var buildFlags = []string{"build", "-trimpath", "-ldflags", "-s -w"}

const mainPackage = "github.com/berthd/berth/daemon/cmd/berth-wrap"

var (
	buildOnce sync.Once
	buildDir  string // removed by TestMain
	buildErr  error
)

// realBinary builds berth-wrap as it is shipped.
func realBinary(t *testing.T) string {
	t.Helper()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("needs the go command")
	}
	buildOnce.Do(func() {
		if buildDir, buildErr = os.MkdirTemp("", "berth-wrap-test-"); buildErr != nil {
			return
		}
		cmd := exec.Command(goTool, append(buildFlags, "-o", filepath.Join(buildDir, "berth-wrap"), mainPackage)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		buildErr = cmd.Run()
	})
	if buildErr != nil {
		t.Fatalf("building berth-wrap: %v", buildErr)
	}
	return filepath.Join(buildDir, "berth-wrap")
}
