package daemontest

import (
	"errors"
	"os"
	"testing"

	"github.com/berthd/berth/rpc"
)

// TestRetention: a session that has been kept for as long as it asked for is
// deleted without being asked, also by the next daemon, and what it has left in
// its workspace is saved; one that is kept for ever stays.
func TestRetention(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	keep := func(id string, seconds float64) {
		spec := shell("echo work > file")
		spec.RetentionSeconds = &seconds
		h.mustStart(t, id, spec)
		h.untilVacant(t, id)
	}
	keep("kept", 0)
	seconds := 3.0
	spec := shell("echo work > file")
	spec.RetentionSeconds = &seconds
	h.mustStart(t, "old", spec)
	h.Kill()
	h.Start()
	var tomb *rpc.Tombstone
	h.Until("old is deleted", patience, func() error {
		if tomb = h.explained(t, "old").Tombstone; tomb == nil {
			return errors.New("it is not")
		}
		return nil
	})
	if tomb.Reason != "retention_expired" || tomb.By != "berthd" || tomb.Saved == "" {
		t.Fatalf("the tombstone: %+v", tomb)
	}
	if info, err := os.Stat(tomb.Saved + "/files.tar"); err != nil || info.Size() == 0 {
		t.Errorf("what was saved: %v", err)
	}
	h.mustGet(t, "kept")
}
