package journal

import "fmt"

// Recovery is what reading a journal found out.
type Recovery struct {
	LastSeq     uint64 // number of the last record that is there, or was there and is lost; 0 for an empty journal
	Records     int    // delivered, those of the snapshot included
	SnapshotSeq uint64 // last number that the snapshot covers; 0 without one
	LogBytes    int64  // of the records above SnapshotSeq
	Live        bool   // a writer is at work: the end is where it happened to be

	// TornTail says that the end of the last log file was an unfinished commit, which nobody was told had succeeded. Open
	// has dropped it. Torn lists those of its records whose headers can be read; they need no action.
	TornTail bool
	Torn     []Damage

	// Ambiguous says that acknowledged records may be lost of which not even the session is known: all generations must
	// rise above what other evidence shows. It is repeated at every Open until a snapshot taken afterwards covers the place.
	Ambiguous bool
	// Damages are losses, in order of their place. A record of the same session and type with a higher Seq supersedes the lost one.
	Damages []Damage
	// Covered is damage that lost nothing: a snapshot holds what was there.
	Covered []Damage
}

// Damage is one place that could not be read as it was written.
type Damage struct {
	Kind         Kind
	File         string // within the directory
	Offset       int64
	Seq          uint64 // first record concerned; 0 if unknown
	Lost         uint64 // records known to be missing, from Seq on; 0 if their number is unknown or none is
	Type         uint16 // of the lost record; 0 if unknown
	Session      string
	Generation   uint64 // valid if Type is not 0
	SessionKnown bool
	Detail       string // for people
}

// Kind is the kind of a [Damage].
type Kind uint8

// Kinds of damage. Only BodyUnreadable with a known session leaves the journal unambiguous.
const (
	BodyUnreadable       Kind = iota + 1 // the header is intact, session or body is not
	HeaderUnreadable                     // no valid record where one belongs
	RecordsMissing                       // numbers are skipped, or the end that mark speaks of is not there
	ChainBroken                          // two valid records do not belong together; both were delivered
	FileHeaderUnreadable                 // nothing of the file can be read
	FileMissing                          // a log file, or all of them
	FileTruncated                        // shorter than it was made
	SnapshotUnreadable                   // a snapshot that an older one replaced
)

var kindNames = map[Kind]string{
	BodyUnreadable: "body unreadable", HeaderUnreadable: "header unreadable", RecordsMissing: "records missing",
	ChainBroken: "chain broken", FileHeaderUnreadable: "file header unreadable", FileMissing: "file missing",
	FileTruncated: "file truncated", SnapshotUnreadable: "snapshot unreadable",
}

func (k Kind) String() string {
	if s, ok := kindNames[k]; ok {
		return s
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

func (d Damage) String() string {
	s := fmt.Sprintf("%s at %d: %s", d.File, d.Offset, d.Kind)
	if d.Seq != 0 {
		s += fmt.Sprintf(", record %d", d.Seq)
	}
	if d.Lost > 1 {
		s += fmt.Sprintf(" and %d more", d.Lost-1)
	}
	if d.SessionKnown {
		s += fmt.Sprintf(", session %q generation %d", d.Session, d.Generation)
	}
	if d.Detail != "" {
		s += ": " + d.Detail
	}
	return s
}

// harmless says that d alone does not make the journal ambiguous.
func (d Damage) harmless() bool {
	return d.Kind == BodyUnreadable && d.SessionKnown || d.Kind == SnapshotUnreadable
}

// report files d under what it means, given that everything up to covered is in the snapshot in use.
func (r *Recovery) report(d Damage, covered uint64) {
	last := d.Seq
	if d.Lost > 1 {
		last += d.Lost - 1
	}
	if d.Kind == SnapshotUnreadable || last != 0 && last <= covered {
		r.Covered = append(r.Covered, d)
		return
	}
	r.Damages = append(r.Damages, d)
	if !d.harmless() {
		r.Ambiguous = true
	}
}
