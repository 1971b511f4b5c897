// Command berthctl controls berthd, the per-host daemon for agent sessions.
package main

import (
	"os"

	"github.com/berthd/berth/rpc/internal/cli"
)

// version is set when it is linked.
var version = "unversioned"

func main() { os.Exit(cli.Main(version)) }
