package record

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Records of the retired kind of allocation decode for ever: these files are as
// older software has written them, and are never changed.
func TestRetiredRecords(t *testing.T) {
	t.Parallel()
	wall := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	spec := Spec{
		Session: "old", Digest: "00ff", Command: []string{"agent"}, Provider: "process", Grace: -1, Allocation: AllocationShared,
	}
	op := Operation{
		UID: 1000, Kind: "start", Key: "k", Session: "old", Digest: "00ff", Done: true, Result: []byte("{}"), Wall: wall,
		Allocation: AllocationShared,
	}
	for name, c := range map[string]struct {
		typ  Type
		want appender
	}{"spec": {TypeSpec, spec}, "operation": {TypeOperation, op}} {
		file := filepath.Join("testdata", "retired", name+".bin")
		body, err := os.ReadFile(file)
		if os.IsNotExist(err) && *update {
			body, err = c.want.Append(nil), nil
			if err := os.WriteFile(file, body, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		got := mustDecode(t, c.typ, body).(appender).Append(nil)
		if !bytes.Equal(got, c.want.Append(nil)) {
			t.Errorf("%s decodes to %x, want %x", file, got, c.want.Append(nil))
		}
	}
}
