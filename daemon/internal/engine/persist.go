package engine

import (
	"errors"

	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// batch runs commands as one transaction. When the disk is full it falls back
// to one transaction each, so that what may use the reserve still goes through;
// what is too large for one append it halves.
func (e *Engine) batch(commands []command) {
	class := journal.Reserved
	for _, c := range commands {
		if c.class == journal.Ordinary {
			class = journal.Ordinary
		}
	}
	err := e.commit(commands, class)
	switch {
	case err == nil:
	case errors.Is(err, journal.ErrFull) && len(commands) > 1:
		for _, c := range commands {
			if err := e.commit([]command{c}, c.class); err != nil {
				e.refuse(c, err)
			}
		}
	case errors.Is(err, journal.ErrTooLarge) && len(commands) > 1:
		e.batch(commands[:len(commands)/2])
		e.batch(commands[len(commands)/2:])
	default:
		for _, c := range commands {
			e.refuse(c, err)
		}
	}
}

// commit runs the commands, makes the result durable and acts on it.
func (e *Engine) commit(commands []command, class journal.Class) error {
	t := e.begin()
	for _, c := range commands {
		c.apply(t)
	}
	t.settle()
	if len(t.entries) > 0 {
		if err := e.persist(t, class, len(commands) == 1); err != nil {
			return err
		}
	}
	e.act(t)
	return nil
}

// persist appends the transaction's records, as one append where they fit. Only
// what one command has caused may be divided: a crash in between leaves less of
// it done, which the next start goes on from. Any failure of the journal but
// a full disk is final: the state on disk is no longer known, so
// nothing may be changed.
func (e *Engine) persist(t *tx, class journal.Class, divisible bool) error {
	if err := e.Err(); err != nil {
		return journalFailed(err)
	}
	for _, entry := range t.entries {
		if len(entry.Body) > journal.MaxBody {
			return refusal(codeInvalid, false, "a record of %d bytes does not fit the journal", len(entry.Body)).
				because(journal.ErrTooLarge)
		}
	}
	parts := divide(t.entries)
	if len(parts) > 1 && !divisible {
		return journal.ErrTooLarge
	}
	var last uint64
	for i, part := range parts {
		var err error
		last, err = e.opts.Journal.Append(class, part...)
		switch {
		case err == nil:
		case i == 0 && errors.Is(err, journal.ErrFull):
			return refusal(codeFilesystemUnusable, true, "the state directory's file system is full: %v", err).because(err)
		default:
			return e.fail(err)
		}
	}
	first := last - uint64(len(t.entries))
	for i := range t.events {
		t.events[i].Seq += first
	}
	e.lastSeq = last
	return nil
}

// appendMax bounds one append, in bytes of bodies and ids; a journal's segment
// holds twice as much.
const appendMax = 1 << 20

// divide cuts entries into appends. A specification stays with the lease that
// follows it: without one it would stand for a session that cannot be read.
func divide(entries []journal.Entry) (parts [][]journal.Entry) {
	size, start := 0, 0
	for i, entry := range entries {
		need := len(entry.Body) + len(entry.Session) + entryOverhead
		if i > start && size+need > appendMax && record.Type(entries[i-1].Type) != record.TypeSpec {
			parts = append(parts, entries[start:i])
			size, start = 0, i
		}
		size += need
	}
	return append(parts, entries[start:])
}

// entryOverhead is what a record takes beside its body and its session's id.
const entryOverhead = 64

// fail makes err the journal's last word and tells everybody who waits for
// something that can no longer be put on disk.
func (e *Engine) fail(err error) error {
	e.failed.Store(&err)
	e.log.Error("the journal has failed: nothing can be changed until the daemon is restarted", "event", "journal_failed", "error", err)
	failure := journalFailed(err)
	for _, c := range e.barred {
		c.fail(failure)
	}
	e.barred = nil
	for _, s := range e.sessions {
		for _, reply := range s.waiters {
			reply(Started{}, failure)
		}
		for _, c := range s.parked {
			c.fail(failure)
		}
		s.waiters, s.parked = nil, nil
	}
	return failure
}

func journalFailed(err error) error {
	return refusal(codeJournal, false, "the journal has failed, nothing can be changed: %v", err).because(err)
}

// refuse tells the command's caller that nothing has changed. What an effect
// has found out has no caller and happens only once: it is kept until the disk
// has room again.
func (e *Engine) refuse(c command, err error) {
	switch {
	case c.fail != nil:
		c.fail(err)
	case errors.Is(err, journal.ErrFull) && !c.again:
		e.refused = append(e.refused, c)
		e.pauseUntil = e.opts.Now() + fullPause
	default:
		e.pauseUntil = e.opts.Now() + fullPause
		if e.Err() == nil {
			e.log.Error("a change could not be recorded", "error", err)
		}
	}
}
