package cli

import (
	"bytes"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/rpc/internal/rpctest"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
	"github.com/berthd/berth/statefs/spool"
)

// stateCmd: state DIR make | write SESSION TEXT | hold SESSION | release: acts
// on a state directory as the daemon and a wrapper do.
func stateCmd(ts *testscript.TestScript, _ bool, args []string) {
	w := of(ts)
	dir := ts.MkAbs(args[0])
	switch args[1] {
	case "make":
		ts.Check(makeState(dir))
	case "write":
		layout, err := statefs.ReadLayout(dir)
		ts.Check(err)
		s, err := spool.Create(filepath.Join(layout.GenerationDir(args[2], 2), wire.SpoolName), spool.Options{})
		ts.Check(err)
		s.Append(spool.Stdout, []byte(args[3]+"\n"))
		ts.Check(s.Close())
	case "hold": // as a live wrapper does
		layout, err := statefs.ReadLayout(dir)
		ts.Check(err)
		f, err := os.OpenFile(filepath.Join(layout.GenerationDir(args[2], 2), wire.LockName), os.O_RDWR|os.O_CREATE, 0o600)
		ts.Check(err)
		ts.Check(unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
		w.lock = f
	case "release":
		ts.Check(w.lock.Close())
	}
}

// makeState fills a state directory: session s, two generations, a journal.
func makeState(dir string) error {
	d, err := statefs.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	for g := uint64(1); g <= 2; g++ {
		gen, err := d.MakeGenerationDir("s", g)
		if err != nil {
			return err
		}
		s, err := spool.Create(filepath.Join(gen, wire.SpoolName), spool.Options{})
		if err != nil {
			return err
		}
		s.Append(spool.Stdout, []byte("out "+string('0'+rune(g))+"\n"))
		s.Append(spool.Stderr, []byte("err\n"))
		if err := s.Close(); err != nil {
			return err
		}
	}
	j, _, err := journal.Open(d.Journal(), journal.Options{SegmentBytes: 16 << 10}, func(journal.Record) error { return nil })
	if err != nil {
		return err
	}
	spec := record.Spec{Session: "s", Command: []string{"x"}, Env: []string{"TOKEN=canary"}, Provider: "process"}
	lease := record.Lease{Session: "s", State: "vacant", NextGeneration: 3, Event: "owned_absent", Wall: rpctest.New().At}
	for _, e := range []journal.Entry{
		{Type: uint16(record.TypeSpec), Session: "s", Body: spec.Append(nil)},
		{Type: uint16(record.TypeLease), Session: "s", Generation: 2, Body: lease.Append(nil)},
		{Type: uint16(record.TypeLease), Session: "t", Generation: 1, Body: []byte("\xff\xff")},
	} {
		if _, err := j.Append(journal.Ordinary, e); err != nil {
			return err
		}
	}
	return j.Close()
}

// damageCmd: damage FILE TEXT: flips a bit of the first TEXT in the files that
// the pattern FILE matches.
func damageCmd(ts *testscript.TestScript, _ bool, args []string) {
	files, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	for _, name := range files {
		data, err := os.ReadFile(name)
		ts.Check(err)
		if i := bytes.Index(data, []byte(args[1])); i >= 0 {
			data[i] ^= 1
			ts.Check(os.WriteFile(name, data, 0o600))
			return
		}
	}
	ts.Fatalf("no %q in %v", args[1], files)
}
