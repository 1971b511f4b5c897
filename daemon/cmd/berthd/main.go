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
	flags, check, code, done := parse(os.Args[1:])
	if done {
		return code
	}
	cfg, err := daemon.Configure(flags)
	if err != nil {
		fmt.Fprintln(os.Stderr, "berthd: cannot use the configuration:", err)
		return exitConfig
	}
	if check {
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

// parse reads the command line; done says that the program's work is, with code.
func parse(args []string) (flags daemon.Flags, check bool, code int, done bool) {
	fs := flag.NewFlagSet("berthd", flag.ContinueOnError)
	fs.StringVar(&flags.Config, "config", "/etc/berth/berthd.toml", "read the configuration from `FILE` and FILE.d/*.toml")
	fs.BoolVar(&check, "check-config", false, "check the configuration, say what is wrong, and exit")
	fs.BoolVar(&flags.Dev, "dev", false, "run for trying out: state in a directory of its own below TMPDIR, programs from beside berthd")
	fs.StringVar(&flags.StateDir, "state-dir", "", "keep the state in `DIR` instead of the configured directory")
	fs.StringVar(&flags.RunDir, "run-dir", "", "make the sockets in `DIR` instead of the configured directory")
	fs.StringVar(&flags.LogLevel, "log-level", "", "log at `LEVEL`: trace, debug, info, warn or error")
	showVersion := fs.Bool("version", false, "print the version and exit")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return flags, check, 0, true
	case err != nil:
		return flags, check, exitUsage, true
	case *showVersion:
		fmt.Println("berthd", version)
		return flags, check, 0, true
	case fs.NArg() > 0:
		fmt.Fprintf(os.Stderr, "berthd: unexpected argument %q\n", fs.Arg(0))
		return flags, check, exitUsage, true
	}
	fs.Visit(func(f *flag.Flag) { flags.Explicit = flags.Explicit || f.Name == "config" })
	return flags, check, 0, false
}

func report(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "berthd: cannot go on:", err)
		return exitFailed
	}
	return 0
}
