package evidence

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berthd/berth/daemon/internal/discover/discovertest"
)

func TestMain(m *testing.M) {
	os.Exit(discovertest.Main(m, leftCgroups))
}

// leftCgroups lists the trees that tests of this package have made and not removed.
func leftCgroups() []string {
	var left []string
	for _, pattern := range []string{"/sys/fs/cgroup/" + treePrefix + "*", "/sys/fs/cgroup/*/" + treePrefix + "*"} {
		dirs, _ := filepath.Glob(pattern)
		left = append(left, dirs...)
	}
	return left
}
