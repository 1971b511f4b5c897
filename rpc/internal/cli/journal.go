package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/statefs"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// compactions is how often a read is repeated that a snapshot has overtaken.
const compactions = 5

func (a *app) journalCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "journal",
		Short: "Look into the journal of a state directory; no daemon is needed and none is disturbed",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.dumpCmd(), a.verifyCmd())
	return cmd
}

func (a *app) dumpCmd() *cobra.Command {
	var session string
	cmd := &cobra.Command{
		Use:   "dump [DIR]",
		Short: "Print the journal's records in the order of a replay",
		Long: `Print the journal's records in the order of a replay: those of the snapshot
first. With -o json, one object a line, and one last line {"end": ...}. DIR is
a journal directory, for instance a copy; without it, it is the state
directory's. The journal is only read, also beside a running daemon.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := a.journalDir(args)
			if err == nil {
				err = a.dump(dir, session)
			}
			return failed(err, session, "dump the journal")
		},
	}
	cmd.Flags().StringVar(&session, "session", "", "only this session's records")
	stateDirFlag(cmd, &a.stateDir)
	return cmd
}

func stateDirFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "state-dir", "", "the state directory (default "+defaultStateDir+")")
	cmd.MarkFlagDirname("state-dir")
}

// journalDir is the directory that the command line names.
func (a *app) journalDir(args []string) (string, error) {
	if len(args) > 0 {
		return filepath.Abs(args[0])
	}
	dir, err := filepath.Abs(a.directory())
	if err != nil {
		return "", err
	}
	layout, err := statefs.ReadLayout(dir)
	if err != nil {
		return "", err
	}
	return layout.Journal(), nil
}

// dump prints what one undisturbed read has seen.
func (a *app) dump(dir, session string) error {
	var text bytes.Buffer
	for try := 1; ; try++ {
		text.Reset()
		err := journal.Dump(dir, &text, decodeBody)
		if err == nil {
			break
		}
		if !errors.Is(err, journal.ErrCompacted) || try == compactions {
			return err
		}
	}
	t := heading("SEQ", "TYPE", "SESSION", "GEN", "BYTES", "BODY")
	var end journal.DumpedEnd
	for line := range bytes.Lines(text.Bytes()) {
		var l dumpLine
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("decoding the dump: %w", err)
		}
		if l.End != nil {
			end = *l.End
		} else if session != "" && l.Session != session {
			continue
		}
		if a.output == "json" {
			if _, err := a.out.Write(line); err != nil {
				return fmt.Errorf("writing the dump: %w", err)
			}
		} else if l.End == nil {
			t.add(l.fields()...)
		}
	}
	if a.output != "json" {
		a.print(t)
		fmt.Fprintf(a.out, "%d records, the last is %d\n", end.Records, end.LastSeq)
		a.damages(end.Damages, end.Ambiguous)
	}
	return nil
}

// dumpLine is one line of journal.Dump.
type dumpLine struct {
	journal.DumpedRecord
	Body json.RawMessage    `json:"body"`
	End  *journal.DumpedEnd `json:"end"`
}

func (l *dumpLine) fields() []any {
	seq := fmt.Sprint(l.Seq)
	if l.Snapshot {
		seq = "≤" + seq // a snapshot's record is as old as it may be
	}
	body := cell{text: string(l.Body)}
	if l.Error != "" {
		body = cell{text: l.Error, sgr: red}
	}
	return []any{seq, record.Type(l.Type).String(), orDash(l.Session), orDash(l.Generation), l.Bytes, body}
}

func decodeBody(r journal.Record) (any, error) {
	t := record.Type(r.Type)
	if t == record.TypeForget {
		return nil, nil // it has none
	}
	body, err := record.Decode(t, r.Body)
	if spec, ok := body.(record.Spec); ok {
		// Secrets do not belong there; a dump that is sent to somebody is no
		// place to find out that one was put there.
		for i, e := range spec.Env {
			name, _, _ := strings.Cut(e, "=")
			spec.Env[i] = name + "=<hidden>"
		}
		return spec, err
	}
	return body, err
}

// damages prints losses, and tells whether there are any.
func (a *app) damages(damages []string, ambiguous bool) bool {
	for _, d := range damages {
		fmt.Fprintf(a.out, "%s %s\n", a.paint(red, "damage:"), printable(d))
	}
	if ambiguous {
		fmt.Fprintf(a.out, "%s acknowledged records may be lost of which not even the session is known\n", a.paint(red, "damage:"))
	}
	return len(damages) > 0 || ambiguous
}

func (a *app) verifyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [DIR]",
		Short: "Check every byte of the journal; fails when anything is lost",
		Long: `Check every byte of the journal, also what a snapshot covers. It fails when
anything that was acknowledged is lost. An unfinished commit at the end is no
loss: nobody was told that it had succeeded. DIR as for dump.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := a.journalDir(args)
			if err == nil {
				err = a.verify(dir)
			}
			return failed(err, "", "verify the journal")
		},
	}
	stateDirFlag(cmd, &a.stateDir)
	return cmd
}

// errDamaged is what verify ends with when it has found losses.
var errDamaged = errors.New("records are lost")

func (a *app) verify(dir string) error {
	var rec journal.Recovery
	err := journal.ErrCompacted
	for try := 0; errors.Is(err, journal.ErrCompacted) && try < compactions; try++ {
		rec, err = journal.Verify(dir)
	}
	if err != nil {
		return err
	}
	var damages, covered []string
	for _, d := range rec.Damages {
		damages = append(damages, d.String())
	}
	for _, d := range rec.Covered {
		covered = append(covered, d.String())
	}
	lost := rec.Ambiguous || len(damages) > 0
	end := journal.DumpedEnd{
		LastSeq: rec.LastSeq, Records: rec.Records, SnapshotSeq: rec.SnapshotSeq, Live: rec.Live,
		TornTail: rec.TornTail, Ambiguous: rec.Ambiguous, Damages: damages, Covered: covered,
	}
	err = a.show(end, func() {
		fmt.Fprintf(a.out, "%s: %d records, the last is %d; the snapshot covers up to %d, %s follow it\n",
			dir, rec.Records, rec.LastSeq, rec.SnapshotSeq, bytesText(uint64(rec.LogBytes)))
		if rec.Live {
			fmt.Fprintln(a.out, "a daemon is writing to it")
		}
		if rec.TornTail {
			fmt.Fprintln(a.out, "an unfinished commit is at its end; nobody was told that it had succeeded")
		}
		for _, c := range covered {
			fmt.Fprintf(a.out, "damaged, but nothing is lost: %s\n", printable(c))
		}
		if !a.damages(damages, rec.Ambiguous) {
			fmt.Fprintf(a.out, "%s\n", a.paint(green, "nothing is lost"))
		}
	})
	if err == nil && lost {
		return errDamaged
	}
	return err
}
