//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// File is set by the linker.
var File string

var armed = sync.OnceValue(func() *points {
	data, err := os.ReadFile(File)
	if err != nil {
		return &points{} // nothing is armed
	}
	p, err := parse(filepath.Base(os.Args[0]), string(data))
	if err != nil {
		fmt.Fprintf(os.Stderr, "failpoints: %s: %v\n", File, err)
		os.Exit(70)
	}
	return p
})

// Hit does what the file says of the point of that name.
func Hit(name string) error {
	p := armed()
	if _, seen := p.seen.LoadOrStore(name, true); !seen {
		note(name)
	}
	a := p.next(name)
	switch a.kind {
	case actionError:
		return fmt.Errorf("failpoint %s: %w", name, a.errno)
	case actionDelay:
		time.Sleep(a.delay) // what was asked for
	case actionKill:
		unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	case actionPanic:
		panic("failpoint " + name)
	}
	return nil
}

// note appends the name to the list of those that were hit: one write, which is
// atomic with O_APPEND, whoever else does so.
func note(name string) {
	f, err := os.OpenFile(File+".hits", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return
	}
	defer f.Close()
	f.WriteString(name + "\n")
}
