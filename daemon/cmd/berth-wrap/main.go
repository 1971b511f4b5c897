// Command berth-wrap supervises one session. berthd starts it, parked, with a
// pipe as descriptor 3; see package wrap.
package main

import (
	"fmt"
	"os"

	"github.com/berthd/berth/daemon/internal/wrap"
)

func main() {
	if os.Args[0] == wrap.StageName {
		os.Exit(wrap.Stage())
	}
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "berth-wrap: cannot be started by hand: berthd does it, see berth-wrap(8)")
		os.Exit(wrap.ExitUsage)
	}
	os.Exit(wrap.Run(3))
}
