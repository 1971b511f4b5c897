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
	"github.com/berthd/berth/systemd/notify"
)

// version is set at link time.
var version = "unversioned"

// The exit codes. A panic of the Go runtime is 2, which must not look like a
// mistake of the operator: a service manager does not start the daemon again
// after one of those. They are those of sysexits(3).
const (
	exitFailed = 1
	exitUsage  = 64
	exitConfig = 78
)

func main() { os.Exit(run()) }

func run() int {
	// Before anything that may start another process.
	passed, passedErr := notify.Take()
	// From the first moment on, since a hangup would end the program: a manager
	// may ask for a reload while the daemon still starts.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	path := flag.String("config", "/etc/berth/berthd.toml", "read the configuration from `FILE` and FILE.d/*.toml")
	check := flag.Bool("check-config", false, "check the configuration, say what is wrong, and exit")
	dev := flag.Bool("dev", false, "run for trying out: state in a directory of its own below TMPDIR, programs from beside berthd")
	state := flag.String("state-dir", "", "keep the state in `DIR` instead of the configured directory")
	runDir := flag.String("run-dir", "", "make the sockets in `DIR` instead of the configured directory")
	level := flag.String("log-level", "", "log at `LEVEL`: trace, debug, info, warn or error")
	showVersion := flag.Bool("version", false, "print the version and exit")
	flag.CommandLine.Init("berthd", flag.ContinueOnError)
	if err := flag.CommandLine.Parse(os.Args[1:]); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return exitUsage
	}
	if *showVersion {
		fmt.Println("berthd", version)
		return 0
	}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "berthd: unexpected argument %q\n", flag.Arg(0))
		return exitUsage
	}
	explicit := false
	flag.Visit(func(f *flag.Flag) { explicit = explicit || f.Name == "config" })
	flags := daemon.Flags{
		Config: *path, Explicit: explicit, Dev: *dev, StateDir: *state, RunDir: *runDir, LogLevel: *level,
	}
	cfg, err := daemon.Configure(flags)
	if err != nil {
		fmt.Fprintln(os.Stderr, "berthd: cannot use the configuration:", err)
		return exitConfig
	}
	if *check {
		if err := daemon.Check(&cfg); err != nil {
			fmt.Fprintln(os.Stderr, "berthd: cannot use the configuration:", err)
			return exitConfig
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
	if passedErr != nil {
		log.Warn("the service manager has passed something that makes no sense", "error", passedErr)
	}
	err = daemon.Run(ctx, daemon.Options{
		Config: cfg, Flags: flags, Version: version, Log: log, Passed: passed, Reload: hangups,
	})
	return report(errors.Join(err, log.Close()))
}

func report(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "berthd: cannot go on:", err)
		return exitFailed
	}
	return 0
}
