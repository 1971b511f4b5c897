package journal

import (
	"encoding/json"
	"fmt"
	"io"
)

// DumpedRecord is one line of [Dump].
type DumpedRecord struct {
	Seq        uint64 `json:"seq"`
	Snapshot   bool   `json:"snapshot,omitempty"`
	Type       uint16 `json:"type"`
	Session    string `json:"session,omitempty"`
	Generation uint64 `json:"generation,omitempty"`
	Bytes      int    `json:"bytes"`          // of the body
	Body       any    `json:"body,omitempty"` // what decode made of it
	Error      string `json:"error,omitempty"`
}

// DumpedEnd is the last line of [Dump].
type DumpedEnd struct {
	LastSeq     uint64   `json:"last_seq"`
	Records     int      `json:"records"`
	SnapshotSeq uint64   `json:"snapshot_seq"`
	Live        bool     `json:"live"`
	TornTail    bool     `json:"torn_tail"`
	Ambiguous   bool     `json:"ambiguous"`
	Damages     []string `json:"damages"`
	Covered     []string `json:"covered,omitempty"`
}

// Dump writes the journal in dir to w as JSON, one record a line in replay order, then one line {"end": …}. decode turns
// a record into what is shown as its body, and is the place to leave secrets out; its error is shown in the line and
// does not end the dump. Nothing is changed; a live writer is no obstacle. Errors: those of Read, and w's.
func Dump(dir string, w io.Writer, decode func(Record) (any, error)) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	rec, err := Read(dir, func(r Record) error {
		d := DumpedRecord{
			Seq: r.Seq, Snapshot: r.Snapshot, Type: r.Type, Session: r.Session, Generation: r.Generation, Bytes: len(r.Body),
		}
		body, err := decode(r)
		if err != nil {
			d.Error = err.Error()
		} else {
			d.Body = body
		}
		if err := out.Encode(d); err != nil {
			return fmt.Errorf("dumping record %d: %w", r.Seq, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return out.Encode(struct {
		End DumpedEnd `json:"end"`
	}{DumpedEnd{
		LastSeq: rec.LastSeq, Records: rec.Records, SnapshotSeq: rec.SnapshotSeq, Live: rec.Live,
		TornTail: rec.TornTail, Ambiguous: rec.Ambiguous, Damages: texts(rec.Damages), Covered: texts(rec.Covered),
	}})
}

func texts(damages []Damage) []string {
	s := make([]string, len(damages))
	for i, d := range damages {
		s[i] = d.String()
	}
	return s
}
