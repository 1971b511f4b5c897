// Command berth-wrap supervises one session. berthd starts it, parked, with a
// pipe as descriptor 3; see package wrap.
package main

import (
	"fmt"
	"os"

	"github.com/berthd/berth/daemon/internal/wrap"
)

// version is set by the linker.
var version = "unversioned"

func main() {
	switch {
	case os.Args[0] == wrap.StageName:
		os.Exit(wrap.Stage())
	case len(os.Args) == 2 && os.Args[1] == "--version":
		fmt.Println("berth-wrap", version)
	case len(os.Args) > 1:
		fmt.Fprintln(os.Stderr, "berth-wrap: cannot be started by hand: berthd does it, see berth-wrap(8)")
		os.Exit(wrap.ExitUsage)
	default:
		os.Exit(wrap.Run(3))
	}
}
