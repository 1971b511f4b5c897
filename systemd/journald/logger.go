package journald

import (
	"fmt"
	"io"
	"log"
	"runtime"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/berthd/berth/systemd/journald/catalog"
	"github.com/berthd/berth/systemd/journald/native"
)

// Logger writes to a Queue. Names, levels and implied arguments are those of
// the hclog.Logger in it, whose own output goes nowhere.
type Logger struct {
	hclog.Logger
	queue *Queue
	base  []string // names and values of fields that every entry has
}

// New returns a logger of that name and level. Every entry carries the fields in
// base, names and values by turns.
func New(name string, level hclog.Level, q *Queue, base ...string) *Logger {
	return &Logger{
		Logger: hclog.New(&hclog.LoggerOptions{Name: name, Level: level, Output: io.Discard}),
		queue:  q, base: base,
	}
}

// WithFields returns a logger whose entries carry these fields too, names and
// values by turns.
func (l *Logger) WithFields(fields ...string) *Logger {
	sub := l.sub(l.Logger)
	sub.base = append(l.base[:len(l.base):len(l.base)], fields...)
	return sub
}

// Trace, Debug, Info, Warn, Error and Log write one entry.
func (l *Logger) Trace(msg string, args ...any) { l.log(hclog.Trace, msg, args) }
func (l *Logger) Debug(msg string, args ...any) { l.log(hclog.Debug, msg, args) }
func (l *Logger) Info(msg string, args ...any)  { l.log(hclog.Info, msg, args) }
func (l *Logger) Warn(msg string, args ...any)  { l.log(hclog.Warn, msg, args) }
func (l *Logger) Error(msg string, args ...any) { l.log(hclog.Error, msg, args) }

func (l *Logger) Log(level hclog.Level, msg string, args ...any) { l.log(level, msg, args) }

// Named, ResetNamed and With return loggers that write to the same queue.
func (l *Logger) Named(name string) hclog.Logger      { return l.sub(l.Logger.Named(name)) }
func (l *Logger) ResetNamed(name string) hclog.Logger { return l.sub(l.Logger.ResetNamed(name)) }
func (l *Logger) With(args ...any) hclog.Logger       { return l.sub(l.Logger.With(args...)) }

func (l *Logger) sub(inner hclog.Logger) *Logger {
	return &Logger{Logger: inner, queue: l.queue, base: l.base}
}

// StandardLogger and StandardWriter make an entry of every write.
func (l *Logger) StandardLogger(o *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(l.StandardWriter(o), "", 0)
}

func (l *Logger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return lineWriter{l} }

type lineWriter struct{ l *Logger }

func (w lineWriter) Write(p []byte) (int, error) {
	w.l.log(hclog.Info, strings.TrimRight(string(p), "\n"), nil)
	return len(p), nil
}

// callers is what is between the caller of Info and runtime.Callers.
const callers = 3

func (l *Logger) log(level hclog.Level, msg string, args []any) {
	if level < l.GetLevel() || l.GetLevel() == hclog.Off {
		return
	}
	e := &native.Entry{}
	e.Priority(priority(level))
	e.Set("SYSLOG_IDENTIFIER", native.DaemonIdentifier)
	for i := 0; i+1 < len(l.base); i += 2 {
		e.Set(l.base[i], l.base[i+1])
	}
	_, sub, _ := strings.Cut(l.Name(), ".")
	e.Set(native.Subsystem, sub)
	var pc [1]uintptr
	if runtime.Callers(callers, pc[:]) == 1 {
		frame, _ := runtime.CallersFrames(pc[:]).Next()
		e.Set("CODE_FILE", frame.File)
		e.Uint("CODE_LINE", uint64(frame.Line))
		e.Set("CODE_FUNC", frame.Function)
	}
	if implied := l.ImpliedArgs(); len(implied) > 0 {
		args = append(implied[:len(implied):len(implied)], args...)
	}
	fill(e, msg, args)
	l.queue.Put(e)
}

// priority maps hclog's levels to syslog's.
func priority(level hclog.Level) native.Priority {
	switch level {
	case hclog.Trace, hclog.Debug:
		return native.Debug
	case hclog.Warn:
		return native.Warning
	case hclog.Error:
		return native.Error
	case hclog.NoLevel:
		return native.Notice
	}
	return native.Info
}

// always are arguments that are fields of every entry; ofEvents are fields where
// the argument "event" is one of the catalog's, since elsewhere the same words
// mean other things.
var (
	always = map[string]string{
		"session": native.Session, "generation": native.Generation, "instance": native.Instance,
		"provider": native.Provider,
	}
	ofEvents = map[string]string{
		"event": native.Event, "operation": native.Operation, "state": native.State, "reason": native.Reason,
		"by": native.By, "owner": native.Owner, "exit": native.Exit, "seq": native.Seq,
	}
	// silent are fields that the text of the message does without.
	silent = map[string]bool{"event": true, "instance": true, "operation": true, "owner": true, "seq": true}
)

// fill sets the message and the fields that the arguments are.
func fill(e *native.Entry, msg string, args []any) {
	event, known := eventOf(args)
	if known {
		e.Set("MESSAGE_ID", event.ID)
	}
	var text strings.Builder
	text.WriteString(msg)
	sep := ": "
	for i := 0; i < len(args); i += 2 {
		key, value := hclog.MissingKey, format(args[i])
		if i+1 < len(args) {
			key, value = format(args[i]), format(args[i+1])
		}
		if name := always[key]; name != "" {
			e.Set(name, value)
		}
		if name := ofEvents[key]; name != "" && known {
			e.Set(name, value)
			if silent[key] {
				continue
			}
		} else if key == "instance" && known {
			continue
		}
		if value == "" && known {
			continue
		}
		text.WriteString(sep + key + "=" + quote(value))
		sep = " "
	}
	e.Set("MESSAGE", text.String())
}

// eventOf finds the argument "event" in the catalog.
func eventOf(args []any) (catalog.Message, bool) {
	for i := 0; i+1 < len(args); i += 2 {
		if key, ok := args[i].(string); ok && key == "event" {
			return catalog.Of(format(args[i+1]))
		}
	}
	return catalog.Message{}, false
}

// quote makes a value that is not one word be seen as one.
func quote(value string) string {
	if value == "" || strings.ContainsAny(value, " \t\n\"=") {
		return strconv.Quote(value)
	}
	return value
}

// format writes a value as hclog does.
func format(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case hclog.Format:
		if len(v) > 0 {
			return fmt.Sprintf(fmt.Sprint(v[0]), v[1:]...)
		}
		return ""
	}
	return fmt.Sprint(v)
}
