package record

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

var generationIdentity = Identity{Host: strings.Repeat("a", 32), Session: "s.1", Instance: strings.Repeat("b", 32), Generation: 7}

func goodStatus() GenerationStatus {
	return GenerationStatus{
		Identity: generationIdentity, PID: 41, StartTicks: 99, Epoch: "boot:4026531836",
		AgentPID: 42, AgentStartTicks: 100, Phase: "running", Protocol: 1,
		StartedAt: time.Date(2026, 11, 29, 19, 0, 0, 0, time.UTC),
	}
}

func goodExit() GenerationExit {
	return GenerationExit{
		Identity: generationIdentity, Kind: "signal", Signal: 9, Reason: "operator", By: "uid 0",
		At: time.Date(2026, 11, 29, 19, 1, 0, 0, time.UTC), LastSeq: 12,
	}
}

func writeJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReadGenerationFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := ReadStatus(dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("ReadStatus of an empty directory: %v", err)
	}
	if _, err := ReadExit(dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("ReadExit of an empty directory: %v", err)
	}
	writeJSON(t, filepath.Join(dir, StatusFile), goodStatus())
	writeJSON(t, filepath.Join(dir, ExitFile), goodExit())
	if s, err := ReadStatus(dir); err != nil || !reflect.DeepEqual(s, goodStatus()) {
		t.Errorf("ReadStatus = %+v, %v", s, err)
	}
	if x, err := ReadExit(dir); err != nil || !reflect.DeepEqual(x, goodExit()) {
		t.Errorf("ReadExit = %+v, %v", x, err)
	}
}

// The identity lies flat in the object: other languages write these files.
func TestGenerationFilesAreFlat(t *testing.T) {
	t.Parallel()
	for _, v := range []any{goodStatus(), goodExit()} {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		for _, k := range []string{"host", "session", "instance", "generation"} {
			if _, ok := m[k]; !ok {
				t.Errorf("%T has no %q at the top: %s", v, k, data)
			}
		}
	}
}

func TestReadGenerationGarbage(t *testing.T) {
	t.Parallel()
	good, err := json.Marshal(goodExit())
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{
		"empty":         "",
		"zeros":         string(make([]byte, 512)),
		"torn":          string(good[:len(good)/2]),
		"trailing":      string(good) + "{}",
		"array":         "[]",
		"null":          "null",
		"empty object":  "{}",
		"unknown kind":  strings.Replace(string(good), `"signal","signal":9`, `"fell"`, 1),
		"no code given": strings.Replace(string(good), `"kind":"signal","signal":9,`, ``, 1),
		"signal 0":      strings.Replace(string(good), `,"signal":9`, ``, 1),
		"huge":          string(good) + strings.Repeat(" ", maxGenerationFile),
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, ExitFile), []byte(body), 0o600); err != nil {
				t.Fatal(err)
			}
			x, err := ReadExit(dir)
			var fe *FileError
			if !errors.As(err, &fe) || errors.Is(err, os.ErrNotExist) {
				t.Errorf("err = %v, want a *FileError", err)
			}
			if x != (GenerationExit{}) {
				t.Errorf("a value beside the error: %+v", x)
			}
		})
	}
}

// A fifo or a link under the file's name neither hangs the reader nor leads
// it elsewhere.
func TestReadGenerationStrangeFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, StatusFile), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other.json")
	writeJSON(t, other, goodExit())
	if err := os.Symlink(other, filepath.Join(dir, ExitFile)); err != nil {
		t.Fatal(err)
	}
	var fe *FileError
	if _, err := ReadStatus(dir); !errors.As(err, &fe) {
		t.Errorf("fifo: %v", err)
	}
	if _, err := ReadExit(dir); !errors.As(err, &fe) {
		t.Errorf("link: %v", err)
	}
}
