// Command berth-workspace looks into a session's workspace for berthd, as the
// session's user; see package workspace.
package main

import (
	"fmt"
	"os"

	"github.com/berthd/berth/daemon/internal/workspace"
)

// version is set by the linker.
var version = "unversioned"

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "--version":
		fmt.Println("berth-workspace", version)
	case len(os.Args) > 1:
		fmt.Fprintln(os.Stderr, "berth-workspace: cannot be started by hand: berthd does it, see berthd(8)")
		os.Exit(2)
	default:
		os.Exit(workspace.Run(os.Stdin, os.Stdout))
	}
}
