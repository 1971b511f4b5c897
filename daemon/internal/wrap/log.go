package wrap

import (
	"fmt"
	"io"
	"os"
	"time"
)

// diary is the wrapper's own log on standard error. Lines are written by a
// goroutine of their own: the file may be on the disk that hangs, and then
// lines are dropped instead of anybody waiting.
type diary struct {
	entries chan entry
}

// entry is a line, or a mark that is acknowledged once all before it is written.
type entry struct {
	line    string
	written chan struct{}
}

func newDiary(w io.Writer) *diary {
	d := &diary{entries: make(chan entry, logLines)}
	go func() { // owner: Run; ends with the process
		for e := range d.entries {
			if e.written != nil {
				close(e.written)
				continue
			}
			_, _ = io.WriteString(w, e.line) // nobody is left to be told
		}
	}()
	return d
}

// logf writes one line. It never blocks.
func (d *diary) logf(format string, args ...any) {
	line := fmt.Sprintf("%s berth-wrap[%d]: %s\n",
		time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), os.Getpid(), fmt.Sprintf(format, args...))
	select {
	case d.entries <- entry{line: line}:
	default:
	}
}

// flush waits until what was logged is written, at most for logBound.
func (d *diary) flush() {
	mark := entry{written: make(chan struct{})}
	select {
	case d.entries <- mark:
		within(mark.written, logBound)
	default:
	}
}
