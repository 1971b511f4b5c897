package discover

import (
	"os"
	"testing"

	"github.com/berthd/berth/daemon/internal/discover/discovertest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("DISCOVER_TEST_ROLE"); role != "" {
		os.Exit(playRole(role))
	}
	os.Exit(discovertest.Main(m, nil))
}
