package host

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// tailBytes is how much of a plugin's log is looked at for why it ended.
const tailBytes = 8 << 10

// logFile is the file that a plugin's standard error goes to. The plugin has
// it open itself, so that neither its death nor the daemon's hurts the other.
type logFile struct {
	f     *os.File
	start int64 // where the present start's part begins
}

// openLog opens path for appending and shortens it when it has grown too large.
func openLog(path string, limit int64) (*logFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening plugin log: %w", err)
	}
	l := &logFile{f: f}
	err = l.trim(limit)
	if err == nil {
		l.start, err = f.Seek(0, io.SeekEnd)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("preparing plugin log %q: %w", path, err)
	}
	return l, nil
}

// trim moves the content to PATH.1 once it exceeds limit. It copies and
// truncates, because the plugin keeps the file open; lines written in between
// are lost. Appending writers go on at the new end.
func (l *logFile) trim(limit int64) error {
	info, err := l.f.Stat()
	if err != nil || info.Size() <= limit {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	b := make([]byte, limit)
	n, err := l.f.ReadAt(b, info.Size()-limit)
	if err != nil && err != io.EOF {
		return err
	}
	// Best effort: when there is no room for the copy, room is what is needed.
	_ = os.WriteFile(l.f.Name()+".1", b[:n], 0o600)
	l.start = 0
	return l.f.Truncate(0)
}

// why returns the line of the present start that most likely tells why the
// plugin ended: its panic, else its last line; at most 300 bytes, "" when it
// wrote nothing.
func (l *logFile) why() string {
	info, err := l.f.Stat()
	if err != nil || info.Size() <= l.start {
		return ""
	}
	from := max(l.start, info.Size()-tailBytes)
	b := make([]byte, info.Size()-from)
	n, _ := l.f.ReadAt(b, from)
	return tellingLine(b[:n])
}

func tellingLine(b []byte) string {
	var last string
	for line := range bytes.Lines(b) {
		s := strings.TrimSpace(strings.ToValidUTF8(string(line), "?"))
		if strings.HasPrefix(s, "panic: ") || strings.HasPrefix(s, "fatal error: ") {
			last = s
			break
		}
		if s != "" {
			last = s
		}
	}
	if len(last) > 300 {
		last = strings.ToValidUTF8(last[:300], "") + "…"
	}
	return last
}
