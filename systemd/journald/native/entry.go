package native

import (
	"encoding/binary"
	"strconv"
)

// Priority is a syslog level, RFC 5424 section 6.2.1.
type Priority int

// The priorities that berth uses.
const (
	Error   Priority = 3
	Warning Priority = 4
	Notice  Priority = 5
	Info    Priority = 6
	Debug   Priority = 7
)

// Entry is one entry that is being put together. The zero value is an empty
// one. An Entry can be used again after Reset; it keeps its memory.
type Entry struct {
	buf []byte
}

// Reset makes the entry empty.
func (e *Entry) Reset() { e.buf = e.buf[:0] }

// Bytes is the entry as it is sent; valid until the next change.
func (e *Entry) Bytes() []byte { return e.buf }

// Priority sets PRIORITY.
func (e *Entry) Priority(p Priority) { e.Set("PRIORITY", strconv.Itoa(int(p))) }

// Uint sets a field to a number.
func (e *Entry) Uint(name string, value uint64) { e.Set(name, strconv.FormatUint(value, 10)) }

// Message sets MESSAGE, which an entry without any text has too.
func (e *Entry) Message(text []byte) { set(e, "MESSAGE", text) }

// Set adds a field; any bytes are a good value, also a line feed. An empty
// value adds nothing. A name that journald would not take is a mistake of the
// program: names are constants, see Fields.
func (e *Entry) Set(name, value string) {
	if value != "" {
		set(e, name, value)
	}
}

func set[T string | []byte](e *Entry, name string, value T) {
	if !ValidName(name) {
		panic("internal error: journald takes no field " + strconv.Quote(name))
	}
	e.buf = append(e.buf, name...)
	feed := false
	for i := 0; i < len(value) && !feed; i++ {
		feed = value[i] == '\n'
	}
	if !feed {
		e.buf = append(e.buf, '=')
	} else { // the length says where the value ends
		e.buf = append(e.buf, '\n')
		e.buf = binary.LittleEndian.AppendUint64(e.buf, uint64(len(value)))
	}
	e.buf = append(e.buf, value...)
	e.buf = append(e.buf, '\n')
}

// nameMax is the longest name that journald takes, DATA_FIELD_NAME_MAX.
const nameMax = 64

// ValidName reports whether journald takes a field of that name from a client:
// capitals, digits and underscores, the first one a capital. It drops others
// without a word (journal_field_valid, src/libsystemd/sd-journal/journal-file.c).
func ValidName(name string) bool {
	if name == "" || len(name) > nameMax || name[0] < 'A' || name[0] > 'Z' {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}
