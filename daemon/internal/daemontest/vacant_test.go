package daemontest

import "testing"

// TestVacantOutlivesTree: the daemon ends with nothing running, so its cgroup
// tree goes too, and the next one makes it anew. The end of sessions from before
// is not in doubt for that. case A7, C1
func TestVacantOutlivesTree(t *testing.T) {
	t.Parallel()
	needFence(t)
	h := running(t, "")
	for _, id := range []string{"again", "gone"} {
		h.mustStart(t, id, shell("exec sleep 1000"))
		h.mustStop(t, id)
	}
	h.Stop()
	h.Start()
	if tomb := h.mustDelete(t, "gone"); tomb.Evidence == nil || tomb.Evidence.Verdict != "absent" || tomb.Evidence.Strength != "strong" {
		t.Errorf("tombstone %+v", tomb)
	}
	if s := h.mustStart(t, "again", shell("exec sleep 1000")); s.Generation != 2 {
		t.Errorf("started %+v", s)
	}
}
