package sandboxtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/berthd/berth/plugins/host"
	"github.com/berthd/berth/plugins/sandbox"
)

// A provider in another language, without any of this repository's code,
// conforms.
func TestOtherLanguage(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("needs node in PATH")
	}
	if node, err = filepath.EvalSymlinks(node); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command(node, "-e", "require('@grpc/grpc-js')").Run(); err != nil {
		t.Skip("needs node's module @grpc/grpc-js, in a directory named by NODE_PATH")
	}
	script, err := filepath.Abs("testdata/provider.js")
	if err != nil {
		t.Fatal(err)
	}
	c := host.Config{Kind: "node", Path: node, Args: []string{script}, Env: []string{"NODE_PATH=" + os.Getenv("NODE_PATH")}}
	Run(t, func(t *testing.T) Subject {
		s := Plugin(t, c, nil)
		s.Request = func(t *testing.T, h sandbox.Handle) sandbox.PrepareRequest {
			return sandbox.PrepareRequest{
				Handle: h, Session: "s", Generation: 1, Workspace: t.TempDir(), Home: "/", Command: []string{"true"},
				UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
			}
		}
		return s
	})
}
