// Command berth-box runs a program in a throw-away host whose PID 1 is a real
// systemd, see systemd/systemdtest:
//
//	go test -exec "$PWD/bin/berth-box" ./systemd
//	bin/berth-box journalctl -b
//
// Working directory, environment, standard streams, signals and exit status
// are the program's. It is for tests and is not installed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berthd/berth/systemd/systemdtest"
)

func main() {
	systemdtest.Init()
	os.Exit(run())
}

func run() int {
	check := flag.Bool("check", false, "say what this machine lacks, and exit")
	root := flag.String("root", "", "lay the box over the tree `DIR` instead of the machine's root")
	var binds []string
	flag.Func("bind", "show `SOURCE[:TARGET]` in the box; may be repeated", func(s string) error {
		binds = append(binds, s)
		return nil
	})
	flag.Parse()
	if *check {
		return report(systemdtest.Require())
	}
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "berth-box: no program given")
		return 2
	}
	dir, err := os.Getwd()
	if err != nil {
		return report(err)
	}
	for _, path := range []string{dir, filepath.Dir(flag.Arg(0)), os.Getenv("BERTH_TEST_BIN")} {
		if filepath.IsAbs(path) && !visible(path) {
			binds = append(binds, path)
		}
	}
	// Before the box, so that none is left by a signal that comes meanwhile.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	box, err := systemdtest.Boot(context.Background(), systemdtest.Options{Root: *root, Binds: binds})
	if err != nil {
		return report(err)
	}
	runErr := box.Run(context.Background(), systemdtest.Command{
		Args: flag.Args(), Dir: dir, Env: systemdtest.Environ(),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Signals: signals,
	})
	var exit *exec.ExitError
	if errors.As(runErr, &exit) {
		if code := report(box.Close()); code != 0 {
			return code
		}
		return max(exit.ExitCode(), 1)
	}
	return report(errors.Join(runErr, box.Close()))
}

// visible reports whether the box has a directory without a bind: it lies on
// the root's file system and below none that a box has of its own.
func visible(path string) bool {
	for _, own := range []string{"/tmp", "/run", "/dev", "/proc", "/sys"} {
		if path == own || strings.HasPrefix(path, own+"/") {
			return false
		}
	}
	var root, at syscall.Stat_t
	return syscall.Stat("/", &root) == nil && syscall.Stat(path, &at) == nil && root.Dev == at.Dev
}

func report(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-box:", err)
		return 1
	}
	return 0
}
