package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The files that a wrapper leaves in its generation's directory. They are
// JSON, so that a wrapper in any language can write them, and are replaced
// whole (see statefs.WriteFile): a reader sees an old one or a new one.
const (
	StatusFile = "status.json"
	ExitFile   = "exit.json"
)

// maxGenerationFile bounds what is read of either file, in bytes. Both are
// well below 4 KiB; what is larger was not written by a wrapper.
const maxGenerationFile = 64 << 10

// Identity names one physical wrapper.
type Identity struct {
	Host       string `json:"host"`
	Session    string `json:"session"`
	Instance   string `json:"instance"`
	Generation uint64 `json:"generation"`
}

// GenerationStatus is status.json: who the wrapper of a generation is, and
// where. It is written before the agent starts and again when the phase
// changes.
type GenerationStatus struct {
	Identity
	// PID and StartTicks (clock ticks after boot, proc_pid_stat(5) field 22)
	// identify the wrapper within Epoch.
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"start_ticks"`
	// Epoch is boot id + ":" + pid namespace inode.
	Epoch string `json:"epoch"`
	// AgentPID and AgentStartTicks are 0 before the agent runs.
	AgentPID        int    `json:"agent_pid,omitempty"`
	AgentStartTicks uint64 `json:"agent_start_ticks,omitempty"`
	// Phase is "starting", "running" or "exited", as wire.Status.
	Phase string `json:"phase"`
	// Protocol is the wrapper protocol's version, as wire.Version.
	Protocol int `json:"protocol"`
	// StartedAt is when the wrapper started, wall time, for people.
	StartedAt time.Time `json:"started_at"`
}

// GenerationExit is exit.json: how the agent of a generation ended. Exactly
// one of Code, Signal and Unknown describes it, as in wire.Exit: an exit that
// nobody saw is unknown, never code 0.
type GenerationExit struct {
	Identity
	// Kind is "code", "signal", "oom" or "unknown".
	Kind string `json:"kind"`
	Code int    `json:"code,omitempty"`
	// Signal is the signal's number.
	Signal int `json:"signal,omitempty"`
	// Unknown is the reason why nothing is known.
	Unknown string `json:"unknown,omitempty"`
	// Reason and By are the stop that was asked for before the end, if any.
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
	// At is wall time, for people.
	At time.Time `json:"at"`
	// LastSeq is the spool's last sequence number after the output was drained.
	LastSeq uint64 `json:"last_seq,omitempty"`
}

// FileError says that a generation's file is there and cannot be understood.
// It never means that there is no wrapper or no exit.
type FileError struct {
	Path string
	Err  error
}

// Error names the file and what is wrong with it.
func (e *FileError) Error() string {
	return fmt.Sprintf("decoding %q: %v", e.Path, e.Err)
}

// Unwrap returns the cause.
func (e *FileError) Unwrap() error { return e.Err }

// ReadStatus reads status.json of the generation's directory dir. Errors:
// one that matches os.ErrNotExist when there is none, a *FileError when it
// does not decode, else the operating system's. Unknown fields are ignored.
func ReadStatus(dir string) (GenerationStatus, error) {
	var s GenerationStatus
	path := filepath.Join(dir, StatusFile)
	if err := readGenerationFile(path, &s); err != nil {
		return GenerationStatus{}, err
	}
	if err := s.validate(); err != nil {
		return GenerationStatus{}, &FileError{Path: path, Err: err}
	}
	return s, nil
}

// ReadExit reads exit.json of the generation's directory dir. Errors as
// ReadStatus has them.
func ReadExit(dir string) (GenerationExit, error) {
	var x GenerationExit
	path := filepath.Join(dir, ExitFile)
	if err := readGenerationFile(path, &x); err != nil {
		return GenerationExit{}, err
	}
	if err := x.validate(); err != nil {
		return GenerationExit{}, &FileError{Path: path, Err: err}
	}
	return x, nil
}

func (i Identity) validate() error {
	if i.Host == "" || i.Session == "" || i.Instance == "" || i.Generation == 0 {
		return errors.New("host, session, instance or generation is missing")
	}
	return nil
}

func (s GenerationStatus) validate() error {
	if err := s.Identity.validate(); err != nil {
		return err
	}
	if s.PID <= 0 || s.StartTicks == 0 || s.Epoch == "" {
		return errors.New("pid, start_ticks or epoch is missing")
	}
	switch s.Phase {
	case "starting", "running", "exited":
		return nil
	}
	return fmt.Errorf("unknown phase %q", s.Phase)
}

func (x GenerationExit) validate() error {
	if err := x.Identity.validate(); err != nil {
		return err
	}
	// A record that says nothing must not read as "exited with code 0".
	switch {
	case x.Kind == "code" && x.Signal == 0 && x.Unknown == "":
	case x.Kind == "signal" && x.Code == 0 && x.Signal > 0 && x.Unknown == "":
	case x.Kind == "oom":
	case x.Kind == "unknown" && x.Unknown != "" && x.Code == 0 && x.Signal == 0:
	default:
		return fmt.Errorf("kind %q contradicts code %d, signal %d, unknown %q", x.Kind, x.Code, x.Signal, x.Unknown)
	}
	return nil
}

// readGenerationFile decodes one JSON object into v. The file is opened
// without following a link and without waiting, as something else than the
// wrapper's file (a fifo, a link) may lie under its name.
func readGenerationFile(path string, v any) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return &FileError{Path: path, Err: errors.New("is a symbolic link")}
	}
	if err != nil {
		return fmt.Errorf("opening %q: %w", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("reading %q: %w", path, err)
	}
	if !info.Mode().IsRegular() {
		return &FileError{Path: path, Err: fmt.Errorf("is not a regular file (%v)", info.Mode().Type())}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxGenerationFile+1))
	if err != nil {
		return fmt.Errorf("reading %q: %w", path, err)
	}
	if err := decodeGenerationFile(data, v); err != nil {
		return &FileError{Path: path, Err: err}
	}
	return nil
}

// decodeGenerationFile accepts one JSON object and nothing after it.
func decodeGenerationFile(data []byte, v any) error {
	if len(data) > maxGenerationFile {
		return fmt.Errorf("longer than %d bytes", maxGenerationFile)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%v", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the object")
	}
	return nil
}
