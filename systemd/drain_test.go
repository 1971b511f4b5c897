package systemd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
)

// TestDrain: case J4: what a stop of the service does not do, a drain does:
// nothing is started any more, also after a restart; with kill all ends.
func TestDrain(t *testing.T) {
	h := start(t, "")
	started := h.sessions(3, "trap '' TERM; while :; do sleep 1000; done")
	if out := run(t, "berthctl", "drain", "--why", "maintenance"); !strings.Contains(out, "nothing is started") || !strings.Contains(out, "3 active") {
		t.Errorf("drain says %q", out)
	}
	defer h.Undrain(context.Background(), rpc.UndrainRequest{}) // also where the test fails
	run(t, "systemctl", "restart", "berthd.service")
	h.adopted(started)
	spec := &rpc.SessionSpec{Command: []string{"true"}}
	_, err := h.Start(t.Context(), "late", rpc.StartRequest{Spec: spec})
	var refusal *rpc.Error
	if !errors.As(err, &refusal) || refusal.Code != rpc.CodeDraining || !refusal.Retryable || !strings.Contains(refusal.Message, "maintenance") {
		t.Errorf("a start on a drained host: %v", err)
	}
	// What runs is found, not started.
	if again, err := h.Start(t.Context(), "s0", rpc.StartRequest{}); err != nil || again.PID != started[0].PID {
		t.Errorf("starting what runs: %+v, %v", again, err)
	}
	if status, err := h.Status(t.Context()); err != nil || status.Drain == nil || status.Drain.Why != "maintenance" {
		t.Errorf("the status has %+v, %v", status.Drain, err)
	}
	if out := run(t, "berthctl", "drain", "--kill"); !strings.Contains(out, "3 vacant") {
		t.Errorf("drain --kill says %q", out)
	}
	for _, s := range started {
		got, err := h.Get(t.Context(), s.Session)
		if err != nil || got.State != "vacant" || got.Exit == nil || got.Exit.Reason != "host_drain" {
			t.Errorf("after drain --kill %s is %+v, exit %+v, %v", s.Session, got, got.Exit, err)
		}
	}
	if _, err := h.Start(t.Context(), "s0", rpc.StartRequest{}); rpc.CodeOf(err) != rpc.CodeDraining {
		t.Errorf("starting what was killed: %v", err)
	}
	run(t, "berthctl", "undrain")
	if _, err := h.Start(t.Context(), "late", rpc.StartRequest{Spec: spec}); err != nil {
		t.Errorf("after undrain: %v", err)
	}
}
