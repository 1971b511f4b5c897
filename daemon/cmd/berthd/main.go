// Command berthd is berth's daemon; see man/berthd.8.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/berthd/berth/daemon/internal/daemon"
)

// version is set at link time.
var version = "unversioned"

func main() { os.Exit(run()) }

func run() int {
	path := flag.String("config", "/etc/berth/berthd.toml", "read the configuration from `FILE` and FILE.d/*.toml")
	check := flag.Bool("check-config", false, "check the configuration, say what is wrong, and exit")
	dev := flag.Bool("dev", false, "run for trying out: state in a directory of its own below TMPDIR, programs from beside berthd")
	state := flag.String("state-dir", "", "keep the state in `DIR` instead of the configured directory")
	runDir := flag.String("run-dir", "", "make the sockets in `DIR` instead of the configured directory")
	level := flag.String("log-level", "", "log at `LEVEL`: trace, debug, info, warn or error")
	showVersion := flag.Bool("version", false, "print the version and exit")
	flag.Parse()
	if *showVersion {
		fmt.Println("berthd", version)
		return 0
	}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "berthd: unexpected argument %q\n", flag.Arg(0))
		return 2
	}
	explicit := false
	flag.Visit(func(f *flag.Flag) { explicit = explicit || f.Name == "config" })
	cfg, err := daemon.Configure(daemon.Flags{
		Config: *path, Explicit: explicit, Dev: *dev, StateDir: *state, RunDir: *runDir, LogLevel: *level,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "berthd: cannot use the configuration:", err)
		return 2
	}
	if *check {
		if err := daemon.Check(&cfg); err != nil {
			fmt.Fprintln(os.Stderr, "berthd: cannot use the configuration:", err)
			return 2
		}
		fmt.Println("configuration is good")
		return 0
	}
	// Most of the memory is state that stays: half the usual room for garbage
	// costs little time and saves a quarter of it. GOGC overrides.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := daemon.OpenLog(&cfg.Log)
	err = daemon.Run(ctx, cfg, version, log)
	return report(errors.Join(err, log.Close()))
}

func report(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "berthd: cannot go on:", err)
		return 1
	}
	return 0
}
