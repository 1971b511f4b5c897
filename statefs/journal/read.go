package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// readAttempts bounds how often a reader starts again because a live writer renamed files under it.
const readAttempts = 8

// ErrCompacted: a live writer dropped files while they were being read. Reading again helps.
var ErrCompacted = errors.New("the journal was compacted while it was being read")

// Read gives fn every record, as Open's replay would get them, and changes nothing. It takes no lock: beside a live
// writer it ends at a record that was complete at some moment during the call, and Recovery.Live is set.
// Errors: fn's, ErrCompacted (fn may have seen records), *NewerVersionError, the file system's.
func Read(dir string, fn func(Record) error) (Recovery, error) {
	return readDirectory(dir, fn, false)
}

// Verify reads every file of the journal, also what the snapshot in force covers, and changes nothing. Damage is not
// an error but part of the Recovery. Errors are those of Read.
func Verify(dir string) (Recovery, error) {
	return readDirectory(dir, nil, true)
}

func readDirectory(dir string, fn func(Record) error, all bool) (Recovery, error) {
	d, err := openDirectory(dir, lockNone)
	if err != nil {
		return Recovery{}, fmt.Errorf("reading journal %q: %w", dir, err)
	}
	defer func() { _ = d.Close() }()
	rec, err := readFS(d, d.locked, hashBoot(""), fn, all)
	if err != nil {
		return Recovery{}, fmt.Errorf("reading journal %q: %w", dir, err)
	}
	return rec, nil
}

// readFS reads through f. live tells whether a writer is at work.
func readFS(f FS, live func() (bool, error), boot bootHash, fn func(Record) error, all bool) (Recovery, error) {
	for attempt := 1; ; attempt++ {
		r := &recoverer{fs: f, boot: boot, all: all}
		seen := false
		if fn != nil {
			r.fn = func(rec Record) error {
				seen = true
				return fn(rec)
			}
		}
		err := r.readBeside(live)
		r.close()
		if err == nil {
			return r.rec, nil
		}
		if !errors.Is(err, ErrCompacted) || seen || attempt == readAttempts {
			return Recovery{}, err
		}
	}
}

// readBeside is open and run with a writer that may be at work.
func (r *recoverer) readBeside(live func() (bool, error)) (err error) {
	if r.live, err = live(); err != nil {
		return fmt.Errorf("asking for a writer: %w", err)
	}
	if err := r.open(); errors.Is(err, fs.ErrNotExist) {
		return ErrCompacted
	} else if err != nil {
		return err
	}
	if r.live { // else one file may have been read before and another after a change of both
		for _, s := range slices.Concat(r.logs, r.snaps, r.blanks) {
			if err := s.unchanged(); err != nil {
				return err
			}
		}
	}
	if err := r.run(); err != nil {
		return err
	}
	// A writer that started meanwhile makes everything that was judged without it doubtful.
	if now, err := live(); err != nil || !now {
		return err
	} else if !r.live {
		return ErrCompacted
	}
	return nil
}
