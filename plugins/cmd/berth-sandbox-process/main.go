// Command berth-sandbox-process is the provider without isolation, as a plugin
// process of berthd. It takes no arguments; berthd starts it.
package main

import (
	"fmt"
	"os"

	"github.com/berthd/berth/plugins/process"
	"github.com/berthd/berth/plugins/sandbox/serve"
)

// version is set by the linker (-X main.version=…).
var version = "devel"

func main() {
	around, err := serve.Environment()
	if err != nil {
		fmt.Fprintf(os.Stderr, "berth-sandbox-process: cannot start: %v\n", err)
		os.Exit(2)
	}
	os.Exit(serve.Main(process.New(process.Options{
		Version: version, DaemonUID: around.DaemonUID, Controllers: around.Controllers,
	})))
}
